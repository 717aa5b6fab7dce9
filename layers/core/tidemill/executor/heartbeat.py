"""The heartbeat of an execution: leases are extended, cancellation requests read, and task types declared again.

For a worker it also tells that the worker is alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tidemill.control import fleet
from tidemill.documents import id_key
from tidemill.errors import TidemillError
from tidemill.executor.context import ExecutionContext
from tidemill.executor.retry_permits import RetryPermits
from tidemill.model import Task, TaskId
from tidemill.runner.worker_thread import RunningTask
from tidemill.store import claims, tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    """Leased tasks whose leases were taken away, and ids of leased tasks whose cancellation was requested."""

    lost: Sequence[Task] = ()
    cancelled: Sequence[TaskId] = ()


class Heartbeat:
    """Does, at each beat, what is due beside the running tasks."""

    def __init__(
        self, context: ExecutionContext, *, permits: RetryPermits, find_leased: Callable[[], Sequence[Task]]
    ) -> None:
        self._context = context
        self._permits = permits
        self._find_leased = find_leased
        started, self._extend_sec = context.monotonic(), context.lifetime.extend_sec
        self._is_worker = math.isfinite(self._extend_sec)
        self._next_cancellation_poll_at = started + context.timing.cancellation_poll_sec
        self._next_extension_at = started + self._extend_sec
        self._next_report_at = started if self._is_worker else math.inf

    @property
    def next_beat_at(self) -> float:
        """Time of the next beat that does something for running tasks, on the monotonic clock."""
        return min(self._next_cancellation_poll_at, self._next_extension_at)

    def beat(self, running: Sequence[RunningTask], *, is_busy: bool) -> HeartbeatResult:
        """Do what is due. Functions in *running* whose tasks are lost or to be cancelled are asked to stop."""
        cancelled = self._poll_cancellations() if is_busy else ()
        lost = self._extend_leases()
        self._report_alive()
        self._declare_types()
        if cancelled or lost:
            requested = set(map(id_key, cancelled))
            for run in running:
                if id_key(run.task.id) in requested or any(run.task is task for task in lost):
                    run.cancel.set()
        return HeartbeatResult(lost=lost, cancelled=cancelled)

    def deregister(self) -> None:
        """Remove the worker from the fleet status."""
        if self._is_worker:
            with suppress(TidemillError):
                fleet.deregister(self._context.tasks.database, self._context.options.owner)

    def _poll_cancellations(self) -> Sequence[TaskId]:
        at = self._context.monotonic()
        if at < self._next_cancellation_poll_at:
            return ()
        self._next_cancellation_poll_at = at + self._context.timing.cancellation_poll_sec
        find = partial(tasks.find_cancel_requested, self._context.tasks, self._context.options.owner)
        return self._context.attempt(find, default=())

    def _extend_leases(self) -> Sequence[Task]:
        """Extend the leases if that is due, and return the lost tasks.

        A failure is repeated after a quarter of the interval.
        """
        at = self._context.monotonic()
        if at < self._next_extension_at:
            return ()
        now, leased = self._context.now(), self._find_leased()
        extend = partial(claims.extend, self._context.tasks, leased, until=self._context.lifetime.lease_until(now))
        lost = self._context.attempt(extend, default=None)
        if lost is None:
            self._next_extension_at = at + self._extend_sec / 4
            return ()
        self._next_extension_at = at + self._extend_sec
        self._permits.renew(now=now)
        return lost

    def _report_alive(self) -> None:
        """Tell operators that the worker is alive, as often as leases are extended. Lambda invocations do not.

        No decision depends on it, so a failed write waits for the next beat.
        """
        at, context = self._context.monotonic(), self._context
        if at < self._next_report_at:
            return
        self._next_report_at = at + self._extend_sec
        now = context.now()
        subscription = context.runtime.subscription(context.options)
        with suppress(TidemillError):
            fleet.heartbeat(
                context.tasks.database,
                context.options.owner,
                subscription,
                until=context.lifetime.lease_until(now),
                now=now,
            )

    def _declare_types(self) -> None:
        """Declare the task types again if that is due. Claims and runs do not depend on it."""
        declarer = self._context.runtime.declarer
        if declarer is not None:
            with suppress(TidemillError):
                declarer.declare_if_due(now=self._context.now())
