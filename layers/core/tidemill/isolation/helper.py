"""The executor's handle on a forkserver: starting it, asking it for children, ending it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from tidemill.errors import IsolationError
from tidemill.isolation.frames import Frames, GarbledError
from tidemill.isolation.patience import SLICE_SEC, slices
from tidemill.isolation.wire import QUIT, RUN

_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[4:]; from tidemill.isolation.forkserver import main; main(*sys.argv[1:4])"
)
_SEND_WITHIN_SEC: Final = 5.0
_END_WITHIN_SEC: Final = 5.0
_READ_BYTES: Final = 64 * 1024


class HelperLostError(IsolationError):
    """The forkserver died, or does not answer; the function has not started."""

    def __init__(self) -> None:
        super().__init__("the helper process is gone")


class Helper:
    """A forkserver that is ready to fork. Used from many threads.

    Args:
        package: What it imports.
        directory: Where it is started.
        start_within: How long it may take until it is ready.
        answer_within: How long nothing may be heard of it where there is something it was asked for.

    Raises:
        IsolationError: It cannot be started, or is not ready in time.
    """

    def __init__(self, package: str, *, directory: str, start_within: timedelta, answer_within: timedelta) -> None:
        self._answer_within = answer_within
        self._lock = threading.Lock()
        self._signs = 0
        try:
            self._control, self._process = _started(package, directory)
        except OSError as error:
            raise IsolationError(f"the helper process cannot be started ({error.strerror})") from error
        try:
            _await_ready(self._control, start_within)
        except BaseException:
            self.kill()
            raise
        self._control.settimeout(_SEND_WITHIN_SEC)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def ask_for_child(self, talk: socket.socket, watch: socket.socket) -> None:
        """Have a child forked that gets *talk*; the forkserver keeps *watch*.

        Both are to be kept open until it says so: in flight, some systems lose what nobody else holds.

        Raises:
            HelperLostError: It is gone.
        """
        try:
            with self._lock:
                socket.send_fds(self._control, [RUN], [talk.fileno(), watch.fileno()])
        except OSError:
            raise HelperLostError from None

    def is_gone(self) -> bool:
        """Tell whether the process has ended; then nothing is left of it."""
        if self._process.poll() is None:
            return False
        self.kill()
        return True

    def gave_sign(self) -> None:
        """Note that something was heard of it."""
        self._signs += 1

    def silence(self) -> Iterator[None]:
        """Yield once for each slice that an answer may be waited for; anew, whenever any thread hears something."""
        heard = -1
        while heard != self._signs:
            heard = self._signs
            for _ in slices(self._answer_within):
                yield
                if heard != self._signs:
                    break

    def kill(self) -> None:
        """End it at once; its guard ends what it leaves behind."""
        self._process.kill()
        self._await_end()
        with self._lock:
            self._control.close()

    def close(self) -> None:
        """End it and all its children."""
        with contextlib.suppress(OSError), self._lock:
            self._control.sendall(QUIT)
        self._await_end()
        self.kill()

    def _await_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WITHIN_SEC)


def _started(package: str, directory: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a process; return the connection to it, too."""
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.settimeout(None)  # whatever a function has made the default
    try:
        with theirs:
            return ours, _connected(theirs, package, directory)
    except BaseException:
        ours.close()
        raise


def _connected(control: socket.socket, package: str, directory: str) -> subprocess.Popen[bytes]:
    fd = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)  # none of the standard ones
    try:
        return subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", _PROGRAM, str(fd), str(os.getpid()), package, *map(str, sys.path)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            start_new_session=True,  # out of Ctrl-C's reach
        )
    finally:
        os.close(fd)


def _await_ready(control: socket.socket, within: timedelta) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    frames = Frames(limit=_READ_BYTES)
    for _ in slices(within):
        if poll.poll(SLICE_SEC * 1000) and (said := _said(control, frames)):
            if "ready" in said:
                return
            raise IsolationError(said["failed"])
    raise IsolationError(f"the helper process was not ready within {within.total_seconds():g} s")


def _said(control: socket.socket, frames: Frames) -> dict[str, Any] | None:
    try:
        data = control.recv(_READ_BYTES)
        messages = list(frames.add(data))
    except (OSError, GarbledError):
        data = b""
        messages = []
    if not data:
        raise IsolationError("the helper process ended while it started")
    return messages[0] if messages else None
