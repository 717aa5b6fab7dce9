"""The slots of one execution.

A function that runs past its timeout is abandoned: its slot is given up with its thread, a new one takes the
place, and whatever the old one still returns is thrown away.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from tidemill.conclusions import Conclusion, Coroutines, NotStarted, conclude
from tidemill.errors import IsolationError
from tidemill.isolation import IsolatedRun, Isolation
from tidemill.model import Task, TaskId
from tidemill.registry import TaskContext, TaskType
from tidemill.slots.leftovers import LEFTOVERS
from tidemill.slots.running import Ended, Running
from tidemill.slots.slot import Slot

PATIENCE_SEC: Final = 1.0
"""How long a coroutine that was cancelled has for its cleaning up, before it is interrupted."""

NO_THREAD: Final = "no thread could be started"
"""Why a function did not start that found no slot."""

_LOOK_SEC: Final = 0.05


class Slots:
    """Up to *size* functions at a time. Used from one thread, which is never a slot.

    With an *isolation*, what asks for it and what is suspected of having killed a worker runs there, and a slot only
    waits for it.
    """

    def __init__(
        self, size: int, *, monotonic: Callable[[], float] = time.monotonic, isolation: Isolation | None = None
    ) -> None:
        self._size = size
        self._monotonic = monotonic
        self._isolation = isolation
        self._outbox: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._idle: list[Slot] = []
        self._busy: dict[Running, Slot] = {}
        self._threadless: set[Running] = set()
        self._abandoned: list[Slot] = []
        self._cancelled: list[tuple[float, Slot]] = []

    @property
    def size(self) -> int:
        """How many functions may run at a time."""
        return self._size

    @property
    def free(self) -> int:
        """How many more may be started now."""
        return self._size - len(self._busy) - len(self._threadless)

    @property
    def running(self) -> list[Running]:
        """What has been started and has not ended."""
        return [*self._busy, *self._threadless]

    def isolates(self, task: Task, task_type: TaskType) -> bool:
        """Tell whether *task* would run in a process of its own."""
        return self._isolation is not None and (task_type.isolate or task.crashes > 0)

    def start(
        self, task: Task, task_type: TaskType, *, timeout: timedelta, is_last_attempt: bool, now: datetime
    ) -> None:
        """Run the function on a free slot; *now* is the start as the execution log tells it.

        Where no thread can be had for it, it ends at once as `NotStarted`.
        """
        started = self._monotonic()
        cancel = threading.Event()
        ctx = TaskContext(
            task_id=task.id,
            attempt=task.attempts,
            is_last_attempt=is_last_attempt,
            deadline=started + timeout.total_seconds(),
            correlation_id=task.correlation_id,
            traceparent=task.traceparent,
            _cancelled=cancel,
        )
        isolation = self._isolation if self.isolates(task, task_type) else None
        running = Running(
            task=task, ctx=ctx, started_at=now, started=started, cancel=cancel, is_isolated=isolation is not None
        )
        if isolation is None:
            work = functools.partial(_run, running, task_type)
        else:
            work = functools.partial(_run_isolated, isolation, running, timeout)
        slot = self._idle_or_new()
        if slot is None:
            self._threadless.add(running)
            self._outbox.put(Ended(running=running, duration=timedelta(0), conclusion=NotStarted(NO_THREAD)))
        else:
            self._busy[running] = slot
            slot.run(running, work)

    def ended(self, *, wait: float) -> list[Ended]:
        """Return what ended, after at most *wait* seconds for the first."""
        found: list[Ended] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._outbox.get(timeout=wait) if wait > 0 else self._outbox.get_nowait())
            while True:
                found.append(self._outbox.get_nowait())
        for one in found:
            if one.running in self._threadless:
                self._threadless.remove(one.running)
            else:
                self._idle.append(self._busy.pop(one.running))
        return found

    def overdue(self) -> list[Running]:
        """Abandon what ran past its deadline, and return it.

        An async function is cancelled where it awaits, and interrupted if that has not ended it ``PATIENCE_SEC`` later,
        by the next call; any other is interrupted where it next executes Python code.
        """
        now = self._monotonic()
        self._insist(now)
        abandoned = [one for one, slot in self._busy.items() if one.given_up_at <= now and slot.abandon()]
        if abandoned:
            self._abandoned = [slot for slot in self._abandoned if slot.thread.is_alive()]
        for one in abandoned:
            slot = self._busy.pop(one)
            self._abandoned.append(slot)
            self._cancelled.append((now + PATIENCE_SEC, slot))
            LEFTOVERS.add(slot.thread, one.task.id)
        return abandoned

    def next_deadline(self) -> float | None:
        """Return when the next of what runs is given up, on the monotonic clock."""
        return min((one.given_up_at for one in self._busy), default=None)

    def leftovers(self, *, wait: float = 0.0) -> int:
        """Return how many abandoned functions still run, after at most *wait* seconds for them to end."""
        until = time.monotonic() + wait
        for slot in self._abandoned:
            while slot.thread.is_alive() and (left := until - time.monotonic()) > 0:
                self._insist(self._monotonic())
                slot.thread.join(min(left, _LOOK_SEC))
        return sum(slot.thread.is_alive() for slot in self._abandoned)

    def zombies(self) -> list[TaskId]:
        """Return the tasks of which this process still runs a function that nobody waits for."""
        return LEFTOVERS.task_ids()

    def close(self) -> None:
        """Let every thread end once its function has; what still runs is not waited for."""
        for slot in [*self._idle, *self._busy.values()]:
            slot.stop()
        for one, slot in self._busy.items():
            LEFTOVERS.add(slot.thread, one.task.id)
        self._idle.clear()

    def _idle_or_new(self) -> Slot | None:
        if self._idle:
            return self._idle.pop()
        try:
            return Slot(self._outbox, self._monotonic)
        except RuntimeError:
            return None

    def _insist(self, now: float) -> None:
        due = [slot for at, slot in self._cancelled if at <= now]
        self._cancelled = [one for one in self._cancelled if one[0] > now]
        for slot in due:
            slot.insist()


def _run(running: Running, task_type: TaskType, coroutines: Coroutines) -> Conclusion:
    payload, ctx = running.task.payload, running.ctx
    return conclude(lambda: coroutines.run_to_end(lambda: task_type.call(payload, ctx)), task_type.rules)


def _run_isolated(isolation: Isolation, running: Running, timeout: timedelta, _coroutines: Coroutines) -> Conclusion:
    order = IsolatedRun(
        name=running.task.name,
        payload=running.task.payload,
        task_id=running.task.id,
        attempt=running.ctx.attempt,
        is_last_attempt=running.ctx.is_last_attempt,
        timeout=timeout,
        correlation_id=running.ctx.correlation_id,
        traceparent=running.ctx.traceparent,
    )
    try:
        return isolation.run(order, cancelled=running.cancel)
    except IsolationError as error:
        return NotStarted(str(error))
