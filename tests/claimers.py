"""Claimers as executions make them, without an execution around them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.builders import lease
from tests.faults import heard
from tests.fixtures import ManualClock
from tidemill.executor.claimer import Claimer
from tidemill.executor.context import ExecutionContext, ExecutionOptions, Report, Runtime
from tidemill.executor.lifetime import WORKER_REMAINING, Worker
from tidemill.executor.retry_permits import RetryPermits
from tidemill.model import LANES, Malformed, QueueOptions, Task, TaskId
from tidemill.policy.scheduling import Lanes
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store import claims
from tidemill.store.connection import Tasks, open_tasks

LEASE = timedelta(minutes=2)


def a_claimer(
    tasks: Tasks,
    *,
    owner: str = "A",
    queues: Sequence[str] = (),
    avoided: Sequence[TaskId] = (),
    caps: RetryPermits | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    lanes: Lanes = LANES,
    options: Callable[[str], QueueOptions] | None = None,
    **choices: Any,
) -> Claimer:
    """A claimer with leases until two minutes after `T0`. Without *options* it serves all queues by *choices*."""
    same = QueueOptions(**choices)
    context = a_context(
        tasks, owner=owner, monotonic=monotonic, options=options or (lambda _: same), queues=queues, lanes=lanes
    )
    return Claimer(context, permits=caps or the_caps(tasks, owner=owner), avoided=lambda: avoided)


def the_caps(
    tasks: Tasks,
    *,
    owner: str = "A",
    lifetime: Worker | None = None,
    report: Report | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> RetryPermits:
    """The permits of one execution."""
    return RetryPermits(a_context(tasks, owner=owner, lifetime=lifetime, report=report, monotonic=monotonic))


def a_context(
    tasks: Tasks,
    *,
    owner: str,
    monotonic: Callable[[], float],
    lifetime: Worker | None = None,
    report: Report | None = None,
    options: Callable[[str], QueueOptions] = lambda _: QueueOptions(),
    queues: Sequence[str] = (),
    lanes: Lanes = LANES,
) -> ExecutionContext:
    """The context of an execution at `T0`."""
    runtime = Runtime(
        tasks=tasks,
        registry=Registry(),
        settings=Settings(),
        clock=ManualClock(),
        options=options,
        rng=random.Random(1),
        monotonic=monotonic,
    )
    return ExecutionContext(
        runtime=runtime,
        options=ExecutionOptions(owner=owner, remaining=WORKER_REMAINING, queues=queues, lanes=lanes),
        lifetime=lifetime or Worker(threading.Event(), lease=LEASE),
        report=Report() if report is None else report,
    )


class Rival(CommandListener):
    """Before each of the next *times* stamps of a client it takes the very same tasks, at most *most* of them."""

    def __init__(self, tasks: Tasks, now: datetime, *, times: int, most: int | None = None) -> None:
        self.times = times
        self._tasks = tasks
        self._now = now
        self._most = most

    def started(self, event: CommandStartedEvent) -> None:
        """Take the tasks of the stamp that is about to be sent."""
        for update in event.command.get("updates", ()) if self.times > 0 else ():
            if "lease" in update["u"].get("$set", {}):
                self.times -= 1
                ids = update["q"]["_id"]["$in"][: self._most]
                claims.take(self._tasks, ids, lease=lease(self._now, owner="rival"), now=self._now)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing is done about it."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing is done about it."""


@contextmanager
def beaten(tasks: Tasks, now: datetime, *, times: int, most: int | None = None) -> Iterator[Tasks]:
    """Yield *tasks* of a client with a `Rival`."""
    with heard(tasks.database, Rival(tasks, now, times=times, most=most)) as db:
        yield open_tasks(db)


def numbers(held: Sequence[Task | Malformed]) -> list[Any]:
    """The ``n`` of the payloads, in the order of the claim."""
    return [one.payload.get("n") for one in held if isinstance(one, Task)]


def holds(db: Database[Any]) -> int:
    """How many permits for retries of the default queue are out."""
    document = db["control"].find_one({"_id": "retries:default"})
    return sum(one["n"] for one in document["holds"]) if document else 0


def leased_retries(tasks: Tasks) -> int:
    """How many retries are under a lease."""
    return tasks.count_documents({"status": "processing", "lane": "retry"})
