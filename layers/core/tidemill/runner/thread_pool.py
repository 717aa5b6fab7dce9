"""Thread pool of one execution.

A function that runs past its timeout is abandoned with its thread. A new thread replaces it, and a late result of the
old one is discarded.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from tidemill.clock import read_monotonic
from tidemill.errors import IsolationError
from tidemill.model import Task, TaskId
from tidemill.registry import TaskType
from tidemill.runner.call import Coroutines, run_function
from tidemill.runner.process_protocol import IsolatedRunner, RunSpec
from tidemill.runner.resources import has_loop_resources
from tidemill.runner.results import NotStarted, RunResult
from tidemill.runner.worker_thread import ABANDONED_THREADS, FinishedRun, RunningTask, WorkerThread
from tidemill.task_functions import TaskContext

CANCEL_GRACE_SEC: Final = 1.0
"""Time that a cancelled coroutine has for its clean-up before it is interrupted."""

NO_THREAD: Final = "no thread could be started"
"""Description of `NotStarted` if no thread was free and none could be started."""

_JOIN_POLL_INTERVAL_SEC: Final = 0.05


class ThreadPool:
    """Runs up to *size* functions at a time. Used from one thread, which runs no function itself.

    With an *isolation*, functions that ask for it and tasks suspected of having killed a worker run there; a thread
    only waits for the result. With *keeps_tracebacks* failures have the tracebacks of their exceptions.
    """

    def __init__(
        self,
        size: int,
        *,
        monotonic: Callable[[], float] = read_monotonic,
        isolation: IsolatedRunner | None = None,
        keeps_tracebacks: bool = False,
    ) -> None:
        self._size = size
        self._monotonic = monotonic
        self._isolation = isolation
        self._keeps_tracebacks = keeps_tracebacks
        self._outbox: queue.SimpleQueue[FinishedRun] = queue.SimpleQueue()
        self._idle: list[WorkerThread] = []
        self._busy: dict[RunningTask, WorkerThread] = {}
        self._without_thread: set[RunningTask] = set()
        self._abandoned: list[WorkerThread] = []
        self._interrupts: list[tuple[float, WorkerThread]] = []  # when to interrupt a cancelled coroutine

    @property
    def size(self) -> int:
        """Limit of functions that run at a time."""
        return self._size

    @property
    def free(self) -> int:
        """Number of functions that may be started now."""
        return self._size - len(self._busy) - len(self._without_thread)

    @property
    def running(self) -> list[RunningTask]:
        """Functions that were started and have not ended."""
        return [*self._busy, *self._without_thread]

    def needs_isolation(self, task: Task, task_type: TaskType) -> bool:
        """Return whether *task* would run in a process of its own."""
        return self._isolation is not None and (task_type.isolate or task.crashes > 0)

    def start(
        self, task: Task, task_type: TaskType, *, timeout: timedelta, is_last_attempt: bool, now: datetime
    ) -> None:
        """Run the function on a free thread; *now* becomes its start in the execution log.

        If no thread can be started for it, it ends at once as `NotStarted`.
        """
        started = self._monotonic()
        cancel = threading.Event()
        notes: deque[str] = deque(maxlen=1)
        ctx = TaskContext(
            task_id=task.id,
            name=task.name,
            attempt=task.attempts,
            is_last_attempt=is_last_attempt,
            deadline=started + timeout.total_seconds(),
            correlation_id=task.correlation_id,
            traceparent=task.traceparent,
            _cancelled=cancel,
            _take_note=notes.append,
        )
        isolation = self._isolation if self.needs_isolation(task, task_type) else None
        running = RunningTask(
            task=task,
            ctx=ctx,
            started_at=now,
            started=started,
            cancel=cancel,
            notes=notes,
            is_isolated=isolation is not None,
        )
        if isolation is None:
            work = functools.partial(_run_here, running, task_type, keeps_traceback=self._keeps_tracebacks)
        else:
            work = functools.partial(_run_isolated, isolation, self._build_run_spec(running, timeout), running)
        worker = self._get_worker()
        if worker is None:
            self._without_thread.add(running)
            self._outbox.put(FinishedRun(running=running, duration=timedelta(0), result=NotStarted(NO_THREAD)))
        else:
            self._busy[running] = worker
            worker.run(running, work)

    def collect(self, *, wait: float) -> list[FinishedRun]:
        """Return the functions that ended, after at most *wait* seconds for the first."""
        ends: list[FinishedRun] = []
        with contextlib.suppress(queue.Empty):
            ends.append(self._outbox.get(timeout=wait) if wait > 0 else self._outbox.get_nowait())
            while True:
                ends.append(self._outbox.get_nowait())
        for end in ends:
            if end.running in self._without_thread:
                self._without_thread.remove(end.running)
            else:
                self._idle.append(self._busy.pop(end.running))
        return ends

    def abandon_overdue(self) -> list[RunningTask]:
        """Abandon functions that ran past their deadline, and return them.

        An async function is cancelled at its await. If it has not ended ``CANCEL_GRACE_SEC`` later, the next call
        interrupts it. Any other function is interrupted where it next executes Python code.
        """
        now = self._monotonic()
        self._interrupt_cancelled(now)
        abandoned = [
            running for running, worker in self._busy.items() if running.abandon_at <= now and worker.abandon()
        ]
        if abandoned:
            self._abandoned = [worker for worker in self._abandoned if worker.thread.is_alive()]
        for running in abandoned:
            worker = self._busy.pop(running)
            self._abandoned.append(worker)
            self._interrupts.append((now + CANCEL_GRACE_SEC, worker))
            ABANDONED_THREADS.add(worker.thread, running.task.id)
        return abandoned

    def next_deadline(self) -> float | None:
        """Return when the next running function is abandoned, on the monotonic clock."""
        return min((running.abandon_at for running in self._busy), default=None)

    def abandoned_threads(self, *, wait: float = 0.0) -> int:
        """Return the number of abandoned threads that still run, after at most *wait* seconds for them to end."""
        until = read_monotonic() + wait
        for worker in self._abandoned:
            while worker.thread.is_alive() and (remaining := until - read_monotonic()) > 0:
                self._interrupt_cancelled(self._monotonic())
                worker.thread.join(min(remaining, _JOIN_POLL_INTERVAL_SEC))
        return sum(worker.thread.is_alive() for worker in self._abandoned)

    def abandoned_task_ids(self) -> list[TaskId]:
        """Return the ids of the tasks whose functions run on abandoned threads of this process."""
        return ABANDONED_THREADS.task_ids()

    def close(self, *, wait: float = 0.0) -> None:
        """Let every thread exit once its function has ended. Running functions are not waited for.

        If resources are open on event loops, the other threads have *wait* seconds to close theirs.
        """
        for worker in [*self._idle, *self._busy.values()]:
            worker.stop()
        for running, worker in self._busy.items():
            ABANDONED_THREADS.add(worker.thread, running.task.id)
        until = read_monotonic() + wait
        for worker in self._idle if has_loop_resources() else ():
            worker.thread.join(max(until - read_monotonic(), 0))
        self._idle.clear()

    def _get_worker(self) -> WorkerThread | None:
        if self._idle:
            return self._idle.pop()
        try:
            return WorkerThread(self._outbox, self._monotonic)
        except RuntimeError:
            return None

    def _build_run_spec(self, running: RunningTask, timeout: timedelta) -> RunSpec:
        return RunSpec(
            name=running.task.name,
            payload=running.task.payload,
            task_id=running.task.id,
            attempt=running.ctx.attempt,
            is_last_attempt=running.ctx.is_last_attempt,
            timeout=timeout,
            correlation_id=running.ctx.correlation_id,
            traceparent=running.ctx.traceparent,
            keeps_traceback=self._keeps_tracebacks,
        )

    def _interrupt_cancelled(self, now: float) -> None:
        due = [worker for at, worker in self._interrupts if at <= now]
        self._interrupts = [(at, worker) for at, worker in self._interrupts if at > now]
        for worker in due:
            worker.interrupt_again()


def _run_here(
    running: RunningTask,
    task_type: TaskType,
    coroutines: Coroutines,
    *,
    keeps_traceback: bool,
) -> RunResult:
    payload, ctx = running.task.payload, running.ctx
    return run_function(
        lambda: coroutines.run_to_end(lambda: task_type.call(payload, ctx)),
        task_type.rules,
        keeps_traceback=keeps_traceback,
    )


def _run_isolated(isolation: IsolatedRunner, spec: RunSpec, running: RunningTask, _coroutines: Coroutines) -> RunResult:
    try:
        return isolation.run(spec, cancelled=running.cancel, take_note=running.notes.append)
    except IsolationError as error:
        return NotStarted(str(error))
