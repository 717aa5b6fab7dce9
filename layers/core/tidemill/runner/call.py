"""Call a task function on the current thread, run the coroutine it returns, and turn the outcome into a result."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, Final, TypeAlias, TypeGuard

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode
from tidemill.policy.failures import COMMON, Rules, classify, find_snooze_request, truncate_text, type_name
from tidemill.requests.validation import find_storage_problem
from tidemill.runner.event_loop import EventLoop
from tidemill.runner.results import Raised, Returned, SnoozeRequested

MAX_RESULT_BYTES: Final = 64 * 1024
_MAX_TYPE_NAME_CHARS: Final = 100

Uninterruptible: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Enters a section in which no other thread raises an exception into this one."""


def run_function(call: Callable[[], Any], rules: Rules = COMMON) -> Returned | Raised | SnoozeRequested:
    """Make *call* and return its result. Exceptions become results too, even exits.

    The value or the exception is examined here, on this thread, since that may run their code and may block. The
    result refers to neither. Only an exception that another thread raises into this one may leave this function;
    then there is no result.
    """
    try:
        value = call()
    except BaseException as error:  # noqa: BLE001 - every exception of a function becomes a result
        return _classify_error(error, rules)
    return Returned(make_storable(value))


def _classify_error(error: BaseException, rules: Rules) -> Raised | SnoozeRequested:
    until = find_snooze_request(error)
    return Raised(classify(error, rules)) if until is None else SnoozeRequested(until)


def make_storable(value: Any) -> Any:  # noqa: ANN401 - functions return anything
    """Return a plain copy of *value*, or a description if it cannot be stored or is no strict JSON. Never raises.

    Code that the function left running cannot change the copy. The description is
    ``{"not_stored": <name of the type>, "reason": <sentence>}``.
    """
    if value is None:
        return None
    try:
        problem = find_storage_problem({"result": value}, max_bytes=MAX_RESULT_BYTES)
        if problem is None:
            return decode(RawBSONDocument(bson.encode({"result": value})))["result"]
    except BaseException as error:  # noqa: BLE001 - a hostile object may raise anything when it is examined
        problem = f"looking at it raised {type_name(error)}"
    return {"not_stored": truncate_text(type_name(value), _MAX_TYPE_NAME_CHARS), "reason": problem}


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

    def __init__(self, uninterruptible: Uninterruptible = contextlib.nullcontext) -> None:
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
            self._clear_loop(loop)

    def _clear_loop(self, loop: EventLoop) -> None:
        if not loop.clear():
            with self._uninterruptible():
                loop.close()
                self._loop = None


def _is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    # Bypasses attribute lookup on the object and its class: both may run code of the function.
    bases = type.__dict__["__mro__"].__get__(type(value))
    return any("__await__" in type.__dict__["__dict__"].__get__(base) for base in bases)


def _wrap_coroutine(value: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    async def await_value() -> Any:  # noqa: ANN401
        return await value

    return value if isinstance(value, CoroutineType) else await_value()
