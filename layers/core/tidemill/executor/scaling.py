"""Launches of executors: for new tasks (wake), for a successor, and by an executor that cannot keep up (scale out)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from threading import Event, Thread
from typing import Final

from tidemill.control.fleet import ExecutorSlots
from tidemill.errors import TidemillError
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.store import counts

WAKE_DEBOUNCE_SEC: Final = 1.0
"""Seconds after a wake without another wake. A launched executor lingers for longer than this.

The same holds after a failed wake, even if executors linger for less: each try may delay its caller.
"""

WAKE_TIMEOUT_SEC: Final = 0.3
"""Seconds that a wake may add to an enqueue, whether it succeeds or not."""

LAUNCH_IN_PROGRESS: Final = "the call before this one has not ended"
LAUNCH_UNANSWERED: Final = "no answer in time"
LAUNCH_INTERRUPTED: Final = "the call broke off"
NO_LAUNCH_THREAD: Final = "no thread could be started"


class LaunchError(TidemillError):
    """No executor was started. The message has the reason, without an address."""


class Debounce:
    """Decides the times of wakes. It is pure; times are readings of the monotonic clock.

    A started executor runs or lingers for longer than *quiet_sec*, so it finds every task enqueued until then. Every
    other request is owed a wake until an executor is known to have started. After a try without a known start, no
    wake is due for at least a second.
    """

    def __init__(self, *, quiet_sec: float = WAKE_DEBOUNCE_SEC) -> None:
        self._quiet_sec = quiet_sec
        self._tried_at: float | None = None
        self._started_at: float | None = None
        self._requested_at: float | None = None

    def request(self, at: float) -> None:
        """Record a request for an executor."""
        if self._started_at is None or at - self._started_at >= self._quiet_sec:
            self._requested_at = at

    def is_due(self, at: float) -> bool:
        """Return whether to wake an executor now."""
        if self._requested_at is None:
            return False
        return self._tried_at is None or at - self._tried_at >= max(self._quiet_sec, WAKE_DEBOUNCE_SEC)

    def record_try(self, at: float) -> None:
        """Record a try before its result is known."""
        self._tried_at = at

    def record_start(self, at: float) -> None:
        """Record that the try that began *at* that time started an executor; this may be known late."""
        self._started_at = at
        if self._tried_at is not None and self._tried_at <= at:
            self._tried_at = None  # the try succeeded
        if self._requested_at is not None and self._requested_at - at < self._quiet_sec:
            self._requested_at = None


class Launcher:
    """Starts executors by calling *start* on a daemon thread, one call at a time, with a bounded wait for each.

    *start* raises the error of this module on failure. A thread that is frozen with its container continues later.

    Attributes:
        last_error: Reason why the last call is not known to have started an executor; ``None`` if it is.
        started_at: Begin of the last call that started an executor, on the monotonic clock.
    """

    def __init__(
        self,
        start: Callable[[], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[Event, float], bool] = Event.wait,
    ) -> None:
        self._start = start
        self._monotonic = monotonic
        self._wait = wait
        self._call: _Call | None = None
        self.last_error: str | None = None
        self.started_at: float | None = None

    def launch(self, count: int = 1, *, timeout_sec: float) -> bool:
        """Start *count* executors. Return whether all started within *timeout_sec*; else `last_error` has the reason.

        A call that takes longer continues, and `poll` reads its result.
        """
        until = self._monotonic() + timeout_sec
        if self._call is not None:
            self._wait(self._call.ended, timeout_sec)
        self.poll()
        if self._call is not None:
            self.last_error = LAUNCH_IN_PROGRESS
            return False
        self._call = _Call(self._start, count, began=self._monotonic())
        try:
            self._call.thread.start()
        except RuntimeError:
            self._call, self.last_error = None, NO_LAUNCH_THREAD
            return False
        self._wait(self._call.ended, max(until - self._monotonic(), 0.0))
        self.last_error = LAUNCH_UNANSWERED
        self.poll()
        return self.last_error is None

    def poll(self) -> str | None:
        """Read the result of the last call if it has ended, and return `last_error`."""
        if self._call is not None and self._call.ended.is_set():
            call, self._call = self._call, None
            self.last_error = call.error
            self.started_at = call.began if call.started else self.started_at
        return self.last_error


class _Call:
    def __init__(self, start: Callable[[], None], count: int, *, began: float) -> None:
        self._start = start
        self._count = count
        self.began = began
        self.started = 0
        self.error: str | None = LAUNCH_INTERRUPTED
        self.ended = Event()
        self.thread = Thread(target=self._run, name="tidemill-launch", daemon=True)

    def _run(self) -> None:
        try:
            for _ in range(self._count):
                self._start()
                self.started += 1
            self.error = None
        except LaunchError as error:
            self.error = str(error)
        finally:
            self.ended.set()


class Waker:
    """Wakes an executor from a container that enqueues tasks, at most once in *quiet_sec*.

    After a failed wake the minimum is one second, if *quiet_sec* is less.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        quiet_sec: float = WAKE_DEBOUNCE_SEC,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._monotonic = monotonic
        self._debounce = Debounce(quiet_sec=quiet_sec)

    def wake(self, *, timeout_sec: float = WAKE_TIMEOUT_SEC) -> str | None:
        """Wake an executor for tasks that were just stored. Return the reason if none may start, or ``None``."""
        self._poll_launcher()
        self._debounce.request(self._monotonic())
        return self.retry_pending_wake(timeout_sec=timeout_sec)

    def retry_pending_wake(self, *, timeout_sec: float = WAKE_TIMEOUT_SEC) -> str | None:
        """Wake an executor if an earlier request still needs it. Return the reason if none may start, or ``None``."""
        self._poll_launcher()
        now = self._monotonic()
        if not self._debounce.is_due(now):
            return None
        self._debounce.record_try(now)
        self._launcher.launch(timeout_sec=timeout_sec)
        self._poll_launcher()
        return self._launcher.last_error

    def _poll_launcher(self) -> None:
        self._launcher.poll()
        if self._launcher.started_at is not None:
            self._debounce.record_start(self._launcher.started_at)


RATE_MEASURE_SEC: Final = 1.0
"""Seconds over which the progress of an executor is measured before it scales out."""

SCALE_OUT_INTERVAL_SEC: Final = 5.0
"""Seconds between two decisions to scale out. Must exceed a start, so that launched executors are counted."""

MAX_CAPACITY: Final = 50_000
"""Tasks that are counted as the capacity of one executor, at most."""

_PROGRESS_COUNTS: Final = ("done", "retried", "failed", "cancelled", "quarantined")


def count_progress(report: Report) -> int:
    """Return the number of settled tasks, without snoozes and releases, which may recur for ever."""
    return sum(report[name] for name in _PROGRESS_COUNTS)


def count_wanted(*, due: int, capacity: int, free_slots: int) -> int:
    """Return the number of executors to launch if each runs *capacity* of the *due* tasks in its lifetime."""
    return min(free_slots, math.ceil(max(due, 0) / capacity))


class ScaleOut:
    """Launches executors for one execution, which claims until *claims_until* on the monotonic clock."""

    def __init__(
        self,
        runtime: Runtime,
        options: ExecutionOptions,
        *,
        executor_slots: ExecutorSlots,
        launcher: Launcher,
        claims_until: float,
    ) -> None:
        self._runtime = runtime
        self._options = options
        self._slots = executor_slots
        self._launcher = launcher
        self._claims_until = claims_until
        self._claim_sec = claims_until - runtime.monotonic()
        self._last_call_at = -math.inf
        self._measured_since = 0.0
        self._initial_progress = 0
        self._next_decision_at = 0.0

    def launch_if_behind(self, queues: Iterable[str], *, report: Report, slots: int) -> None:
        """Launch executors for the due tasks of *queues* beyond the capacity of this execution, whose *slots* are busy.

        Most calls cost nothing. Every 5 s a call costs one command, and one per queue while executor slots are free.
        The capacity of a launched executor is the recent rate of this one, and at least one task per slot.
        """
        at, done = self._runtime.monotonic(), count_progress(report)
        if at - self._last_call_at > RATE_MEASURE_SEC:  # the rate of a time with less to do is no measure
            self._measured_since, self._initial_progress, self._next_decision_at = at, done, at + RATE_MEASURE_SEC
        self._last_call_at = at
        if at < self._next_decision_at:
            return
        self._next_decision_at = at + SCALE_OUT_INTERVAL_SEC
        if not done and self._options.source == "backlog":
            return  # it was launched for a backlog itself, and has settled nothing yet
        rate = (done - self._initial_progress) / (at - self._measured_since)
        count = 0
        try:
            count = self._count_wanted(
                queues,
                own=math.floor(min(rate * max(self._claims_until - at, 0.0), MAX_CAPACITY)),
                capacity=math.floor(min(max(rate * self._claim_sec, slots), MAX_CAPACITY)),
                now=self._runtime.clock.now(),
            )
        except TidemillError:
            report["errors"] += 1
        if count:
            self._launcher.launch(count, timeout_sec=0)

    def _count_wanted(self, queues: Iterable[str], *, own: int, capacity: int, now: datetime) -> int:
        free_slots = self._slots.count_free(now=now)
        due, enough = 0, own + capacity * free_slots
        for queue in queues if free_slots else ():
            due += self._count_due(queue, now=now, limit=enough - due)
            if due >= enough:
                break
        return count_wanted(due=due - own, capacity=capacity, free_slots=free_slots)

    def _count_due(self, queue: str, *, now: datetime, limit: int) -> int:
        """Return the number of tasks of *queue* that another executor could claim, at most *limit* + 1."""
        choices = self._runtime.queue_choices(queue, self._options)
        is_capped = choices.max_in_flight_retries is not None
        lanes = tuple(lane for lane in self._options.lanes if lane == "fresh" or not is_capped)
        if choices.paused or not lanes:
            return 0
        return counts.count_due(self._runtime.tasks, queue, now=now, lanes=lanes, limit=limit)
