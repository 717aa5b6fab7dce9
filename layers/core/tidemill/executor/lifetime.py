"""Lifetime of an executor, and its consequences: whether it may claim, and the end of its leases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from typing import Final, Protocol

from tidemill.errors import TidemillError
from tidemill.settings import Settings

LEASE_GRACE: Final = timedelta(seconds=5)
"""Time by which a lease outlives its invocation, so that no running invocation loses a task."""

WORKER_LEASE: Final = timedelta(seconds=60)
"""Lease of a worker, counted from its last extension."""

LEASE_EXTENSION_SEC: Final = 20.0
"""Seconds between two extensions of a worker's leases; a quarter of that after a failed one."""

WORKER_REMAINING: Final = timedelta(days=1)
"""Remaining time of a worker, at any time: longer than any task."""


def claim_reserve(settings: Settings) -> timedelta:
    """Return the remaining time that a claim requires: for the longest task, and for the report."""
    return settings.max_task_timeout + settings.margin


class Lifetime(Protocol):
    """Lifetime of an executor."""

    @property
    def extend_sec(self) -> float:
        """Seconds between two lease extensions; infinite if leases last for the whole lifetime."""

    @property
    def cooldown_sec(self) -> float:
        """Seconds for which a released task is left to other executors."""

    @property
    def persists(self) -> bool:
        """Return whether the executor continues without tasks and without MongoDB."""

    def remaining(self) -> timedelta:
        """Return the remaining time."""

    def remaining_for_tasks(self) -> timedelta:
        """Return the remaining time for tasks that have not started."""

    def may_claim(self) -> bool:
        """Return whether a task that is claimed now can still finish."""

    def lease_until(self, now: datetime) -> datetime:
        """Return the end of a lease that is taken or extended *now*."""

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end."""

    def record_status(
        self, *, running: int, error: TidemillError | None, answered: bool, not_started: str | None = None
    ) -> None:
        """Receive periodic status: the number of running functions and the current error.

        Without *answered*, an absent *error* means nothing, because MongoDB was not asked. *not_started* is the
        reason why the first function without a thread or process did not start.
        """


class Invocation:
    """Lifetime of a Lambda invocation: it ends *remaining* after now, and its leases end with it.

    It may claim while *reserve* is left, the time for the longest task and the report.
    """

    extend_sec = math.inf
    cooldown_sec = math.inf
    persists = False

    def __init__(self, remaining: timedelta, *, reserve: timedelta, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._deadline = monotonic() + remaining.total_seconds()
        self._reserve = reserve

    def remaining(self) -> timedelta:
        """Return the time until the platform ends the invocation; negative afterwards."""
        return timedelta(seconds=self._deadline - self._monotonic())

    def remaining_for_tasks(self) -> timedelta:
        """Return the time until the platform ends the invocation."""
        return self.remaining()

    def may_claim(self) -> bool:
        """Return whether the longest task can still finish."""
        return self.remaining() >= self._reserve

    def lease_until(self, now: datetime) -> datetime:
        """Return a time at which this invocation has certainly ended."""
        return now + self.remaining() + LEASE_GRACE

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(min(seconds, max(self.remaining().total_seconds(), 0.0)))

    def record_status(
        self, *, running: int, error: TidemillError | None, answered: bool, not_started: str | None = None
    ) -> None:
        """Do nothing, because an invocation reports at its end."""


class Worker:
    """Lifetime of a worker: it runs until *stop* is set, then finishes its tasks. Its leases are short and extended.

    Args:
        stop: Any thread may set it.
        stays: Wait for tasks; otherwise exit without due tasks, as an invocation does.
        lease: Duration of a lease without extension.
        extend_sec: Seconds between two extensions. The rest of the lease is the longest outage that loses no task.

    Attributes:
        running: Number of running functions; other threads may read it.
        error: The current error, as far as known; likewise.
        not_started: Reason why the first function without a thread or process did not start; likewise.
    """

    def __init__(
        self,
        stop: Event,
        *,
        stays: bool = True,
        lease: timedelta = WORKER_LEASE,
        extend_sec: float = LEASE_EXTENSION_SEC,
    ) -> None:
        self._stop = stop
        self._lease = lease
        self.extend_sec = extend_sec
        self.cooldown_sec = lease.total_seconds()
        self.persists = stays
        self.running = 0
        self.error: TidemillError | None = None
        self.not_started: str | None = None

    def remaining(self) -> timedelta:
        """Return a time longer than any task, so that started tasks may finish."""
        return WORKER_REMAINING

    def remaining_for_tasks(self) -> timedelta:
        """Return the same, or zero after a request to stop."""
        return WORKER_REMAINING if self.may_claim() else timedelta(0)

    def may_claim(self) -> bool:
        """Return whether no stop was requested."""
        return not self._stop.is_set()

    def lease_until(self, now: datetime) -> datetime:
        """Return the time at which other executors may take over without another extension."""
        return now + self._lease

    def pause(self, seconds: float) -> None:
        """Wait, at most until a stop is requested."""
        self._stop.wait(seconds)

    def record_status(
        self, *, running: int, error: TidemillError | None, answered: bool, not_started: str | None = None
    ) -> None:
        """Store the status for other threads."""
        self.running = running
        self.not_started = not_started
        if answered or error is not None:
            self.error = error
