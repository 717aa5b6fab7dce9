"""One worker thread of the thread pool: runs functions, and is interrupted or abandoned by the thread that owns it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from tidemill.errors import TaskTimeoutError
from tidemill.model import Task, TaskId
from tidemill.runner.call import Coroutines
from tidemill.runner.results import RunResult
from tidemill.task_functions import TaskContext

MAX_ISOLATION_OVERHEAD: Final = timedelta(seconds=8)
"""Time that an isolated function may take beyond its timeout, which its process keeps.

It covers the start of the process and one start of the forkserver. It is below the margin that an execution keeps for
its end.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningTask:
    """One started function. ``started`` and the context's ``deadline`` are readings of the monotonic clock.

    ``notes`` holds the last note of the function, if any.
    """

    task: Task
    ctx: TaskContext
    started_at: datetime
    started: float
    cancel: threading.Event = field(repr=False)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=1), repr=False)
    is_isolated: bool = False

    @property
    def note(self) -> str:
        """The last note of the function, or ``""``."""
        return next(iter(self.notes.copy()), "")

    @property
    def abandon_at(self) -> float:
        """Time to abandon the function, on the monotonic clock."""
        return self.ctx.deadline + (MAX_ISOLATION_OVERHEAD.total_seconds() if self.is_isolated else 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinishedRun:
    """One ended function with its result. A task whose result is `NotStarted` is to be released."""

    running: RunningTask
    duration: timedelta
    result: RunResult


class AbandonedThreads:
    """Threads that were abandoned, with the tasks whose functions they run. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[tuple[threading.Thread, TaskId]] = []

    def add(self, thread: threading.Thread, task_id: TaskId) -> None:
        """Record that *thread* still runs the function of a task."""
        with self._lock:
            self._threads.append((thread, task_id))

    def task_ids(self) -> list[TaskId]:
        """Return the ids of the tasks whose functions still run."""
        if not self._threads:
            return []
        with self._lock:
            self._threads = [(thread, task_id) for thread, task_id in self._threads if thread.is_alive()]
            return [task_id for _, task_id in self._threads]


ABANDONED_THREADS: Final = AbandonedThreads()
"""The abandoned threads of this process. They outlive the execution that started them."""

Work: TypeAlias = Callable[[Coroutines], RunResult]
"""Runs a function and returns its result. Raises nothing but an interruption."""


class WorkerThread:
    """A daemon thread that runs one function at a time. The methods are for the one thread that owns it.

    The thread is *interruptible* while it runs the function's own code. State that both threads use is changed under
    the lock. At most one exception is ever raised into the thread.

    Raises:
        RuntimeError: No thread can be started.
    """

    def __init__(self, outbox: queue.SimpleQueue[FinishedRun], monotonic: Callable[[], float]) -> None:
        self._inbox: queue.SimpleQueue[tuple[RunningTask, Work] | None] = queue.SimpleQueue()
        self._outbox = outbox
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._has_work = False
        self._interruptible = False
        self._is_abandoned = False
        self._was_cancelled = False
        self._coroutines = Coroutines(self._uninterruptible)
        self.thread = threading.Thread(target=self._serve, name="tidemill-slot", daemon=True)
        self.thread.start()

    def run(self, running: RunningTask, work: Work) -> None:
        """Run *work* and put its result into the outbox. One at a time."""
        self._has_work = True
        self._inbox.put((running, work))

    def stop(self) -> None:
        """Let the thread exit once its function has ended."""
        self._inbox.put(None)

    def abandon(self) -> bool:
        """Abandon the function with its thread; return false if it has just ended and its result is on the way.

        A coroutine is cancelled, so that it can clean up: see `interrupt_again`. Any other function is interrupted.
        """
        with self._lock:
            if not self._has_work:
                return False
            self._is_abandoned = True
            self._was_cancelled = self._interruptible and self._coroutines.cancel()
            if self._interruptible and not self._was_cancelled:
                self._interrupt()
            return True

    def interrupt_again(self) -> None:
        """Interrupt a coroutine that was cancelled and has not ended."""
        with self._lock:
            if self._interruptible and self._was_cancelled:
                self._was_cancelled = False
                self._interrupt()

    def _serve(self) -> None:
        try:
            # An interruption may arrive late, inside this loop, at the latest in `_end_run`.
            with contextlib.suppress(TaskTimeoutError):
                while self._run_next():
                    pass
        finally:
            self._coroutines.close()

    def _run_next(self) -> bool:
        """Run the next function; return false if the thread is to exit."""
        assignment = self._inbox.get()
        if assignment is None:
            return False
        running, work = assignment
        if not self._begin_run(interruptible=not running.is_isolated):
            return False
        with _exit_if_forked():
            result = work(self._coroutines)
        duration = timedelta(seconds=self._monotonic() - running.started)
        if not self._end_run():
            return False
        self._outbox.put(FinishedRun(running=running, duration=duration, result=result))
        return True

    def _begin_run(self, *, interruptible: bool) -> bool:
        """Return false if the function was abandoned before it began."""
        with self._lock:
            self._interruptible = interruptible and not self._is_abandoned
            return not self._is_abandoned

    def _end_run(self) -> bool:
        """Return false if the function was abandoned."""
        with self._lock:
            self._interruptible = self._has_work = False
            return not self._is_abandoned

    @contextlib.contextmanager
    def _uninterruptible(self) -> Iterator[None]:
        """Block interruption inside this block; if the function was abandoned, raise on entry or exit."""
        self._set_interruptible(interruptible=False)
        try:
            yield
        finally:
            self._set_interruptible(interruptible=True)

    def _set_interruptible(self, *, interruptible: bool) -> None:
        with self._lock:
            self._interruptible = interruptible and not self._is_abandoned
            if self._is_abandoned:
                raise TaskTimeoutError

    def _interrupt(self) -> None:
        ident = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_InterruptionError))
        self._coroutines.wake()


@contextlib.contextmanager
def _exit_if_forked() -> Iterator[None]:
    """Exit a process that the function forked at once: it must not go on as a worker thread."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


class _InterruptionError(TaskTimeoutError, SystemExit):
    """The exception raised into a thread. Also an exit, since event loops let no other exception through everywhere."""
