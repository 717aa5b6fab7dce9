"""An event loop that runs one coroutine at a time, and can be cleared of what that left running."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Final

PATIENCE_SEC: Final = 0.5
"""How long is waited for tasks that were cancelled, for generators to close, and for what came of both."""

_TRIES: Final = 3
"""How often a coroutine may refuse to be closed, or start another instead."""


class EventLoop:
    """A loop of asyncio, with the threads of its ``asyncio.to_thread``. Only `cancel` is for other threads.

    Not an `asyncio.Runner`, which waits without a limit for tasks that do not heed their cancellation. Nothing is
    logged of what was left running, nor of what it raised.
    """

    def __init__(self) -> None:
        self._threads = _Threads()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(self._threads)
        self._task: asyncio.Task[Any] | None = None
        self._generators = weakref.WeakSet[AsyncGenerator[Any, Any]]()
        self._closing: set[asyncio.Task[None]] = set()
        self._had_generators = False

    def begin(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> asyncio.Task[Any]:
        """Return *coroutine*, in *context*, as what is to be run next."""
        self._loop.set_exception_handler(_ignore)
        self._loop.call_soon(self._watch_generators)
        self._task = self._loop.create_task(coroutine, context=context)
        return self._task

    def run(self, task: asyncio.Task[Any]) -> Any:  # noqa: ANN401 - the function decides
        """Return what comes of *task*. Raises what it raises, or what another raised meanwhile to end the process."""
        try:
            return self._loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            with contextlib.suppress(BaseException):
                self._loop.run_until_complete(asyncio.sleep(0))  # it may still be about to stop, which this takes
            if task.done():
                return task.result()
            raise

    def is_closed(self) -> bool:
        """Tell whether somebody closed it, as a function may."""
        return self._loop.is_closed()

    def cancel(self) -> bool:
        """Cancel what runs, from any thread, and return true, or false where nothing does."""
        task = self._task
        return task is not None and not task.done() and self._calls_soon(task.cancel)

    def wake(self) -> None:
        """Have the loop look around, from any thread: it notices nothing else while it waits."""
        self._calls_soon(int)

    def _calls_soon(self, callback: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it is closed
            return False
        return True

    def clear(self) -> bool:
        """End what was left running, and tell whether nothing remains that could disturb what comes next.

        Tasks are cancelled, asynchronous generators closed, and waited for as ``PATIENCE_SEC`` says. What takes
        longer is cut off where it stands. Calls on threads cannot be ended.
        """
        self._task = None
        left = asyncio.all_tasks(self._loop) - self._closing
        if left or self._had_generators:
            with contextlib.suppress(BaseException):  # what was left may do anything, exits included
                self._loop.run_until_complete(self._end(left))
            _cut_off(self._loop)
            self._had_generators = False
        return not (asyncio.all_tasks(self._loop) or self._threads.calls)

    def close(self) -> None:
        """Give back what the loop holds of the system; calls on threads go on."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(RuntimeError):  # an interruption kept it from noting that it had stopped
            self._loop.close()

    def join(self) -> None:
        """Wait for calls on threads."""
        concurrent.futures.wait(tuple(self._threads.calls))

    async def _end(self, left: Iterable[asyncio.Task[Any]]) -> None:
        for task in left:
            task.cancel()
        await _others_end()
        if self._generators:
            for generator in tuple(self._generators):
                self._close_generator(generator)
            await _others_end()
        for task in _others():
            task.cancel()
        await _others_end()

    def _watch_generators(self) -> None:
        def begun(generator: AsyncGenerator[Any, Any]) -> None:
            self._had_generators = True
            self._generators.add(generator)

        def dropped(generator: AsyncGenerator[Any, Any]) -> None:
            with contextlib.suppress(RuntimeError):  # dropped by another thread, once the loop was closed
                self._loop.call_soon_threadsafe(self._close_generator, generator)

        sys.set_asyncgen_hooks(begun, dropped)  # until the loop stops

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        closing = self._loop.create_task(generator.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Threads(concurrent.futures.ThreadPoolExecutor):
    """Knows which calls have not ended."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="tidemill-to-thread")
        self.calls: set[concurrent.futures.Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:  # noqa: ANN401
        call = super().submit(fn, *args, **kwargs)
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        return call


def _others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _others_end() -> None:
    others = _others()
    if others:
        await asyncio.wait(others, timeout=PATIENCE_SEC)


def _cut_off(loop: asyncio.AbstractEventLoop) -> None:
    for _ in range(_TRIES):
        for task in asyncio.all_tasks(loop):
            with contextlib.suppress(BaseException):  # it may do anything, exits included
                task.get_coro().close()


def _ignore(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Say nothing."""
