"""Call a task function on the current thread, run the coroutine it returns, and turn the outcome into a result."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from functools import partial
from itertools import islice
from types import AsyncGeneratorType, BuiltinFunctionType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final, TypeGuard, cast

from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tidemill.clock import read_monotonic
from tidemill.documents import decode
from tidemill.model import Failure
from tidemill.policy.failures import COMMON, Rules, classify, find_snooze_request, truncate_text, type_name
from tidemill.requests.validation import UnfitError, UnfitTypeError, encode_payload
from tidemill.runner.results import Raised, Returned, SnoozeRequested

MAX_RESULT_BYTES: Final = 64 * 1024
NOT_RUN: Final = "not_run"
"""Code of a failure because the body of the function has not run, although the call returned."""

_MAX_TYPE_NAME_CHARS: Final = 100
_MAX_WALKED: Final = 10_000
"""Elements of a result that are looked at for coroutines."""

CLEANUP_TIMEOUT_SEC: Final = 0.5
"""Time limit of each step of `EventLoop.clear`: cancelled tasks, closing generators, and tasks that both started."""

_MAX_CLOSE_ATTEMPTS: Final = 3
"""Attempts to close a coroutine, which may refuse or start another."""


def run_function(call: Callable[[], Any], rules: Rules = COMMON) -> Returned | Raised | SnoozeRequested:
    """Make *call* and return its result. Exceptions become results too, even exits.

    The value or the exception is examined here, on this thread, since that may run their code and may block. The
    result refers to neither. Only an exception that another thread raises into this one may leave this function;
    then there is no result.
    """
    try:
        value = call()
    except BaseException as error:  # noqa: BLE001 - every exception of a function becomes a result
        until = find_snooze_request(error)
        return Raised(classify(error, rules)) if until is None else SnoozeRequested(until)
    stored, problem = _make_storable(value)
    if problem is None:
        return Returned(stored)
    unrun = explain_unrun(value)
    if unrun is not None:
        return Raised(Failure(message=unrun, code=NOT_RUN, retryable=False))
    return Returned({"not_stored": truncate_text(type_name(value), _MAX_TYPE_NAME_CHARS), "reason": problem})


def _make_storable(value: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - functions return anything
    """Return a plain copy of *value*, or the reason why it cannot be stored or is no strict JSON. Never raises.

    Code that the function left running cannot change the copy. Models and dataclasses are stored as their JSON.
    """
    if value is None:
        return None, None
    try:
        try:
            stored = encode_payload({"result": value}, max_bytes=MAX_RESULT_BYTES)
        except UnfitTypeError:
            stored = encode_payload({"result": _dump_models(value)}, max_bytes=MAX_RESULT_BYTES)
        return decode(RawBSONDocument(stored))["result"], None
    except UnfitError as error:
        return None, str(error)
    except BaseException as error:  # noqa: BLE001 - a hostile object may raise anything when it is examined
        return None, f"looking at it raised {type_name(error)}"


def _dump_models(value: Any) -> Any:  # noqa: ANN401
    """Return *value* with the JSON of each model and dataclass in it; it is nested at most `MAX_PAYLOAD_DEPTH` deep."""
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return to_jsonable_python(value)
    if isinstance(value, dict):
        return {key: _dump_models(element) for key, element in value.items()}
    return [_dump_models(element) for element in value] if isinstance(value, list | tuple) else value


def explain_unrun(value: object) -> str | None:
    """Return the reason why a function that returned *value* has not done its work, or ``None`` if it may have."""
    kind = type(value)  # not isinstance: a class may answer that with code of its own
    if issubclass(kind, type) and issubclass(cast("type", value), BaseException):
        return _NOT_RAISED.format("an exception class")
    for kinds, reason in _UNRUN:
        if issubclass(kind, kinds):
            return reason.format(type_name(value))
    for element in islice(_walk(value), _MAX_WALKED):
        if issubclass(type(element), CoroutineType):
            return "the task function returned coroutines that were not awaited: await asyncio.gather(*coroutines)"
        if issubclass(type(element), GeneratorType | AsyncGeneratorType):
            return "the task function returned generators, whose bodies have not run: return lists"
    return None


def _walk(value: object) -> Iterator[object]:
    """Yield the elements of plain containers in *value*, level by level; without end if one contains itself."""
    containers = deque([value])
    while containers:
        container = containers.popleft()
        elements: Iterable[object] = ()
        if type(container) is dict:
            elements = container.values()
        elif type(container) in {list, tuple, set}:
            elements = cast("Iterable[object]", container)
        for element in elements:
            yield element
            containers.append(element)


_NOT_RAISED: Final = "the task function returned {} instead of raising it: write raise"


def _generate() -> Iterator[None]:
    yield


async def _generate_async() -> AsyncIterator[None]:
    yield


_CONTEXT_MANAGERS: Final[tuple[type, ...]] = (
    type(contextlib.contextmanager(_generate)()),
    type(contextlib.asynccontextmanager(_generate_async)()),
)
_UNRUN: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((BaseException,), _NOT_RAISED),
    (
        (GeneratorType, AsyncGeneratorType),
        "the task function returned a generator, whose body has not run: a task function must not yield",
    ),
    (_CONTEXT_MANAGERS, "the task function returned a context manager, whose body has not run: use it in a with"),
    ((map, filter), "the task function returned a {0}, which has called nothing yet: return list({0}(...))"),
    (
        (FunctionType, MethodType, BuiltinFunctionType, partial),
        "the task function returned a function and did not call it: a decorator may lack its brackets",
    ),
    ((Future,), "the task function returned a Future and did not wait for it: return its result()"),
)


def run_to_end(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the function decides
    """Make *call* and return its value; if the value is awaitable, await it and return that result.

    For a single call, on a thread that runs no event loop; `Coroutines` makes many. Raises what the call raises,
    exits included; `run_function` turns that into a result. At the end it ends tasks left running, as
    `EventLoop.clear` does; calls on threads go on.
    """
    with contextlib.closing(Coroutines()) as coroutines:
        return coroutines.run_to_end(call)


class Coroutines:
    """Makes the calls of one thread, one at a time, each in a context of its own.

    An awaitable result is work that is not done yet: the function is an ``async def``, or passes on the result of
    one. It is run as a part of the call, on an event loop that is made at first use and kept for later calls. Tasks
    that a call leaves on the loop end with the call: see `EventLoop.clear`. Timers and open connections stay. A loop
    that cannot be cleared is discarded.

    Args:
        uninterruptible: Entered around code that an exception of another thread must not interrupt half-way. Such an
            exception arrives on entering or leaving the section.
    """

    def __init__(self, uninterruptible: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> None:
        self._uninterruptible = uninterruptible
        self._loop: EventLoop | None = None

    def run_to_end(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the function decides
        """Make *call* and return its value; if the value is awaitable, await it and return that result."""
        context = contextvars.Context()
        value = context.run(call)
        while _is_awaitable(value):
            value = self._run_coroutine(_wrap_coroutine(value), context)
        return value

    def cancel(self) -> bool:
        """Cancel the awaited task and return true; return false if there is none.

        For another thread, and only while this one is in no uninterruptible section.
        """
        return self._loop is not None and self._loop.cancel()

    def wake(self) -> None:
        """Wake the loop, so that a waiting thread notices an exception raised into it. Restricted like `cancel`."""
        if self._loop is not None:
            self._loop.wake()

    def close(self) -> None:
        """Close the loop. If the last call was abandoned, wait for its calls on threads."""
        if self._loop is not None:
            self._loop.close()
            self._loop.join()

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:  # noqa: ANN401
        try:
            with self._uninterruptible():
                if self._loop is None or self._loop.is_closed():
                    self._loop = EventLoop()
                loop = self._loop
                task = loop.begin(coroutine, context)
        except BaseException:
            coroutine.close()  # it will never begin
            raise
        try:
            return loop.run(task)
        finally:
            if not loop.clear():
                with self._uninterruptible():
                    loop.close()
                    self._loop = None


class EventLoop:
    """A loop of asyncio, with the threads of its ``asyncio.to_thread``. Only `cancel` and `wake` are for other threads.

    Not an `asyncio.Runner`, which waits without a limit for tasks that ignore their cancellation. Nothing is logged
    about tasks left running, nor about their errors.
    """

    def __init__(self) -> None:
        self._threads = _Threads()
        self._loop = asyncio.new_event_loop()
        with contextlib.suppress(AttributeError):  # loops of other libraries may have a clock in C
            self._loop.time = read_monotonic  # type: ignore[method-assign]
        self._loop.set_default_executor(self._threads)
        self._task: asyncio.Task[Any] | None = None
        self._generators = weakref.WeakSet[AsyncGenerator[Any, Any]]()
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._had_generators = False

    def begin(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> asyncio.Task[Any]:
        """Return *coroutine* as the next task to run, in *context*."""
        self._loop.set_exception_handler(_ignore_error)
        self._loop.call_soon(self._watch_generators)
        self._task = self._loop.create_task(coroutine, context=context)
        return self._task

    def run(self, task: asyncio.Task[Any]) -> Any:  # noqa: ANN401 - the function decides
        """Run *task* and return its result. Raises its error, or the exit that another task raised meanwhile."""
        try:
            return self._loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            with contextlib.suppress(BaseException):
                self._loop.run_until_complete(asyncio.sleep(0))  # takes a stop that is still scheduled
            if task.done():
                return task.result()
            raise

    def is_closed(self) -> bool:
        """Return whether the loop is closed; a function may close it."""
        return self._loop.is_closed()

    def cancel(self) -> bool:
        """Cancel the running task, from any thread, and return true; return false if there is none."""
        task = self._task
        return task is not None and not task.done() and self._call_soon(task.cancel)

    def wake(self) -> None:
        """Wake the loop, from any thread. While it waits it notices no exception raised into its thread."""
        self._call_soon(int)

    def _call_soon(self, callback: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it is closed
            return False
        return True

    def clear(self) -> bool:
        """End tasks left running; return true if nothing is left that could disturb the next coroutine.

        Tasks are cancelled and asynchronous generators closed; each wait is bounded by ``CLEANUP_TIMEOUT_SEC``. Tasks
        that take longer are closed as they are. Calls on threads cannot be ended.
        """
        self._task = None
        tasks = asyncio.all_tasks(self._loop) - self._closing_tasks
        if tasks or self._had_generators:
            with contextlib.suppress(BaseException):  # the tasks may raise anything, exits included
                self._loop.run_until_complete(self._cancel_tasks(tasks))
            _close_coroutines(self._loop)
            self._had_generators = False
        return not (asyncio.all_tasks(self._loop) or self._threads.calls)

    def close(self) -> None:
        """Release the system resources of the loop; calls on threads go on."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(RuntimeError):  # an interrupted loop may still count as running
            self._loop.close()

    def join(self) -> None:
        """Wait for calls on threads."""
        concurrent.futures.wait(tuple(self._threads.calls))

    async def _cancel_tasks(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await _wait_for_other_tasks()
        if self._generators:
            for generator in tuple(self._generators):
                self._close_generator(generator)
            await _wait_for_other_tasks()
        for task in _list_other_tasks():
            task.cancel()
        await _wait_for_other_tasks()

    def _watch_generators(self) -> None:
        def add_generator(generator: AsyncGenerator[Any, Any]) -> None:
            self._had_generators = True
            self._generators.add(generator)

        def close_generator(generator: AsyncGenerator[Any, Any]) -> None:
            with contextlib.suppress(RuntimeError):  # finalized by another thread after the loop was closed
                self._loop.call_soon_threadsafe(self._close_generator, generator)

        sys.set_asyncgen_hooks(add_generator, close_generator)  # until the loop stops

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        task = self._loop.create_task(generator.aclose())
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)


class _Threads(concurrent.futures.ThreadPoolExecutor):
    """Thread pool that keeps the calls which have not ended."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="tidemill-to-thread")
        self.calls: set[concurrent.futures.Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:  # noqa: ANN401
        call = super().submit(fn, *args, **kwargs)
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        return call


def _is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    # Bypasses attribute lookup on the object and its class: both may run code of the function.
    bases = type.__dict__["__mro__"].__get__(type(value))
    return any("__await__" in type.__dict__["__dict__"].__get__(base) for base in bases)


def _wrap_coroutine(value: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    async def await_value() -> Any:  # noqa: ANN401
        return await value

    return value if isinstance(value, CoroutineType) else await_value()


def _list_other_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _wait_for_other_tasks() -> None:
    tasks = _list_other_tasks()
    if tasks:
        await asyncio.wait(tasks, timeout=CLEANUP_TIMEOUT_SEC)


def _close_coroutines(loop: asyncio.AbstractEventLoop) -> None:
    for _ in range(_MAX_CLOSE_ATTEMPTS):
        for task in asyncio.all_tasks(loop):
            with contextlib.suppress(BaseException):  # it may raise anything, exits included
                task.get_coro().close()


def _ignore_error(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Log nothing."""
