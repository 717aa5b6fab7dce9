"""Call a task function on the current thread, run the coroutine it returns, and turn the outcome into a result."""

from __future__ import annotations

import contextlib
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import is_dataclass, replace
from functools import partial
from itertools import islice
from types import AsyncGeneratorType, BuiltinFunctionType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final, cast

from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tidemill.documents import decode
from tidemill.hooks import is_awaitable
from tidemill.model import Failure
from tidemill.policy.failures import COMMON, Rules, classify, find_snooze_request, truncate_text, type_name
from tidemill.requests.validation import UnfitError, UnfitTypeError, encode_payload
from tidemill.runner.event_loop import EventLoop
from tidemill.runner.output import format_traceback
from tidemill.runner.results import Raised, Returned, SnoozeRequested

MAX_RESULT_BYTES: Final = 64 * 1024
NOT_RUN: Final = "not_run"
"""Code of a failure because the body of the function has not run, although the call returned."""

_MAX_TYPE_NAME_CHARS: Final = 100
_MAX_WALKED: Final = 10_000
"""Elements of a result that are looked at for coroutines."""


def run_function(
    call: Callable[[], Any], rules: Rules = COMMON, *, keeps_traceback: bool = False
) -> Returned | Raised | SnoozeRequested:
    """Make *call* and return its result. Exceptions become results too, even exits.

    The value or the exception is examined here, on this thread, since that may run their code and may block. The
    result refers to neither. Only an exception that another thread raises into this one may leave this function;
    then there is no result.
    """
    try:
        value = call()
    except BaseException as error:  # noqa: BLE001 - every exception of a function becomes a result
        until = find_snooze_request(error)
        if until is not None:
            return SnoozeRequested(until)
        failure = classify(error, rules)
        return Raised(replace(failure, traceback=format_traceback(error)) if keeps_traceback else failure)
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
        while is_awaitable(value):
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

    def close_resources(self) -> None:
        """Close the resources that are open on the loop, which stays."""
        if self._loop is not None:
            self._loop.close_resources()

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


def _wrap_coroutine(value: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    async def await_value() -> Any:  # noqa: ANN401
        return await value

    return value if isinstance(value, CoroutineType) else await_value()
