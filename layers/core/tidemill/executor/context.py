"""The context of one execution: everything that its parts share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from tidemill.errors import TidemillError
from tidemill.executor.lifetime import Lifetime
from tidemill.executor.options import ExecutionOptions, QueueChoices, Runtime
from tidemill.executor.report import Report
from tidemill.executor.timing import Timing
from tidemill.store.connection import Tasks

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext:
    """Runtime, options, lifetime and report of one execution, which all of its parts share."""

    runtime: Runtime
    options: ExecutionOptions
    lifetime: Lifetime
    report: Report = field(default_factory=Report)

    @property
    def tasks(self) -> Tasks:
        """The collection of tasks."""
        return self.runtime.tasks

    @property
    def timing(self) -> Timing:
        """The times of the execution."""
        return self.runtime.timing

    def now(self) -> datetime:
        """Return the time, on the clock of the database."""
        return self.runtime.clock.now()

    def monotonic(self) -> float:
        """Return the seconds of the monotonic clock."""
        return self.runtime.monotonic()

    def draw(self) -> float:
        """Return a random number in [0, 1)."""
        return self.runtime.rng.random()

    def lease_until(self) -> datetime:
        """Return the end of a lease that is taken now.

        The time is read now, because a time read before a slow operation would end the lease before the invocation.
        """
        return self.lifetime.lease_until(self.now())

    def may_claim(self) -> bool:
        """Return whether a task that is claimed now can still finish here."""
        return self.lifetime.may_claim() and not self.report.spent

    def choose(self, queue: str) -> QueueChoices:
        """Return the choices for *queue*.

        Raises:
            UnavailableError: MongoDB did not return the options of the queue.
        """
        return self.runtime.queue_choices(queue, self.options)

    def attempt(self, operation: Callable[[], _T], *, default: _T) -> _T:
        """Return the result of *operation*. After an error of MongoDB count the error and return *default*."""
        try:
            return operation()
        except TidemillError:
            self.report["errors"] += 1
            return default
