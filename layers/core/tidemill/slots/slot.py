"""One slot: a thread that runs functions, and what the main thread may do to it meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from tidemill.conclusions import Conclusion, Coroutines
from tidemill.errors import TaskTimeoutError
from tidemill.slots.running import Ended, Running

Work: TypeAlias = Callable[[Coroutines], Conclusion]
"""Runs a function to its conclusion; never raises, but for an interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    running: Running
    work: Work


class Slot:
    """A daemon thread that runs one function at a time; the methods are for the one thread that owns it.

    The thread is *open* while it is in the function's own code, in which it may be interrupted. What the two threads
    have to agree on is changed under the lock. At most one exception is ever raised into the thread.

    Raises:
        RuntimeError: No thread can be had.
    """

    def __init__(self, outbox: queue.SimpleQueue[Ended], monotonic: Callable[[], float]) -> None:
        self._inbox: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._outbox = outbox
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._has_work = False
        self._is_open = False
        self._is_abandoned = False
        self._was_cancelled = False
        self._coroutines = Coroutines(self._sheltered)
        self.thread = threading.Thread(target=self._serve, name="tidemill-slot", daemon=True)
        self.thread.start()

    def run(self, running: Running, work: Work) -> None:
        """Run *work* and put what becomes of it into the outbox. One at a time."""
        self._has_work = True
        self._inbox.put(_Order(running=running, work=work))

    def stop(self) -> None:
        """Let the thread end, once its function has."""
        self._inbox.put(None)

    def abandon(self) -> bool:
        """Give the function up for good, and its thread; false where it has just ended and its end is on the way.

        A coroutine is cancelled, so that it can clean up: see `insist`. Anything else is interrupted.
        """
        with self._lock:
            if not self._has_work:
                return False
            self._is_abandoned = True
            self._was_cancelled = self._is_open and self._coroutines.cancel()
            if self._is_open and not self._was_cancelled:
                self._interrupt()
            return True

    def insist(self) -> None:
        """Interrupt a coroutine that was cancelled and did not end."""
        with self._lock:
            if self._is_open and self._was_cancelled:
                self._was_cancelled = False
                self._interrupt()

    def _serve(self) -> None:
        try:
            # An interruption may arrive a moment late, in here: at the latest in `_leaves`.
            with contextlib.suppress(TaskTimeoutError):
                while self._serves_one():
                    pass
        finally:
            self._coroutines.close()

    def _serves_one(self) -> bool:
        order = self._inbox.get()
        if order is None or not self._enters(may_be_interrupted=not order.running.is_isolated):
            return False
        with _alone():
            conclusion = order.work(self._coroutines)
        duration = timedelta(seconds=self._monotonic() - order.running.started)
        if not self._leaves():
            return False
        self._outbox.put(Ended(running=order.running, duration=duration, conclusion=conclusion))
        return True

    def _enters(self, *, may_be_interrupted: bool) -> bool:
        """Return false where the function was given up before it began."""
        with self._lock:
            self._is_open = may_be_interrupted and not self._is_abandoned
            return not self._is_abandoned

    def _leaves(self) -> bool:
        """Return false where the function was given up."""
        with self._lock:
            self._is_open = self._has_work = False
            return not self._is_abandoned

    @contextlib.contextmanager
    def _sheltered(self) -> Iterator[None]:
        """Be open no longer, for a moment; given up, the function gets no further than to either end of it."""
        self._turn(is_open=False)
        try:
            yield
        finally:
            self._turn(is_open=True)

    def _turn(self, *, is_open: bool) -> None:
        with self._lock:
            self._is_open = is_open and not self._is_abandoned
            if self._is_abandoned:
                raise TaskTimeoutError

    def _interrupt(self) -> None:
        ident = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_InterruptionError))
        self._coroutines.wake()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """End the process at once where it is one that was forked in here: it must not go on as a slot."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


class _InterruptionError(TaskTimeoutError, SystemExit):
    """What is raised into a thread. An exit too: event loops let nothing else through, wherever it meets them."""
