"""Queues that are filled with tasks which cost nothing, and emptied as Tidemill does it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from pymongo.database import Database

from tests.builders import document
from tidemill import Queue
from tidemill.clock import ServerClock
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import execute
from tidemill.model import Lease, Malformed, Run, Succeeded, Task
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store import claims, settle
from tidemill.store.connection import open_tasks
from tidemill.store.settle import Settlement
from tools.bench.bare import HEAD, LEASE, RUN_MS, open_plain

BATCH: Final = 100
LIFE: Final = timedelta(minutes=10)
AT_ONCE: Final = 1000
"""So many documents are sent with one insert."""


def payload(n: int) -> dict[str, Any]:
    """Return what the *n*-th task of a bench carries: a webhook's."""
    return {"url": "https://example.org/hooks/17", "body": {"n": n, "note": "x" * 100}}


def this_second() -> datetime:
    """Return a time by which all that is filled in is due."""
    return datetime.now(UTC).replace(microsecond=0)


def fill(db: Database[Any], count: int, **fields: Any) -> None:
    """Insert *count* tasks that have been due for five seconds, all with the same *fields*."""
    due = this_second() - timedelta(seconds=5)
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        open_plain(db).insert_many([document(due, payload=payload(n), **fields) for n in numbers])


def enqueue(db: Database[Any], count: int) -> None:
    """Have *count* tasks taken in by the client, up to a thousand at once."""
    queue = Queue(db)
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        queue.enqueue_many([{"name": "noop", "payload": payload(n)} for n in numbers])


class Mover:
    """Claims and settles as an executor does, without running anything in between."""

    def __init__(self, db: Database[Any], *, now: datetime) -> None:
        self._tasks = open_tasks(db)
        self._now = now
        self._scan = HEAD
        self._rng = random.Random(1)

    def claim(self, limit: int) -> Sequence[Task | Malformed]:
        """Claim the next *limit* tasks and return them."""
        lease = Lease(token=uuid.uuid4().hex, owner="A", expires_at=self._now + LEASE)
        claim = claims.claim(self._tasks, self._scan, limit=limit, lease=lease, now=self._now, rng=self._rng)
        self._scan = claim.scan
        return claim.tasks

    def settle(self, claimed: Sequence[Task | Malformed]) -> None:
        """Settle all of *claimed* as done."""
        settle.settle(self._tasks, done(claimed, now=self._now), now=self._now)


class Moves(Protocol):
    """Claims and settles: `Mover`, or the bare driver's."""

    def claim(self, limit: int, /) -> Sequence[Any]:
        """Claim the next *limit* tasks and return them."""

    def settle(self, claimed: Any, /) -> None:
        """Settle all of *claimed* as done."""


def drain(mover: Moves, limit: int) -> int:
    """Claim and settle batches of *limit* until nothing is due; return how many tasks that were."""
    count = 0
    while claimed := mover.claim(limit):
        mover.settle(claimed)
        count += len(claimed)
    return count


def done(claimed: Sequence[Task | Malformed], *, now: datetime) -> list[Settlement]:
    """Return how all of *claimed* are settled, as runs that succeeded."""
    run = Run(status="succeeded", started_at=now, duration=timedelta(milliseconds=RUN_MS), note="")
    return [Settlement(task=task, outcome=Succeeded(result=None), run=run) for task in claimed]


def nothing(_payload: dict[str, Any]) -> None:
    """Do nothing, as a task function."""


def runtime(db: Database[Any], function: Callable[..., object] = nothing, **choices: Any) -> Runtime:
    """Return what an executor of *db* is given, whose ``noop`` is *function*; *choices* replace fields of it."""
    registry = Registry()
    registry.task("noop")(function)
    given: dict[str, Any] = {
        "tasks": open_tasks(db),
        "registry": registry,
        "settings": Settings(linger=timedelta(0)),
        "clock": ServerClock(db),
        "options": OptionsReader(db).options,
    }
    return Runtime(**given | choices)


def run(runtime: Runtime, *, concurrency: int | None = None) -> Report:
    """Return the report of an executor that worked until nothing was left."""
    return execute(runtime, ExecutionOptions(owner="A", remaining=LIFE, concurrency=concurrency, batch_size=BATCH))
