"""Beside a worker: hears the signals that end it, and tells on stderr what keeps it from its work."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from types import FrameType, TracebackType
from typing import Final, Self

from tidemill.cli.tables import clean
from tidemill.errors import TidemillError
from tidemill.executor import Worker

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SEC: Final = 0.25
_MANY_BYTES: Final = 64


class Watch:
    """While it is entered, SIGINT, SIGTERM or SIGHUP sets *stop*, and another one calls *leave* with its number.

    Until it is told that the worker begins, the first calls *leave*. A terminal that is closed may send SIGHUP more
    than once, which then means nothing more.

    All in a thread of its own: a handler runs between any two instructions of the main thread, which may hold the
    very lock that setting *stop* takes.
    """

    def __init__(self, worker: Worker, *, stop: Event, leave: Callable[[int], object]) -> None:
        self._worker = worker
        self._stop = stop
        self._leave = leave
        self.has_begun = False
        self._hearing = threading.Lock()
        self._trouble: TidemillError | None = None
        self._has_told_of_unstarted = False
        self._numbers, self._noted = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="tidemill-watch", daemon=True)

    def __enter__(self) -> Self:
        self._numbers.settimeout(LOOK_SEC)
        self._noted.settimeout(0)  # what a full buffer does not take is no great loss
        self._descriptor_before = signal.set_wakeup_fd(self._noted.fileno(), warn_on_full_buffer=False)
        # What the parent had ignored stays ignored, as for any job in the background.
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers_before = {number: signal.signal(number, _only_noted) for number in heard}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        self._noted.close()
        self._thread.join()
        self._numbers.close()

    def begin(self) -> None:
        """Let no signal from now on end the process before the worker has; there is no return from one before."""
        with self._hearing:
            self.has_begun = True

    def _serve(self) -> None:
        while True:
            with suppress(TimeoutError):
                numbers = self._numbers.recv(_MANY_BYTES)
                if not numbers:
                    self._look_for_unstarted()
                    return
                for number in numbers:
                    with self._hearing:
                        self._hear(number)
            self._look()

    def _hear(self, number: int) -> None:
        if number not in SIGNALS:
            return
        if not self.has_begun:
            self._leave(number)
            return
        if self._stop.is_set():
            if number != signal.SIGHUP:
                self._leave(number)
            return
        self._stop.set()
        running = self._worker.running
        tasks = "1 task still runs" if running == 1 else f"{running} tasks still run"
        complain(f"stopping: {tasks}; once more leaves at once" if running else "stopping")

    def _look(self) -> None:
        before, self._trouble = self._trouble, self._worker.trouble
        if self._trouble is None and before is not None:
            complain("back at work")
        elif self._trouble is not None and type(self._trouble) is not type(before):
            complain(f"{self._trouble}; trying again")
        self._look_for_unstarted()

    def _look_for_unstarted(self) -> None:
        reason = self._worker.not_started
        if reason is not None and not self._has_told_of_unstarted:
            self._has_told_of_unstarted = True
            complain(f"a task did not start and is put off: {reason}")


def complain(sentence: str) -> None:
    """Say something on stderr that is no result; whether anybody reads it or not."""
    if sys.stderr is None:
        return  # print would take stdout instead
    with suppress(OSError, ValueError):
        print(f"tidemill: {clean(sentence)}", file=sys.stderr, flush=True)  # noqa: T201 - that is how a command speaks


def _only_noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: only what has a handler is noted."""
