"""Tasks are run: by an invocation on its seat, and by a worker that extends its leases."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import patch

from pymongo.errors import AutoReconnect

from tests.builders import add, document
from tests.fixtures import T0
from tidemill.control.queues import change_queue
from tidemill.control.semaphores import PermitOwner
from tidemill.executor.context import ExecutionOptions
from tidemill.executor.execution import work
from tidemill.executor.lifetime import WORKER_REMAINING, Worker
from tidemill.model import QueueOptions
from tidemill.store import claims
from tidemill.store.claims import Claim
from tools.chaos.crash_points.scenario import Scenario
from tools.chaos.crash_points.world import DEAD, SEATS, World

RESERVE_SEC: Final = 25.0
EXTEND_SEC: Final = 0.02


def task(n: str, name: str = "ends", **fields: Any) -> dict[str, Any]:
    """A pending task that is due at T0, with an id that sorts by *n*."""
    return document(T0, _id=n, name=name, payload={"n": n}) | fields


def retry(n: str, name: str = "ends", **fields: Any) -> dict[str, Any]:
    """One that has failed once."""
    line = {"attempt": 1, "status": "failed", "started_at": T0, "duration_ms": 1, "note": "before"}
    return task(n, name, lane="retry", attempts=1, attempt_log=[line]) | fields


def _some(world: World) -> None:
    add(world.tasks, [task(f"ends {n}") for n in range(3)])


def _plenty(world: World) -> None:
    """More than are settled one by one, with ids that may be settled together."""
    add(world.tasks, [document(T0, name="ends", payload={"n": f"ends {n}"}) for n in range(8)])


def _all_kinds(world: World) -> None:
    old = T0 - timedelta(hours=1)
    add(world.tasks, [
        task("ends"),
        task("fails once", "fails_once"),
        task("fails", "fails", max_retries=1),
        task("refuses", "refuses"),
        task("snoozes", "snoozes"),
        task("unknown for long", "nobody", created_at=old),
        task("unknown for a moment", "nobody", created_at=T0 - timedelta(minutes=9)),
        task("expired", expires_at=old),
        task("too long", timeout_sec=3600),
        task("exhausted", attempts=3, max_retries=1, attempt_log=[], redrives=1),
    ])  # fmt: skip


def _malformed(world: World) -> None:
    add(world.tasks, [
        task("ends"),
        task("no payload") | {"payload": 5},
        task("no counter", attempts="many"),
        task("odd log", attempt_log="none"),
    ])  # fmt: skip


def _capped(world: World) -> None:
    change_queue(world.db, "default", QueueOptions(max_in_flight_retries=2), now=T0)
    add(world.tasks, [*(retry(f"retry {n}", "fails_once") for n in range(4)), task("fresh")])


def _several_queues(world: World) -> None:
    change_queue(world.db, "default", QueueOptions(selection="retries_first"), now=T0)
    add(world.tasks, [task(f"fresh {n}") for n in range(6)])
    add(world.tasks, [retry("retry"), task("there", queue="eu"), retry("odd one out", queue="us")])


def _no_seat(world: World) -> None:
    _some(world)
    for n in range(SEATS):
        holder = PermitOwner(owner=f"other {n}", execution=f"e{n}")
        assert world.executor_slots.acquire(holder, until=T0 + timedelta(seconds=30), now=T0)


def _knocked_meanwhile(world: World) -> None:
    _some(world)
    world.db.control.insert_one({"_id": "executor_slots", "holds": [], "waiting_since": T0})


def _blind(world: World) -> None:
    """Execute, with the answer to the first claim lost: what it took has to be given back unseen."""
    take = claims.take
    lost: list[Claim] = []

    def unseen(*those: Any, **how: Any) -> Claim:
        claim = take(*those, **how)
        if lost:
            return claim
        lost.append(claim)
        return replace(claim, tasks=(), error=AutoReconnect(), unresolved=True)

    with patch.object(claims, "take", unseen):
        world.execute()


class _HastyClock:
    """The clock of a machine so busy that each look at it takes half of what a task may."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        """Return the time, later."""
        self._world.skip(RESERVE_SEC)
        return self._world.clock.now()


def _late(world: World) -> None:
    add(world.tasks, [task(f"long {n}", timeout_sec=50) for n in range(3)])


def _out_of_time(world: World) -> None:
    world.execute(clock=_HastyClock(world))


def _long_ones(world: World) -> None:
    add(world.tasks, [task(f"lasts {n}", "lasts") for n in range(2)])
    add(world.tasks, [retry("fails", "fails", max_retries=1)])


def _work(world: World) -> None:
    worker = Worker(threading.Event(), stays=False, extend_sec=EXTEND_SEC)
    runtime = world.runtime()
    settings = replace(runtime.settings, max_task_timeout=timedelta(hours=1))
    work(
        replace(runtime, settings=settings),
        ExecutionOptions(owner=DEAD, remaining=WORKER_REMAINING, concurrency=4),
        worker,
    )


SCENARIOS: Final = (
    Scenario(use_case="execute", name="a few tasks", prepare=_some, act=World.execute),
    Scenario(use_case="execute", name="many that are settled together", prepare=_plenty, act=World.execute),
    Scenario(use_case="execute", name="every kind of outcome", prepare=_all_kinds, act=World.execute),
    Scenario(use_case="execute", name="malformed documents", prepare=_malformed, act=World.execute),
    Scenario(use_case="execute", name="retries of a capped queue", prepare=_capped, act=World.execute),
    Scenario(use_case="execute", name="several queues, retries first", prepare=_several_queues, act=World.execute),
    Scenario(use_case="execute", name="no seat", prepare=_no_seat, act=World.execute),
    Scenario(use_case="execute", name="somebody was turned away", prepare=_knocked_meanwhile, act=World.execute),
    Scenario(use_case="execute", name="what cannot finish is given back", prepare=_late, act=_out_of_time),
    Scenario(use_case="execute", name="a claim whose answer is lost", prepare=_some, act=_blind),
    Scenario(use_case="work", name="tasks that outlast their leases", prepare=_long_ones, act=_work),
)
