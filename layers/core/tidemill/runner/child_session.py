"""One isolated run in a forked child: the executor's end of its two connections, and the session over them."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tidemill.errors import IsolationError
from tidemill.runner.child_state import (
    ChildState,
    ConnectionEnd,
    Forked,
    Forking,
    NotForked,
    Received,
    decide_result,
    has_answered,
    has_begun,
    is_call_final,
    is_child_gone,
    is_decided,
    on_child,
    on_deadline,
    on_forkserver,
)
from tidemill.runner.forkserver_client import ForkserverClient
from tidemill.runner.process_protocol import (
    CANCEL,
    MAX_ANSWER_BYTES,
    MAX_READ_BYTES,
    POLL_INTERVAL_SEC,
    Frames,
    GarbledError,
    RunSpec,
    encode_run_spec,
    send_message,
)
from tidemill.runner.results import RunResult

_SEND_TIMEOUT_SEC: Final = 10.0


class ChildSession:
    """Runs *spec* in a child of *forkserver* and removes the child afterwards. To be used once.

    The function is called by *begin_by*, on the monotonic clock, or not at all.
    """

    def __init__(
        self, forkserver: ForkserverClient, spec: RunSpec, *, begin_by: float, cancelled: threading.Event
    ) -> None:
        self._forkserver = forkserver
        self._spec = spec
        self._deadline = begin_by
        self._cancelled = cancelled
        self._has_sent_cancel = False
        self._channel = _open_channel(forkserver)
        self._state: ChildState = Forking()

    def run(self) -> RunResult:
        """Run the function and return its result.

        Raises:
            ForkserverLostError: The forkserver was lost before the function started.
            IsolationError: The function did not start, for another reason.
        """
        with self._channel:
            self._fork_child()
            if isinstance(self._state, Forked):
                self._call_function()
                self._remove_child()
        return decide_result(self._state)

    def _fork_child(self) -> None:
        self._channel.request_child()
        for _ in self._forkserver.poll_until_silent():
            self._receive(POLL_INTERVAL_SEC)
            if isinstance(self._state, NotForked):
                return
            if time.monotonic() >= self._deadline:
                raise IsolationError("the helper process is too busy")
            if isinstance(self._state, Forked) or self._forkserver.is_gone():
                return

    def _call_function(self) -> None:
        """Have the child call the function; return once the result is decided or the deadline has passed."""
        self._channel.send_run(self._spec)
        self._wait_until(lambda state: has_begun(state) or is_decided(state))
        if has_begun(self._state):
            self._deadline = time.monotonic() + self._spec.timeout.total_seconds()
            self._wait_until(is_decided)
        self._receive_pending()
        self._state = on_deadline(self._state)

    def _wait_until(self, is_enough: Callable[[ChildState], bool]) -> None:
        while not is_enough(self._state) and (remaining := self._deadline - time.monotonic()) > 0:
            if has_begun(self._state) and self._cancelled.is_set() and not self._has_sent_cancel:
                self._channel.send_cancel()
                self._has_sent_cancel = True
            self._receive(min(POLL_INTERVAL_SEC, remaining))

    def _remove_child(self) -> None:
        """Have the child killed and wait for its end. Until then a late function may still start."""
        self._channel.request_kill()
        for _ in self._forkserver.poll_until_silent():
            if is_child_gone(self._state):
                break
            self._receive(POLL_INTERVAL_SEC)
        else:
            if not has_answered(self._state):
                self._forkserver.kill()
        self._receive_pending()

    def _receive(self, timeout_sec: float) -> None:
        self._state = self._channel.receive(self._state, timeout_sec)

    def _receive_pending(self) -> None:
        self._state = self._channel.receive_pending(self._state)


def _open_channel(forkserver: ForkserverClient) -> ChildChannel:
    try:
        return ChildChannel(forkserver)
    except OSError as error:
        raise IsolationError(f"no socket can be opened ({error.strerror})") from error


class ChildChannel:
    """The connections of one run: to its child, which answers, and to the forkserver, which kills and reaps the child.

    What arrives over them moves the state of the child, which the caller keeps.
    """

    def __init__(self, forkserver: ForkserverClient) -> None:
        self._forkserver = forkserver
        self._run_socket, self._child_end = socket.socketpair()
        self._watch_socket, self._forkserver_end = socket.socketpair()
        for end in (self._child_end, self._watch_socket, self._forkserver_end):
            end.settimeout(None)  # a function may have set a default timeout
        self._run_socket.settimeout(_SEND_TIMEOUT_SEC)
        self._child_frames = Frames(limit=MAX_ANSWER_BYTES)
        self._forkserver_frames = Frames(limit=MAX_ANSWER_BYTES)
        self._poll = select.poll()
        for end in (self._run_socket, self._watch_socket):
            self._poll.register(end, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._run_socket, self._watch_socket, self._child_end, self._forkserver_end):
            end.close()

    def request_child(self) -> None:
        """Request a fork.

        Raises:
            ForkserverLostError: The forkserver is gone.
        """
        self._forkserver.request_child(self._child_end, self._forkserver_end)

    def send_run(self, spec: RunSpec) -> None:
        """Send the run spec to the child; an error is left to `receive`, which sees the child's end."""
        with contextlib.suppress(OSError):
            send_message(self._run_socket, encode_run_spec(spec))

    def send_cancel(self) -> None:
        """Send the cancellation of the task to the child."""
        with contextlib.suppress(OSError):
            self._run_socket.sendall(CANCEL)

    def request_kill(self) -> None:
        """Have the child killed, and everything it started."""
        with contextlib.suppress(OSError):
            self._watch_socket.shutdown(socket.SHUT_WR)

    def receive(self, state: ChildState, timeout_sec: float) -> ChildState:
        """Return the state that follows *state* by what arrives within *timeout_sec*."""
        for fd, _ in self._poll.poll(timeout_sec * 1000):
            receive = self._receive_from_child if fd == self._run_socket.fileno() else self._receive_from_forkserver
            state = receive(state)
        return state

    def receive_pending(self, state: ChildState) -> ChildState:
        """Return the state that follows *state* by everything that has arrived."""
        while self._poll.poll(0):
            state = self.receive(state, 0)
        return state

    def _receive_from_child(self, state: ChildState) -> ChildState:
        received = _read(self._run_socket, self._child_frames)
        state = functools.reduce(on_child, received, state)
        if is_call_final(state) or ConnectionEnd.CLOSED in received:
            self._poll.unregister(self._run_socket)
        return state

    def _receive_from_forkserver(self, state: ChildState) -> ChildState:
        self._forkserver.note_answer()
        received = _read(self._watch_socket, self._forkserver_frames)
        if not received:  # a part of a message
            return state
        self._child_end.close()
        self._forkserver_end.close()
        if isinstance(received[-1], ConnectionEnd):
            self._poll.unregister(self._watch_socket)
        return functools.reduce(on_forkserver, received, state)


def _read(connection: socket.socket, frames: Frames) -> list[Received]:
    """Return the messages that have arrived over *connection*, and its end."""
    data = _receive_bytes(connection)
    received: list[Received] = []
    try:
        received.extend(frames.add(data))
    except GarbledError:
        received.append(ConnectionEnd.GARBLED)
    if not data:
        received.append(ConnectionEnd.CLOSED)
    return received


def _receive_bytes(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MAX_READ_BYTES)
    except OSError:  # it was closed with unread data
        return b""
