"""Resources of task functions: opened at their first use, one for each process or event loop, and closed at its end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Set
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, TypeVar, overload

from tidemill.errors import RegistrationError
from tidemill.policy.failures import describe_without_message

CLOSE_TIMEOUT_SEC: Final = 2.0
"""Time limit to close all resources of a process, or of an event loop."""

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_is_opening: Final = contextvars.ContextVar("tidemill_is_opening", default=False)


@overload
def resource(function: Callable[[], AsyncIterator[_T]]) -> Callable[[], Awaitable[_T]]: ...


@overload
def resource(function: Callable[[], Iterator[_T]]) -> Callable[[], _T]: ...


def resource(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that opens and returns the value that the generator function *function* yields once.

    ::

        @resource
        async def http_client():
            async with httpx.AsyncClient() as client:
                yield client

        @task("fetch")
        async def fetch(payload):
            client = await http_client()

    A ``def`` is a resource of the process, for all of its threads. An ``async def`` is a resource of the event loop;
    each slot has a loop of its own. The first call opens the resource: it runs *function* up to its ``yield``. Later
    calls return the same value. If the first call raises, the next call tries again. What follows the ``yield`` closes
    the resource, on the asyncio task that opened it.

    Resources are closed in reverse order, in at most `CLOSE_TIMEOUT_SEC`: those of a loop when its slot ends, those of
    the process when a worker ends, before an executor recycles its process, and at the end of an isolated run. A
    process that is killed or frozen closes nothing.

    Raises:
        RegistrationError: The function does not yield, or needs an argument.
    """
    is_async = inspect.isasyncgenfunction(function)
    if not is_async and not inspect.isgeneratorfunction(function):
        raise RegistrationError(
            "a resource is a def or async def that yields its value once: write @resource above it, without brackets"
        )
    if inspect.signature(function).parameters:
        raise RegistrationError(f"the resource {function.__qualname__} must be callable without an argument")
    return _make_loop_resource(function) if is_async else _make_process_resource(function)


# Resources of the process


@dataclass(slots=True, eq=False)
class _ProcessResource:
    """A resource of this process; its lock is held while it is opened."""

    function: Callable[[], Generator[Any]]
    lock: threading.RLock = field(default_factory=threading.RLock)
    opened: tuple[Generator[Any], Any] | None = None


_resources: Final[list[_ProcessResource]] = []
_open_resources: Final[list[_ProcessResource]] = []
_inherited: Final[list[object]] = []
"""Open resources of the parent process. Without a reference Python would close them, in the middle of their use."""


def _make_process_resource(function: Callable[[], Generator[Any]]) -> Callable[[], Any]:
    made = _ProcessResource(function)
    _resources.append(made)

    @wraps(function)
    def get_value() -> Any:  # noqa: ANN401 - the resource decides
        with made.lock:
            if made.opened is None:
                generator = function()
                try:
                    made.opened = generator, next(generator)
                except StopIteration:
                    raise _explain_no_value(function) from None
                _open_resources.append(made)
            return made.opened[1]

    return get_value


def close_process_resources(*, timeout_sec: float = CLOSE_TIMEOUT_SEC) -> None:
    """Close the open resources of this process, the latest first; log what fails. It returns after *timeout_sec*."""
    if not _open_resources:
        return
    closing = threading.Thread(target=_close_in_turn, name="tidemill-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:
        _logger.warning("resources are not closed: no thread could be started")
        return
    closing.join(timeout_sec)
    if closing.is_alive():
        _logger.warning("resources are not closed within %g s; the process continues without them", timeout_sec)


def _close_in_turn() -> None:
    while _open_resources:
        closed = _open_resources.pop()
        with closed.lock:
            opened, closed.opened = closed.opened, None
        if opened is None:
            continue
        try:
            next(opened[0], None)
            opened[0].close()
        except BaseException as error:  # noqa: BLE001 - the other resources are closed all the same
            _log_failure(closed.function, error)


def _forget_in_child() -> None:
    """Leave the resources of the parent process alone: a thread that holds a lock is not in this process."""
    for made in _resources:
        made.lock = threading.RLock()
        if made.opened is not None:
            _inherited.append(made.opened)
            made.opened = None
    _open_resources.clear()


os.register_at_fork(after_in_child=_forget_in_child)


# Resources of an event loop


@dataclass(slots=True, eq=False)
class _LoopResource:
    """A resource of one loop. Its task opens it, waits for *closing*, and closes it."""

    value: asyncio.Future[Any]
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _LoopState:
    """Resources of one loop in the order of their first use, and the tasks that were started to open them."""

    resources: dict[Callable[[], Any], _LoopResource] = field(default_factory=dict)
    tasks: weakref.WeakSet[asyncio.Task[Any]] = field(default_factory=weakref.WeakSet)


_loops: Final[dict[asyncio.AbstractEventLoop, _LoopState]] = {}
_loops_lock: Final = threading.Lock()


def _make_loop_resource(function: Callable[[], AsyncGenerator[Any]]) -> Callable[[], Coroutine[Any, Any, Any]]:
    @wraps(function)
    async def get_value() -> Any:  # noqa: ANN401 - the resource decides
        loop = asyncio.get_running_loop()
        state = _loops.get(loop) or _watch_loop(loop)
        found = state.resources.get(function)
        if found is None:
            found = state.resources[function] = _LoopResource(loop.create_future())
            context = contextvars.Context()  # the resource outlives the run that opens it
            context.run(_is_opening.set, True)  # noqa: FBT003
            found.task = loop.create_task(_hold(function, found, state), context=context)
        return await asyncio.shield(found.value)

    return get_value


async def _hold(function: Callable[[], AsyncGenerator[Any]], held: _LoopResource, state: _LoopState) -> None:
    """Open the resource, wait until it is to be closed, and close it."""
    generator = function()
    try:
        value = await anext(generator)
    except BaseException as error:
        state.resources.pop(function, None)
        if isinstance(error, asyncio.CancelledError):
            held.value.cancel()
            raise
        held.value.set_exception(_explain_no_value(function) if isinstance(error, StopAsyncIteration) else error)
        return
    held.value.set_result(value)
    try:
        await held.closing.wait()
        await anext(generator, None)
        await generator.aclose()
    except BaseException as error:  # noqa: BLE001 - the other resources are closed all the same
        _log_failure(function, error)


def is_opening() -> bool:
    """Return true if the current code opens or holds a resource of an event loop."""
    return _is_opening.get()


def list_kept_tasks(loop: asyncio.AbstractEventLoop) -> Set[asyncio.Task[Any]]:
    """Return the tasks of the resources of *loop*: they outlive the run that started them."""
    state = _loops.get(loop)
    return frozenset() if state is None else frozenset(state.tasks)


def has_loop_resources() -> bool:
    """Return true if a resource of any event loop of this process may be open."""
    return bool(_loops)


def close_loop_resources(loop: asyncio.AbstractEventLoop, *, timeout_sec: float = CLOSE_TIMEOUT_SEC) -> None:
    """Close the resources of *loop*, the latest first, on the thread of the loop, which must not be running.

    What fails is logged. What awaits longer than *timeout_sec* is cancelled.
    """
    with _loops_lock:
        state = _loops.pop(loop, None)
    if state is not None and not loop.is_closed():
        loop.run_until_complete(_close_resources(state, timeout_sec))


async def _close_resources(state: _LoopState, timeout_sec: float) -> None:
    try:
        async with asyncio.timeout(timeout_sec):
            for held in reversed(list(state.resources.values())):
                if held.task is not None and not held.value.done():  # it is still being opened
                    held.task.cancel()
                held.closing.set()
                if held.task is not None:
                    await asyncio.wait([held.task])
    except TimeoutError:
        _logger.warning("resources of an event loop are not closed within %g s", timeout_sec)
    rest = [task for task in state.tasks if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=timeout_sec / 4)


def _watch_loop(loop: asyncio.AbstractEventLoop) -> _LoopState:
    """Return the new state of *loop*, and have it know the tasks that resources start on the loop."""
    state = _LoopState()
    before: Any = loop.get_task_factory() or _create_task

    def create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:  # noqa: ANN401
        task = before(loop, coroutine, **options)
        context = options.get("context")
        if _is_opening.get() if context is None else context.get(_is_opening):
            state.tasks.add(task)
        return task

    loop.set_task_factory(create_task)
    with _loops_lock:
        for closed_loop in [known for known in _loops if known.is_closed()]:  # a loop that is not ours
            del _loops[closed_loop]
        _loops[loop] = state
    return state


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
    return asyncio.Task(coroutine, loop=loop, **options)


def _explain_no_value(function: Callable[[], Any]) -> RuntimeError:
    return RuntimeError(f"the resource {function.__qualname__} has yielded no value")


def _log_failure(function: Callable[[], Any], error: BaseException) -> None:
    _logger.warning("resource %s could not be closed: %s", function.__qualname__, describe_without_message(error))
