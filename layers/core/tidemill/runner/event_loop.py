"""Event loop of a thread: runs one coroutine at a time, and ends what a coroutine leaves on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Final

from tidemill.clock import read_monotonic
from tidemill.runner.resources import close_loop_resources, is_opening, list_kept_tasks

CLEANUP_TIMEOUT_SEC: Final = 0.5
"""Time limit of each step of `EventLoop.clear`: cancelled tasks, closing generators, and tasks that both started."""

_MAX_CLOSE_ATTEMPTS: Final = 3
"""Attempts to close a coroutine, which may refuse or start another."""


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
        tasks = self._list_tasks() - self._closing_tasks
        if tasks or self._had_generators:
            with contextlib.suppress(BaseException):  # the tasks may raise anything, exits included
                self._loop.run_until_complete(self._cancel_tasks(tasks))
            self._close_coroutines()
            self._had_generators = False
        return not (self._list_tasks() or self._threads.calls)

    def close(self) -> None:
        """Close what is open on the loop, and release its system resources; calls on threads go on."""
        self.close_resources()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(RuntimeError):  # an interrupted loop may still count as running
            self._loop.close()

    def close_resources(self) -> None:
        """Close the resources that are open on the loop."""
        with contextlib.suppress(BaseException):  # code of the user, or an interruption
            close_loop_resources(self._loop)

    def join(self) -> None:
        """Wait for calls on threads."""
        concurrent.futures.wait(tuple(self._threads.calls))

    async def _cancel_tasks(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await self._wait_for_other_tasks()
        if self._generators:
            for generator in tuple(self._generators):
                self._close_generator(generator)
            await self._wait_for_other_tasks()
        for task in self._list_tasks() - {asyncio.current_task()}:
            task.cancel()
        await self._wait_for_other_tasks()

    async def _wait_for_other_tasks(self) -> None:
        tasks = self._list_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=CLEANUP_TIMEOUT_SEC)

    def _close_coroutines(self) -> None:
        for _ in range(_MAX_CLOSE_ATTEMPTS):
            for task in self._list_tasks():
                with contextlib.suppress(BaseException):  # it may raise anything, exits included
                    task.get_coro().close()

    def _list_tasks(self) -> set[asyncio.Task[Any]]:
        """Return the tasks on the loop that a run has left, without those of open resources."""
        return asyncio.all_tasks(self._loop) - list_kept_tasks(self._loop)

    def _watch_generators(self) -> None:
        def add_generator(generator: AsyncGenerator[Any, Any]) -> None:
            if is_opening():  # it belongs to a resource
                return
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


def _ignore_error(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Log nothing."""
