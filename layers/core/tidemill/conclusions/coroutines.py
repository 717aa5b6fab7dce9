"""Calling functions and, where they are async, running what they return to its end."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, TypeAlias, TypeGuard

from tidemill.conclusions.event_loop import EventLoop

Shelter: TypeAlias = Callable[[], AbstractContextManager[object]]


def run_to_end(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the function decides
    """Return what *call* returns and, where that can be awaited, what comes of it once it has been.

    For a single call, on a thread that runs no event loop: `Coroutines` makes many. Raises whatever the call raises,
    exits included: `conclude` is for that. On its way out it ends what was left running, as `EventLoop.clear` does;
    calls on threads go on.
    """
    with contextlib.closing(Coroutines()) as coroutines:
        return coroutines.run_to_end(call)


class Coroutines:
    """Makes the calls of one thread, one at a time, each in a context of its own, so that none sees what another set.

    A result that can be awaited is work that has not been done yet, whether the function is an ``async def`` or
    passes on what another returned. It is run as a part of the call, on an event loop that is made at the first and
    kept for the next. What a call leaves running on it ends with the call: see `EventLoop.clear`. Its timers and the
    connections it did not close stay. A loop that cannot be cleared is thrown away.

    Args:
        shelter: Entered around what must not be interrupted half-way, by threads that others raise exceptions into:
            these arrive on entering or on leaving it.
    """

    def __init__(self, shelter: Shelter = contextlib.nullcontext) -> None:
        self._shelter = shelter
        self._loop: EventLoop | None = None

    def run_to_end(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the function decides
        """Return what *call* returns and, where that can be awaited, what comes of it once it has been."""
        context = contextvars.Context()
        result = context.run(call)
        while _can_be_awaited(result):
            result = self._finished(_coroutine(result), context)
        return result

    def cancel(self) -> bool:
        """Cancel what is being awaited and return true, or false where nothing is.

        For another thread, and only while this one is in no shelter.
        """
        return self._loop is not None and self._loop.cancel()

    def wake(self) -> None:
        """Have a thread that waits within its loop notice that an exception was raised into it; like `cancel`."""
        if self._loop is not None:
            self._loop.wake()

    def close(self) -> None:
        """Close the loop; where the last call was given up, wait for what that still runs on threads."""
        if self._loop is not None:
            self._loop.close()
            self._loop.join()

    def _finished(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:  # noqa: ANN401
        try:
            with self._shelter():
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
            self._tidy(loop)

    def _tidy(self, loop: EventLoop) -> None:
        if not loop.clear():
            with self._shelter():
                loop.close()
                self._loop = None


def _can_be_awaited(result: object) -> TypeGuard[Awaitable[Any]]:
    # Without asking the object, nor its class: what a function returns may do anything when it is asked.
    bases = type.__dict__["__mro__"].__get__(type(result))
    return any("__await__" in type.__dict__["__dict__"].__get__(base) for base in bases)


def _coroutine(result: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    async def awaited() -> Any:  # noqa: ANN401
        return await result

    return result if isinstance(result, CoroutineType) else awaited()
