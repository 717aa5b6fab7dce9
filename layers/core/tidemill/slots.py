"""Slots: daemon threads that run task functions, and the main thread's view of them.

A function that runs past its timeout is abandoned: its slot is given up with its thread, a new one takes the
place, and whatever the old one still returns is thrown away.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tidemill.errors import TaskTimeoutError
from tidemill.model import Task
from tidemill.registry import TaskContext, TaskType


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Running:
    """One started function. ``started`` and the context's ``deadline`` are readings of the monotonic clock."""

    task: Task
    ctx: TaskContext
    started_at: datetime
    started: float
    cancel: threading.Event = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ended:
    """What became of a function: it returned *result*, or raised *error*."""

    running: Running
    duration: timedelta
    result: Any = None
    error: BaseException | None = None


class Slots:
    """Up to *size* functions at a time. Used from one thread, which is never a slot."""

    def __init__(self, size: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._monotonic = monotonic
        self._outbox: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._idle: list[_Slot] = []
        self._busy: dict[Running, _Slot] = {}
        self._abandoned: list[_Slot] = []

    @property
    def size(self) -> int:
        """How many functions may run at a time."""
        return self._size

    @property
    def free(self) -> int:
        """How many more may be started now."""
        return self._size - len(self._busy)

    @property
    def running(self) -> list[Running]:
        """What has been started and has not ended."""
        return list(self._busy)

    def start(
        self, task: Task, task_type: TaskType, *, timeout: timedelta, is_last_attempt: bool, now: datetime
    ) -> None:
        """Run the function on a free slot; *now* is the start as the execution log tells it."""
        started = self._monotonic()
        cancel = threading.Event()
        ctx = TaskContext(
            task_id=task.id,
            attempt=task.attempts,
            is_last_attempt=is_last_attempt,
            deadline=started + timeout.total_seconds(),
            _cancelled=cancel,
        )
        running = Running(task=task, ctx=ctx, started_at=now, started=started, cancel=cancel)
        slot = self._idle.pop() if self._idle else _Slot(self._outbox, self._monotonic)
        self._busy[running] = slot
        slot.run(running, task_type)

    def ended(self, *, wait: float) -> list[Ended]:
        """Return what ended, after at most *wait* seconds for the first."""
        found: list[Ended] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._outbox.get(timeout=wait) if wait > 0 else self._outbox.get_nowait())
            while True:
                found.append(self._outbox.get_nowait())
        for one in found:
            self._idle.append(self._busy.pop(one.running))
        return found

    def overdue(self) -> list[Running]:
        """Abandon what ran past its deadline, interrupt it where it next executes Python code, and return it."""
        now = self._monotonic()
        late = [one for one in self._busy if one.ctx.deadline <= now]
        abandoned = [one for one in late if self._busy[one].abandon()]
        self._abandoned += [self._busy.pop(one) for one in abandoned]
        return abandoned

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of what runs, on the monotonic clock."""
        return min((one.ctx.deadline for one in self._busy), default=None)

    def leftovers(self) -> int:
        """Return how many abandoned functions still run."""
        return sum(slot.is_alive() for slot in self._abandoned)

    def close(self) -> None:
        """Let every thread end once its function has; what still runs is not waited for."""
        for slot in [*self._idle, *self._busy.values()]:
            slot.stop()
        self._idle.clear()


class _Slot:
    def __init__(self, outbox: queue.SimpleQueue[Ended], monotonic: Callable[[], float]) -> None:
        self._inbox: queue.SimpleQueue[tuple[Running, TaskType] | None] = queue.SimpleQueue()
        self._outbox = outbox
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._has_work = False
        self._in_function = False
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._serve, name="tidemill-slot", daemon=True)
        self._thread.start()

    def run(self, running: Running, task_type: TaskType) -> None:
        self._has_work = True
        self._inbox.put((running, task_type))

    def stop(self) -> None:
        self._inbox.put(None)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def abandon(self) -> bool:
        """Give the function up; false where it has just ended and its result is on the way."""
        with self._lock:
            if not self._has_work:
                return False
            self._is_abandoned = True
            if self._in_function:
                ident = ctypes.c_ulong(self._thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(TaskTimeoutError))
            return True

    def _serve(self) -> None:
        # The interruption of an abandoned function may arrive a moment late, in here: at the latest in _leaves.
        with contextlib.suppress(TaskTimeoutError):
            while (work := self._inbox.get()) is not None and self._enters():
                ended = self._call(*work)
                if not self._leaves():
                    return
                self._outbox.put(ended)

    def _enters(self) -> bool:
        """May be interrupted from here on; false where the function was given up before it began."""
        with self._lock:
            self._in_function = not self._is_abandoned
            return self._in_function

    def _leaves(self) -> bool:
        """Is not interrupted any more; false where the function was given up."""
        with self._lock:
            self._in_function = self._has_work = False
            return not self._is_abandoned

    def _call(self, running: Running, task_type: TaskType) -> Ended:
        result: Any = None
        failure: BaseException | None = None
        try:
            # A context of its own, so that nothing one task sets is seen by the next.
            result = contextvars.Context().run(task_type.call, running.task.payload, running.ctx)
        except BaseException as error:  # noqa: BLE001 - whatever a function does becomes an outcome
            failure = error
        duration = timedelta(seconds=self._monotonic() - running.started)
        return Ended(running=running, duration=duration, result=result, error=failure)
