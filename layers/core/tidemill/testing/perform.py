"""Call one task function without queue and database, and watch the functions that an executor calls."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from tidemill.clock import read_monotonic
from tidemill.documents import decode
from tidemill.errors import Fail, Problem, TaskTimeoutError, UnknownTaskError
from tidemill.model import TaskId
from tidemill.policy.failures import describe, find_snooze_request, truncate_text
from tidemill.policy.retry import DEFAULT
from tidemill.registry import REGISTRY, Registry, TaskType
from tidemill.requests.tasks import new_task
from tidemill.runner.call import NOT_RUN, explain_unrun, run_to_end
from tidemill.settings import Settings
from tidemill.task_functions import Signature, TaskContext
from tidemill.testing.faults import ExecutorDied

DEFAULT_TIMEOUT: Final = Settings().task_timeout

MAX_SHOWN_CHARS: Final = 200
"""Limit of characters shown of a payload or a message."""

MAX_RUNS: Final = 10_000
"""Limit of runs; more count as an endless loop."""

MAX_LOGGED_FAILURES: Final = 20

INTERRUPTED_TIMEOUT_SEC: Final = 1.0
"""Time limit for interrupted functions to end."""

ORPHANED_TIMEOUT_SEC: Final = 10.0
"""Time limit for the functions of a dead executor to end: they share this process."""

_POLL_SEC: Final = 0.01

_logger = logging.getLogger("tidemill.testing")


def perform(
    name: str,
    payload: dict[str, Any],
    *,
    attempt: int = 1,
    is_last_attempt: bool | None = None,
    cancelled: bool | threading.Event = False,
    remaining: timedelta | None = None,
    task_id: TaskId = None,
    registry: Registry = REGISTRY,
) -> Any:  # noqa: ANN401 - the function decides
    """Call the task function *name* as an executor would, and return what it returns.

    ::

        assert perform("send_invoice", {"order": "order-7", "amount": 120.0}) == {"sent": "order-7"}

        with pytest.raises(Fail):
            perform("send_invoice", {"order": "order-7", "amount": 0.0})

        perform("import_file", {"url": url}, attempt=3, remaining=timedelta(seconds=2))

    A payload that could not be enqueued is refused. The payload arrives as from the database (tuples as lists, times
    in UTC and whole milliseconds), and is validated if the function takes a model. An ``async def`` is run to its end;
    inside an event loop, use ``await asyncio.to_thread(perform, ...)``. No timeout is enforced, and ``isolate=True``
    has no effect.

    Args:
        name: Registered name of the function.
        payload: Its payload.
        attempt: Value of ``ctx.attempt``.
        is_last_attempt: Value of ``ctx.is_last_attempt``; without it, the value that follows from the registration.
        cancelled: Value of ``ctx.cancelled()``; with an event, true once the event is set.
        remaining: Value of ``ctx.remaining()`` at first; without it, the timeout of the registration.
        task_id: Value of ``ctx.task_id``; without it, a new id.
        registry: Registry of the function; without it, the one of `tidemill.task`.

    Raises:
        UnknownTaskError: No function is registered as *name*.
        InvalidRequestError: The payload could not be enqueued.
        RuntimeError: The function is async, and this thread runs an event loop.
        Exception: The error of the function; `Fail`, if the payload does not fit its model, or if the body of the
            function has not run, because it returned a generator, for example.
    """
    task_type = registry.get(name)
    if task_type is None:
        raise UnknownTaskError([Problem("name", explain_unregistered(name))])
    if is_last_attempt is None:
        is_last_attempt = attempt > (task_type.retry or DEFAULT).max_retries
    ctx = task_context(
        name=name,
        attempt=attempt,
        is_last_attempt=is_last_attempt,
        cancelled=cancelled,
        remaining=(task_type.timeout or DEFAULT_TIMEOUT) if remaining is None else remaining,
        task_id=task_id,
    )
    stored = decode(RawBSONDocument(bson.encode(new_task(name=name, payload=payload).payload)))
    result = run_to_end(lambda: _refuse_in_loop(name, task_type.call(stored, ctx)))
    unrun = explain_unrun(result)
    if unrun is not None:
        raise Fail(unrun, code=NOT_RUN)
    return result


def _refuse_in_loop(name: str, value: Any) -> Any:  # noqa: ANN401 - functions return anything
    """Return *value*, unless it must be awaited and this thread runs an event loop, which cannot run a second one."""
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return value
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that nothing has awaited it
    raise RuntimeError(
        f"perform cannot run {name!r}: it is async, and this thread runs an event loop already; "
        f"use await asyncio.to_thread(perform, {name!r}, ...)"
    )


def task_context(
    *,
    name: str = "",
    attempt: int = 1,
    is_last_attempt: bool = False,
    cancelled: bool | threading.Event = False,
    remaining: timedelta = DEFAULT_TIMEOUT,
    task_id: TaskId = None,
) -> TaskContext:
    """Return a context for calling a task function directly; see `perform` for the arguments.

    ::

        assert send_invoice(Invoice(order="order-7", amount=120.0), task_context(attempt=2)) == {"sent": "order-7"}
    """
    event = cancelled if isinstance(cancelled, threading.Event) else threading.Event()
    if cancelled is True:
        event.set()
    return TaskContext(
        task_id=ObjectId() if task_id is None else task_id,
        name=name,
        attempt=attempt,
        is_last_attempt=is_last_attempt,
        deadline=read_monotonic() + remaining.total_seconds(),
        _cancelled=event,
    )


class FakeContext:
    """A Lambda context whose time runs out, with the attributes that handlers use.

    The remaining time counts down on the monotonic clock and stops at zero, as on AWS. `move` lets time pass without
    waiting; with a constant clock, time passes by `move` alone::

        lambda_handler(event, FakeContext(timedelta(seconds=10)))        # runs out while the handler works

        context = FakeContext(timedelta(seconds=60), monotonic=lambda: 0.0)
        context.move(timedelta(seconds=50))
        assert context.get_remaining_time_in_millis() == 10_000          # exactly, until it is moved again

    Args:
        remaining: Remaining time of the invocation at first.
        request_id: Id of the invocation, which owns the leases of its executor; without it, a new id.
        monotonic: Clock of the count-down, in seconds.
    """

    function_name = "tidemill-test"
    function_version = "$LATEST"
    invoked_function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:tidemill-test"
    memory_limit_in_mb = "512"
    log_group_name = "/aws/lambda/tidemill-test"
    log_stream_name = "2026/07/01/[$LATEST]0123456789abcdef0123456789abcdef"

    def __init__(
        self,
        remaining: timedelta = timedelta(seconds=120),
        *,
        request_id: str | None = None,
        monotonic: Callable[[], float] = read_monotonic,
    ) -> None:
        self.aws_request_id = request_id or str(uuid.uuid4())
        self._monotonic = monotonic
        self._ends_at = monotonic() + remaining.total_seconds()

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time of the invocation, in whole milliseconds."""
        return max(0, int((self._ends_at - self._monotonic()) * 1000))

    def move(self, span: timedelta) -> None:
        """Reduce the remaining time of the invocation by *span*."""
        self._ends_at -= span.total_seconds()


@contextmanager
def watch(registry: Registry, *, max_runs: int = MAX_RUNS) -> Iterator[WatchedRegistry]:
    """Watch the functions of *registry* inside, and log their errors at the end.

    Test runners show the log beside a failed test. Functions of an executor that died are waited for; in a process of
    its own they would have died with it.

    Raises:
        AssertionError: There were *max_runs* runs.
    """
    watched = WatchedRegistry(registry, max_runs=max_runs)
    try:
        yield watched
        watched.wait(seconds=INTERRUPTED_TIMEOUT_SEC)
        if watched.enough.is_set():
            raise AssertionError(f"there is no end to it after {max_runs:,} runs: does a function enqueue itself?")
    except ExecutorDied:
        watched.wait(seconds=ORPHANED_TIMEOUT_SEC)
        raise
    finally:
        for name in watched.unregistered:
            _logger.warning("%s", explain_unregistered(name))
        for failure in watched.failures[:MAX_LOGGED_FAILURES]:
            error = failure.error
            _logger.warning("%s", failure, exc_info=(type(error), error, _trim_traceback(error.__traceback__)))


def explain_unregistered(name: str) -> str:
    """Return the message for a task name without a function, with the remedy."""
    return f"no function is registered as {name!r}: import its module, or pass registry="


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """One run of a task function that raised.

    Attributes:
        name: Registered name of the function.
        payload: Its payload, copied before it ran.
        task_id: Id of the task.
        attempt: 1 for the first run of the task.
        error: The raised error, with its traceback.
    """

    name: str
    payload: dict[str, Any]
    task_id: TaskId
    attempt: int
    error: BaseException

    def __str__(self) -> str:
        """Return one line that describes the run."""
        is_interruption = isinstance(self.error, TaskTimeoutError)
        outcome = (
            "ran into its timeout"
            if is_interruption
            else f"raised {truncate_text(describe(self.error), MAX_SHOWN_CHARS)}"
        )
        return f"{self.name!r} (attempt {self.attempt}) {outcome}"


class WatchedRegistry(Registry):
    """The task types of *registry*, whose runs are recorded, up to *max_runs*.

    Attributes:
        began: Task id and attempt of every run, in the order of their starts.
        failures: Runs that raised anything but a `Snooze`, in the order of their ends.
        unregistered: Task names without a function.
        enough: Set once there were *max_runs* runs.
    """

    def __init__(self, registry: Registry, *, max_runs: int) -> None:
        super().__init__()
        self.began: list[tuple[TaskId, int]] = []
        self.failures: list[FailedRun] = []
        self.unregistered: list[str] = []
        self.enough = Event()
        self._registry = registry
        self._max_runs = max_runs
        self._running: set[partial[FailedRun]] = set()

    def get(self, name: str) -> TaskType | None:
        """Return the type registered as *name*, with a function that records its runs."""
        task_type = self._registry.get(name)
        if task_type is not None:
            return replace(task_type, function=partial(self._call, task_type), signature=Signature(), hooks=())
        if name not in self.unregistered:
            self.unregistered.append(name)
        return None

    def __iter__(self) -> Iterator[TaskType]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)

    def wait(self, *, seconds: float) -> None:
        """Return once no function runs, or after *seconds*."""
        deadline = read_monotonic() + seconds
        while self._running and read_monotonic() < deadline:
            time.sleep(_POLL_SEC)

    def _call(self, task_type: TaskType, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401
        run = partial(
            FailedRun,
            name=task_type.name,
            payload=copy.deepcopy(payload),
            task_id=ctx.task_id,
            attempt=ctx.attempt,
        )
        self.began.append((ctx.task_id, ctx.attempt))
        if len(self.began) >= self._max_runs:
            self.enough.set()
        self._running.add(run)
        try:
            result = task_type.call(payload, ctx)
        except BaseException as error:
            self._end_run(run, error)
            raise
        if inspect.isawaitable(result):
            return self._await_result(run, result)
        self._end_run(run)
        return result

    async def _await_result(self, run: partial[FailedRun], result: Any) -> Any:  # noqa: ANN401
        try:
            while inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            self._end_run(run, error)
            raise
        self._end_run(run)
        return result

    def _end_run(self, run: partial[FailedRun], error: BaseException | None = None) -> None:
        self._running.discard(run)
        if error is not None and find_snooze_request(error) is None:
            self.failures.append(run(error=error))


def _trim_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of *traceback* that begins at the call of the function."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("tidemill."):
        inner = inner.tb_next
    return inner or traceback
