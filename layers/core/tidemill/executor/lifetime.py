"""Times of an executor: its timeouts and pauses, and the lifetime that bounds its claims and leases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import Final, TypeAlias

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one execution, in seconds. The product uses the defaults; a test passes its own."""

    step_timeout_sec: float = 10.0  # of the operations of one step
    step_wait_sec: float = 0.5  # longest time between two steps, and between two claims without tasks
    executor_slot_timeout_sec: float = 5.0  # of one operation on the executor slots
    successor_timeout_sec: float = 2.0  # of the launch of a successor; the first call also creates its client
    answer_reserve_sec: float = 0.5  # time of an invocation that is reserved for its answer
    report_reserve_sec: float = 2.0  # time of an invocation that is reserved for its report
    final_flush_sec: float = 20.0  # limit of a stopping worker's last flushes; less than a supervisor's grace period
    cleanup_wait_sec: float = 1.5  # for interrupted functions at the end: coroutines clean up first

    slot_wait_sec: float = 1.0  # time that a claimed task waits for a slot before it is offered to other executors
    core_pause_sec: float = 0.2  # between two claims after one with tasks that lack a core
    core_offer_sec: float = 10.0  # time for which a task without a free core is left to other executors, at most
    process_retry_sec: float = 10.0  # time for which no process is started after a start failed
    shortest_postpone_sec: float = 15.0  # delay of a task whose process could not be started, at least
    longest_postpone_sec: float = 60.0  # and at most
    recovery_interval_sec: float = 10.0  # between two searches for unconfirmed claims, and tries of failed releases

    flush_sec: float = 0.2  # time after which an outcome is written, at the latest
    first_flush_pause_sec: float = 0.1  # between two flushes after a failure; it doubles
    longest_flush_pause_sec: float = 2.0  # up to this
    cancellation_poll_sec: float = 1.0  # between two reads of cancellation requests

    first_claim_pause_sec: float = 0.02  # between two claims in vain; it doubles
    longest_claim_pause_sec: float = 0.5  # up to this
    linger_poll_sec: float = 0.25  # between two claims while lingering
    stream_wait_ms: int = 100  # of one read of the change stream: the server rarely misses to answer it early
    linger_after_work_sec: float = 2.0  # after the last task, because tasks often arrive in groups
    linger_after_launch_sec: float = 1.5  # more than the wake debounce, or tasks enqueued in between would wait

    # Scans from the head find higher priorities, and tasks that became pending behind the position of the scan.
    full_look_interval_sec: float = 1.0  # between two scans from the head
    full_look_cost_ratio: float = 30.0  # they take at most the reciprocal of this as their share of the time
    cheap_full_look_sec: float = 0.005  # one that takes less is always made if a task is expected before the position
    dry_lanes_pause_sec: float = 0.5  # time for which lanes without due tasks are not scanned again
    draw_sec: float = 1.0  # time for which one draw rounds fractions of a slot

    prefetch_sec: float = 0.03  # work that a claim of short tasks prefetches, beyond the duration of the next claim
    rate_window_sec: float = 0.04  # shortest time to measure a rate, because tasks that start together end together


TIMING: Final = Timing()


def claim_reserve(settings: Settings) -> timedelta:
    """Return the remaining time that a claim requires: for the longest task, and for the report."""
    return settings.max_task_timeout + settings.margin


class Invocation:
    """Lifetime of a Lambda invocation: it ends *remaining* after now, and its leases end with it.

    It may claim while *reserve* is left, the time for the longest task and the report.

    Attributes:
        extend_sec: Seconds between two lease extensions; infinite if leases last for the whole lifetime.
        cooldown_sec: Seconds for which a released task is left to other executors.
        persists: The executor continues without tasks and without MongoDB.
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
        """Return the remaining time for tasks that have not started."""
        return self.remaining()

    def may_claim(self) -> bool:
        """Return whether a task that is claimed now can still finish."""
        return self.remaining() >= self._reserve

    def lease_until(self, now: datetime) -> datetime:
        """Return the end of a lease that is taken *now*: the invocation has certainly ended then."""
        return now + self.remaining() + LEASE_GRACE

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
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
        stepped_at: Time of its last step, on the monotonic clock; likewise.
    """

    def __init__(
        self,
        stop: Event,
        *,
        stays: bool = True,
        lease: timedelta = WORKER_LEASE,
        extend_sec: float = LEASE_EXTENSION_SEC,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop = stop
        self._lease = lease
        self.extend_sec = extend_sec
        self.cooldown_sec = lease.total_seconds()
        self.persists = stays
        self.running = 0
        self.error: TidemillError | None = None
        self.not_started: str | None = None
        self._monotonic = monotonic
        self.stepped_at = monotonic()

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
        """Store the status for other threads.

        Without *answered*, an absent *error* means nothing, because MongoDB was not asked.
        """
        self.running = running
        self.not_started = not_started
        self.stepped_at = self._monotonic()
        if answered or error is not None:
            self.error = error


Lifetime: TypeAlias = Invocation | Worker
