"""What runs by itself: executors, with and without a cap on retries, reclaim, and archive with a bucket."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from tests.builders import MINUTE, add, document
from tests.buried import failed, letter
from tests.keepers import lost
from tidemill import Fail, Retry, Snooze, TaskContext
from tidemill.control.fleet import ExecutorSlots
from tidemill.control.queues import OptionsReader
from tidemill.dead_letters.archive import ArchiveContext, ArchiveError, archive
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import UnavailableError
from tidemill.executor.context import ExecutionOptions, Runtime
from tidemill.executor.invocation import run_invocation
from tidemill.policy.retry import DEFAULT, resolve_policy
from tidemill.reclaim import ReclaimContext, reclaim
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store.connection import open_tasks
from tools.chaos.failures.cases.case import Case, Effect, share
from tools.chaos.failures.world import World

HOUR: Final = timedelta(hours=1)
LONG: Final = timedelta(seconds=60)
SHORT: Final = timedelta(seconds=0.8)
"""An invocation that gives up soon where it gets nothing done."""

TENTH: Final = timedelta(seconds=0.1)
PRESSED: Final = Settings(linger=timedelta(0), max_task_timeout=TENTH, task_timeout=TENTH, margin=TENTH)
"""Where little time is left: a function of a busy machine may run out of it, and its task is retried."""

UNHURRIED: Final = replace(PRESSED, max_task_timeout=timedelta(seconds=10), task_timeout=timedelta(seconds=10))
OWNER: Final = "A"
WELL: Final = 6
"""Tasks that succeed: enough to be settled by one statement."""


def executed(world: World) -> dict[str, Any]:
    """Run an invocation of owner ``A``, as its handler does."""
    is_pressed = world.is_hasty and not world.is_well
    runtime = Runtime(
        tasks=open_tasks(world.db),
        registry=_registry(world),
        settings=PRESSED if is_pressed else UNHURRIED,
        clock=world.clock,
        options=OptionsReader(world.db).options,
        timing=world.timing,
        rng=random.Random(7),
    )
    order = ExecutionOptions(owner=OWNER, remaining=SHORT if is_pressed else LONG, concurrency=4)
    report = run_invocation(
        runtime,
        order,
        executor_slots=ExecutorSlots(world.db, limit=5),
        launcher=None,
    )
    if report["unknown"]:
        raise UnavailableError("not confirmed")
    return report.as_dict()


def reclaimed(world: World, *, dead_owner: str | None = OWNER) -> dict[str, int]:
    """Reclaim, and what ``A`` held with it."""
    reclaim_context = ReclaimContext(
        tasks=open_tasks(world.db),
        clock=world.clock,
        policy=lambda task: resolve_policy(task, registered=None, deployment=DEFAULT),
        options=OptionsReader(world.db).options,
        adopt_as="well",
        rng=random.Random(7),
        batch_timeout_sec=world.patience_sec,
        batch_timeout_after_error_sec=world.patience_sec,
    )
    return reclaim(reclaim_context, until=time.monotonic() + LONG.total_seconds(), dead_owner=dead_owner)


def archived(world: World) -> Any:
    """Archive, as its handler does."""
    archives = ArchiveContext(
        tasks=open_tasks(world.db),
        dead=open_tasks(world.db, DEAD_LETTERS),
        clock=world.clock,
        task_retention=timedelta(days=7),
        put=world.shelf.put,
    )
    try:
        return archive(archives, until=time.monotonic() + LONG.total_seconds())
    except ArchiveError as error:
        raise error.errors[0] from None


def go_on(world: World) -> None:
    """Run the next ticks, as the platform does after a failure: what A held is reclaimed, then all is worked off."""
    world.clock.move(10 * MINUTE)
    for _ in range(2):
        reclaimed(world)
        world.clock.move(MINUTE)  # past the jitter of a loss
        executed(world)
        archived(world)


def _registry(world: World) -> Registry:
    registry = Registry()

    def named(name: str, ends: Exception | None) -> None:
        def function(_payload: dict[str, Any], ctx: TaskContext) -> None:
            world.ran.append(f"{name} {ctx.task_id}")
            if ends is not None:
                raise ends

        function.__qualname__ = name
        registry.task(name)(function)

    named("well", None)
    named("again", Retry("not yet", after=HOUR))
    named("fails", Fail("no"))
    named("later", Snooze(HOUR))
    return registry


def _one_of_each(world: World) -> None:
    now = world.clock.now()
    tasks = [document(now, name="well", payload={"n": n}) for n in range(WELL)]
    tasks += [document(now, name=name) for name in ("again", "fails", "later")]
    world.kept["ids"] = add(open_tasks(world.sound), tasks)


def _capped(world: World) -> None:
    now = world.clock.now()
    world.sound["queues"].insert_one({"_id": "default", "max_in_flight_retries": 2})
    tasks = [
        document(now, name="well", lane="retry", attempts=1, payload={"n": n}, attempt_log=[_failure(now)])
        for n in range(3)
    ]
    world.kept["ids"] = add(open_tasks(world.sound), tasks)


def _failure(now: Any) -> dict[str, Any]:
    return {"attempt": 1, "status": "retried", "started_at": now, "duration_ms": 1, "note": "x"}


def _ended(world: World) -> Effect:
    tasks = world.sound["tasks"]
    ended = tasks.count_documents({"name": "well", "status": "done"})
    ended += tasks.count_documents({"name": "again", "attempts": 1, "status": "pending", "lane": "retry"})
    ended += tasks.count_documents({"name": "fails", "status": "failed"})
    ended += world.sound["tasks_dlq"].count_documents({"name": "fails"})
    ended += tasks.count_documents(
        {"name": "later", "attempts": 0, "status": "pending", "next_retry_at": {"$ne": None}}
    )
    return share(ended, len(world.kept["ids"]))


def _lost_and_stray(world: World) -> None:
    now = world.clock.now()
    held = {"token": "t", "owner": OWNER, "expires_at": now + MINUTE}
    foreign = {"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}
    world.kept["ids"] = add(
        open_tasks(world.sound),
        [
            lost(now, name="well"),
            lost(now, name="well", crashes=1, attempts=1),
            lost(now, name="well", lease=None),
            document(now, name="well", status="processing", attempts=1, lease=held),
            document(now, name="well", expires_at=now),
            dict(foreign),
            {"status": "pending", "payload": "no"},
        ],
    )


def _swept(world: World) -> Effect:
    tasks = world.sound["tasks"]
    swept = tasks.count_documents({"status": "pending", "due_at": {"$type": "date"}, "lease": None})
    swept += tasks.count_documents({"status": "failed"})
    return share(swept - 1, len(world.kept["ids"]) - 1)  # that which has expired looks like any other before


def _worked_off(world: World) -> Effect:
    done = world.sound["tasks"].count_documents({"status": "done"})
    return share(done + world.sound["tasks_dlq"].count_documents({}), len(world.kept["ids"]))


def _failed_and_dead(world: World) -> None:
    now = world.clock.now()
    once: dict[str, Any] = {"attempts": 1, "max_retries": 0}
    tasks = add(open_tasks(world.sound), [failed(now, name="well", payload={"n": n}, **once) for n in range(3)])
    marks: dict[str, Any] = {"redrive_started_at": now - MINUTE, "redrive_due_at": now, "redrive_token": "t"}
    letters = [letter(now - HOUR, _id="back", name="well", **marks), letter(now - HOUR, _id="dead", name="well")]
    add(open_tasks(world.sound, DEAD_LETTERS), letters)
    world.kept["ids"] = [*tasks, "back", "dead"]


def _archived(world: World) -> Effect:
    dead = world.sound["tasks_dlq"]
    moved = 3 - world.sound["tasks"].count_documents({"status": "failed"})
    exported = dead.count_documents({"archived_at": {"$ne": None}})
    redriven = dead.count_documents({"redriven_at": {"$ne": None}})
    return share(moved + exported + redriven, 3 + 5 + 1)


def _ids(world: World) -> list[Any]:
    return list(world.kept["ids"])


def _has_errors(report: dict[str, Any]) -> bool:
    return bool(report["errors"])


def _phased(command: str, earlier: Sequence[str]) -> str:
    """Tell commands of an executor apart by whether it has claimed anything yet."""
    return f"{command} later" if "update tasks (stamp)" in earlier else command


_TICK: Final[dict[str, Any]] = {"is_atomic": False, "accepted": _ids, "again": go_on, "is_at_rest": True}
_TELLS: Final[dict[str, Any]] = {"tells_of_a_rest": _has_errors}

CASES: Final = (
    Case(name="execute", prepare=_one_of_each, run=executed, effect=_ended, label=_phased, **_TICK, **_TELLS),
    Case(name="execute, capped", prepare=_capped, run=executed, effect=_ended, label=_phased, **_TICK, **_TELLS),
    Case(
        name="reclaim", prepare=_lost_and_stray, run=reclaimed, effect=_swept, at_last=_worked_off, **_TICK, **_TELLS,
    ),
    Case(name="archive", prepare=_failed_and_dead, run=archived, effect=_archived, **_TICK),
)  # fmt: skip
