"""The watch of a worker: signals stop the worker, and its errors are reported once."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from types import FrameType
from typing import Final, Self

from tidemill.cli.output import warn
from tidemill.errors import TidemillError, UnavailableError
from tidemill.executor.lifetime import Worker
from tidemill.executor.maintenance import Maintenance

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ERROR_POLL_SEC: Final = 0.25
"""Time between two looks at the worker's errors while no signal comes."""

_MAX_READ_BYTES: Final = 64
"""Signal numbers read at once, one byte each."""


class Watch:
    """Context in which the first SIGINT, SIGTERM or SIGHUP sets *stop*, and the next calls *leave* with its number.

    Before `begin`, the first signal calls *leave*. A closed terminal may send SIGHUP more than once: a later SIGHUP
    is ignored.

    A thread of its own handles the signals: a handler in the main thread may run while that thread holds the lock
    of *stop*, which setting *stop* takes too. A process that a task function forks gets the handlers of before.
    """

    def __init__(
        self, worker: Worker, *, stop: Event, leave: Callable[[int], object], warn: Callable[[str], object] = warn
    ) -> None:
        self._worker = worker
        self._stop = stop
        self._leave = leave
        self._warn = warn
        self.has_begun = False
        self._lock = threading.Lock()
        self._mask = threading.local()
        self._error: TidemillError | None = None
        self._has_reported_unstarted = False
        self._maintenance: Maintenance | None = None
        self._has_reported_maintenance = False
        self._is_maintenance_covered = False
        self._numbers, self._wakeup = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="tidemill-watch", daemon=True)

    def __enter__(self) -> Self:
        self._numbers.settimeout(ERROR_POLL_SEC)
        self._wakeup.settimeout(0)  # signals lost to a full buffer only repeat earlier signals
        self._descriptor_before = signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        # Signals that the parent process ignored stay ignored, as for any job in the background.
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers_before = {number: signal.signal(number, _ignore_in_main_thread) for number in handled}
        os.register_at_fork(
            before=self._hold_signals, after_in_parent=self._release_signals, after_in_child=self._leave_signals
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leave_signals()
        self._wakeup.shutdown(socket.SHUT_RDWR)  # a forked process may have it open still
        self._wakeup.close()
        self._thread.join()
        self._numbers.close()

    def begin(self, maintenance: Maintenance | None = None) -> None:
        """Let the first signal stop the worker from now on, instead of calling *leave*, which does not return.

        Errors of *maintenance* are reported, too. Task modules were imported before, and may have taken the signals.
        """
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in self._handlers_before:
            signal.signal(number, _ignore_in_main_thread)
        self._maintenance = maintenance
        with self._lock:
            self.has_begun = True

    def _leave_signals(self) -> None:
        """Give the signals back, at the end and in a forked process; a second call does nothing."""
        if self._handlers_before:
            signal.set_wakeup_fd(self._descriptor_before)
        while self._handlers_before:
            signal.signal(*self._handlers_before.popitem())
        self._release_signals()

    def _hold_signals(self) -> None:
        """Block the signals while this thread forks: until the new process left them, it would tell this worker."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if self._handlers_before else None

    def _release_signals(self) -> None:
        before, self._mask.before = getattr(self._mask, "before", None), None
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _serve(self) -> None:
        while True:
            with suppress(TimeoutError):
                numbers = self._numbers.recv(_MAX_READ_BYTES)
                if not numbers:
                    self._report_unstarted()
                    return
                for number in numbers:
                    with self._lock:
                        self._handle(number)
            self._report_error()

    def _handle(self, number: int) -> None:
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
        self._warn(f"stopping: {tasks}; a second signal exits at once" if running else "stopping")

    def _report_error(self) -> None:
        before, self._error = self._error, self._worker.error
        if self._error is None and before is not None:
            self._warn("working again")
        elif self._error is not None and type(self._error) is not type(before):
            self._warn(f"{self._error}; trying again")
        self._report_maintenance()
        self._report_unstarted()

    def _report_maintenance(self) -> None:
        """Report an error of the maintenance once, unless the worker has the same trouble with MongoDB."""
        error = None if self._maintenance is None else self._maintenance.error
        if error is None:
            if self._has_reported_maintenance:
                self._warn("maintenance works again")
            self._has_reported_maintenance = self._is_maintenance_covered = False
        elif isinstance(error, UnavailableError) and (self._error is not None or self._is_maintenance_covered):
            self._is_maintenance_covered = True
        elif not self._has_reported_maintenance:
            self._has_reported_maintenance = True
            self._warn(f"maintenance failed: {error}; trying again")

    def _report_unstarted(self) -> None:
        reason = self._worker.not_started
        if reason is not None and not self._has_reported_unstarted:
            self._has_reported_unstarted = True
            self._warn(f"a task did not start and is postponed: {reason}")


def _ignore_in_main_thread(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: Python writes the number of a signal to the wakeup socket only if the signal has a handler."""
