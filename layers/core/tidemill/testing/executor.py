"""An executor in this process, on a clock that stands still while it works."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event
from typing import Any, Final

from pymongo.database import Database

from tidemill.admission import Limits
from tidemill.control import OptionsReader
from tidemill.executor import Order, Report, Runtime, Worker, work
from tidemill.model import Task
from tidemill.policies import QueueOptions
from tidemill.registry import Registry
from tidemill.requests import MAX_TIMEOUT_SEC
from tidemill.settings import Settings
from tidemill.store import open_tasks
from tidemill.testing.chance import Longest
from tidemill.testing.clock import ManualClock

SETTINGS: Final = Settings(linger=timedelta(0), max_task_timeout=timedelta(seconds=MAX_TIMEOUT_SEC))
"""It leaves as soon as it ran dry, and since it has no end, no timeout is too long for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Runs what is due in *queues* (none are all), *concurrency* functions at a time, until *stop* is set.

    A *timeout* holds for every task, whatever it or its registration says.
    """

    db: Database[Any]
    registry: Registry
    queues: Sequence[str] = ()
    concurrency: int = 1
    timeout: timedelta | None = None
    stop: Event = field(default_factory=Event)

    def run(self, at: datetime, *, options: Callable[[str], QueueOptions] | None = None) -> Report:
        """Run what is due at *at*, and what becomes due at that very time meanwhile; return the counts.

        *options* tells what a queue chooses, where that is not to be read from the database.
        """
        runtime = _Runtime(
            tasks=open_tasks(self.db),
            registry=self.registry,
            settings=SETTINGS,
            clock=ManualClock(at),
            options=options or OptionsReader(self.db).options,
            rng=Longest(),
            allowed=self.timeout,
        )
        worker = Worker(self.stop, stays=False)
        order = Order(
            owner=f"test-{uuid.uuid4().hex}",
            remaining=worker.remaining(),
            queues=tuple(self.queues),
            concurrency=self.concurrency,
        )
        return work(runtime, order, worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime(Runtime):
    allowed: timedelta | None

    def limits(self, task: Task) -> Limits:
        limits = Runtime.limits(self, task)
        return limits if self.allowed is None else replace(limits, timeout=self.allowed, max_timeout=self.allowed)
