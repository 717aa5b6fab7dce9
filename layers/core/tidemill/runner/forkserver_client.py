"""The executor's client of a forkserver, which messages call the helper process: start it, request children, end it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from tidemill.errors import IsolationError
from tidemill.runner.process_protocol import (
    JSON_LOG,
    MAX_READ_BYTES,
    PLAIN_LOG,
    POLL_INTERVAL_SEC,
    QUIT,
    RUN,
    ForkserverLostError,
    Frames,
    GarbledError,
    poll_intervals,
)

_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[5:]; from tidemill.runner.forkserver import main; main(*sys.argv[1:5])"
)
_SEND_TIMEOUT_SEC: Final = 5.0
_EXIT_TIMEOUT_SEC: Final = 5.0


class ForkserverClient:
    """A forkserver that is ready to fork. Used from many threads.

    Args:
        package: The package that it imports.
        directory: The directory it is started in.
        python_path: Its ``sys.path``.
        logs_json: Whether its loggers write lines of JSON.
        start_within: Time limit until it is ready.
        answer_within: Longest silence after a request.

    Raises:
        IsolationError: It cannot be started, or is not ready in time.
    """

    def __init__(
        self,
        package: str,
        *,
        directory: str,
        python_path: Sequence[str],
        logs_json: bool,
        start_within: timedelta,
        answer_within: timedelta,
    ) -> None:
        self._answer_within = answer_within
        self._lock = threading.Lock()
        self._answer_count = 0
        try:
            arguments = (package, JSON_LOG if logs_json else PLAIN_LOG, *python_path)
            self._control, self._process = _start_process(directory, arguments)
        except OSError as error:
            raise IsolationError(f"the helper process cannot be started ({error.strerror})") from error
        try:
            _await_ready(self._control, start_within)
        except BaseException:
            self.kill()
            raise
        self._control.settimeout(_SEND_TIMEOUT_SEC)

    @property
    def pid(self) -> int:
        """Process id of the forkserver."""
        return self._process.pid

    def request_child(self, run_socket: socket.socket, watch_socket: socket.socket) -> None:
        """Request a child that gets *run_socket*; the forkserver keeps *watch_socket*.

        Keep both open until the forkserver reports the child: some systems drop a socket in transit that no process
        has open.

        Raises:
            ForkserverLostError: The forkserver is gone.
        """
        try:
            with self._lock:
                socket.send_fds(self._control, [RUN], [run_socket.fileno(), watch_socket.fileno()])
        except OSError:
            raise ForkserverLostError from None

    def is_gone(self) -> bool:
        """Return whether the process has ended; if so, release its resources."""
        if self._process.poll() is None:
            return False
        self.kill()
        return True

    def note_answer(self) -> None:
        """Record that the forkserver sent something."""
        self._answer_count += 1

    def poll_until_silent(self) -> Iterator[None]:
        """Yield once per poll interval until the forkserver was silent for *answer_within*.

        An answer that any thread receives restarts the time.
        """
        count = -1
        while count != self._answer_count:
            count = self._answer_count
            for _ in poll_intervals(self._answer_within):
                yield
                if count != self._answer_count:
                    break

    def kill(self) -> None:
        """Kill the forkserver at once; its reaper kills the remaining processes."""
        self._process.kill()
        self._await_exit()
        with self._lock:
            self._control.close()

    def close(self) -> None:
        """End the forkserver and all its children."""
        with contextlib.suppress(OSError), self._lock:
            self._control.sendall(QUIT)
        self._await_exit()
        self.kill()

    def _await_exit(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_SEC)


def _start_process(directory: str, arguments: Sequence[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a forkserver; return the connection to it and its process."""
    executor_end, forkserver_end = socket.socketpair()
    for end in (executor_end, forkserver_end):
        end.settimeout(None)  # a function may have set a default timeout
    try:
        with forkserver_end:
            return executor_end, _spawn_forkserver(forkserver_end, directory, arguments)
    except BaseException:
        executor_end.close()
        raise


def _spawn_forkserver(control: socket.socket, directory: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    fd = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)  # above the standard descriptors
    try:
        return subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", _PROGRAM, str(fd), str(os.getpid()), *map(str, arguments)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            start_new_session=True,  # so that Ctrl-C does not reach it
        )
    finally:
        os.close(fd)


def _await_ready(control: socket.socket, start_within: timedelta) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    frames = Frames(limit=MAX_READ_BYTES)
    for _ in poll_intervals(start_within):
        if poll.poll(POLL_INTERVAL_SEC * 1000) and (message := _receive_message(control, frames)):
            if "ready" in message:
                return
            raise IsolationError(message["failed"])
    raise IsolationError(f"the helper process was not ready within {start_within.total_seconds():g} s")


def _receive_message(control: socket.socket, frames: Frames) -> dict[str, Any] | None:
    try:
        data = control.recv(MAX_READ_BYTES)
        messages = list(frames.add(data))
    except (OSError, GarbledError):
        data = b""
        messages = []
    if not data:
        raise IsolationError("the helper process ended while it started")
    return messages[0] if messages else None
