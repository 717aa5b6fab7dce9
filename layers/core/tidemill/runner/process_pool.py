"""Process pool for isolated runs, on a forkserver of our own, and the session of one run in a forked child.

The pool needs no semaphores and no shared memory, which Lambda lacks, and children inherit nothing of the executor.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Final

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
    ForkserverLostError,
    Frames,
    GarbledError,
    RunSpec,
    decode_note,
    encode_run_spec,
    send_message,
)
from tidemill.runner.results import RunResult

_SEND_TIMEOUT_SEC: Final = 10.0


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS and Windows have none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ProcessPool:
    """Runs each run spec in a child of its own, forked from one forkserver that has imported *package*.

    The first run starts the forkserver, which takes as long as importing the functions. A lost forkserver is
    replaced. All processes end with this process, however it ends, and with `close`. A run takes at most the timeout
    of its function plus *begin_within* and *answer_within*.

    Args:
        package: The package that the forkserver imports with `registry.load`.
        directory: Directory that the forkserver starts in. Task code may change the directory of this process later,
            even to a folder that is deleted.
        python_path: ``sys.path`` of the forkserver; ``None`` for the one of now.
        logs_json: Whether loggers of the functions write lines of JSON to standard output, as those of a Lambda
            function do.
        start_within: Time limit for that import. No run waits for it longer than *begin_within*.
        begin_within: Latest start of a function, counted from `run`; later it is not started.
        answer_within: Longest silence of the forkserver after a request. After that it counts as unresponsive,
            since it only forks and kills.
    """

    def __init__(
        self,
        package: str,
        *,
        directory: Path,
        python_path: Sequence[str] | None = None,
        logs_json: bool = False,
        start_within: timedelta = timedelta(seconds=15),
        begin_within: timedelta = timedelta(seconds=5),
        answer_within: timedelta = timedelta(seconds=3),
    ) -> None:
        self._start = functools.partial(
            ForkserverClient,
            package,
            directory=str(directory),
            python_path=tuple(sys.path if python_path is None else python_path),
            logs_json=logs_json,
            start_within=start_within,
            answer_within=answer_within,
        )
        self._begin_within = begin_within
        self._lock = threading.Lock()
        self._forkserver: Future[ForkserverClient] | None = None
        self._is_closed = False

    def run(self, spec: RunSpec, *, cancelled: threading.Event, take_note: Callable[[str], object]) -> RunResult:
        """Run the function and return its result, as `IsolatedRunner` defines it."""
        begin_by = time.monotonic() + self._begin_within.total_seconds()
        try:
            return self._run_in_child(spec, begin_by, cancelled, take_note)
        except ForkserverLostError:
            return self._run_in_child(spec, begin_by, cancelled, take_note)

    def close(self) -> None:
        """End the forkserver and every run. Later runs are refused."""
        with self._lock:
            self._is_closed = True
            forkserver = self._forkserver
        if forkserver is not None and forkserver.exception() is None:
            forkserver.result().close()

    def _run_in_child(
        self, spec: RunSpec, begin_by: float, cancelled: threading.Event, take_note: Callable[[str], object]
    ) -> RunResult:
        forkserver = self._await_forkserver(begin_by)
        try:
            session = ChildSession(forkserver, spec, begin_by=begin_by, cancelled=cancelled, take_note=take_note)
            return session.run()
        except ForkserverLostError:
            forkserver.kill()  # unresponsive or about to exit: the next run needs another one
            raise

    def _await_forkserver(self, begin_by: float) -> ForkserverClient:
        """Return the forkserver. Start a new one if there is none or it failed; all runs wait for the same start."""
        with self._lock:
            if self._is_closed:
                raise IsolationError("the process pool is closed")
            if self._forkserver is None or _has_failed(self._forkserver):
                self._forkserver = _start_in_background(self._start)
            forkserver = self._forkserver
        try:
            return forkserver.result(timeout=max(begin_by - time.monotonic(), 0))
        except TimeoutError:
            raise IsolationError("the helper process is not ready yet") from None


def _has_failed(forkserver: Future[ForkserverClient]) -> bool:
    if not forkserver.done() or forkserver.exception() is not None:
        return forkserver.done()
    return forkserver.result().is_gone()


def _start_in_background(start: Callable[[], ForkserverClient]) -> Future[ForkserverClient]:
    """Start a forkserver on a thread of its own, so that the start goes on when a waiting run times out."""
    forkserver = Future[ForkserverClient]()

    def start_forkserver() -> None:
        try:
            forkserver.set_result(start())
        except IsolationError as error:
            forkserver.set_exception(error)

    try:
        threading.Thread(target=start_forkserver, name="tidemill-process-pool", daemon=True).start()
    except RuntimeError as error:
        raise IsolationError("no thread can be started") from error
    return forkserver


class ChildSession:
    """Runs *spec* in a child of *forkserver* and removes the child afterwards. To be used once.

    The function is called by *begin_by*, on the monotonic clock, or not at all. One connection leads to the child,
    which answers, and one to the forkserver, which kills and reaps the child. The messages move the child's state.

    Raises:
        IsolationError: No socket can be opened.
    """

    def __init__(
        self,
        forkserver: ForkserverClient,
        spec: RunSpec,
        *,
        begin_by: float,
        cancelled: threading.Event,
        take_note: Callable[[str], object],
    ) -> None:
        self._forkserver = forkserver
        self._spec = spec
        self._deadline = begin_by
        self._cancelled = cancelled
        self._take_note = take_note
        self._has_sent_cancel = False
        self._state: ChildState = Forking()
        try:
            self._run_socket, self._child_end = socket.socketpair()
            self._watch_socket, self._forkserver_end = socket.socketpair()
        except OSError as error:
            raise IsolationError(f"no socket can be opened ({error.strerror})") from error
        for end in (self._child_end, self._watch_socket, self._forkserver_end):
            end.settimeout(None)  # a function may have set a default timeout
        self._run_socket.settimeout(_SEND_TIMEOUT_SEC)
        self._child_frames = Frames(limit=MAX_ANSWER_BYTES)
        self._forkserver_frames = Frames(limit=MAX_ANSWER_BYTES)
        self._poll = select.poll()
        for end in (self._run_socket, self._watch_socket):
            self._poll.register(end, select.POLLIN)

    def run(self) -> RunResult:
        """Run the function and return its result.

        Raises:
            ForkserverLostError: The forkserver was lost before the function started.
            IsolationError: The function did not start, for another reason.
        """
        with self._run_socket, self._watch_socket, self._child_end, self._forkserver_end:
            self._fork_child()
            if isinstance(self._state, Forked):
                self._call_function()
                self._remove_child()
        return decide_result(self._state)

    def _fork_child(self) -> None:
        self._forkserver.request_child(self._child_end, self._forkserver_end)
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
        with contextlib.suppress(OSError):  # `_receive` sees the child's end
            send_message(self._run_socket, encode_run_spec(self._spec))
        self._wait_until(lambda state: has_begun(state) or is_decided(state))
        if has_begun(self._state):
            self._deadline = time.monotonic() + self._spec.timeout.total_seconds()
            self._wait_until(is_decided)
        self._receive_pending()
        self._state = on_deadline(self._state)

    def _wait_until(self, is_enough: Callable[[ChildState], bool]) -> None:
        while not is_enough(self._state) and (remaining := self._deadline - time.monotonic()) > 0:
            if has_begun(self._state) and self._cancelled.is_set() and not self._has_sent_cancel:
                with contextlib.suppress(OSError):
                    self._run_socket.sendall(CANCEL)
                self._has_sent_cancel = True
            self._receive(min(POLL_INTERVAL_SEC, remaining))

    def _remove_child(self) -> None:
        """Have the child killed and wait for its end. Until then a late function may still start."""
        with contextlib.suppress(OSError):
            self._watch_socket.shutdown(socket.SHUT_WR)
        for _ in self._forkserver.poll_until_silent():
            if is_child_gone(self._state):
                break
            self._receive(POLL_INTERVAL_SEC)
        else:
            if not has_answered(self._state):
                self._forkserver.kill()
        self._receive_pending()

    def _receive_pending(self) -> None:
        while self._poll.poll(0):
            self._receive(0)

    def _receive(self, timeout_sec: float) -> None:
        for fd, _ in self._poll.poll(timeout_sec * 1000):
            if fd == self._run_socket.fileno():
                self._receive_from_child()
            else:
                self._receive_from_forkserver()

    def _receive_from_child(self) -> None:
        received = _read(self._run_socket, self._child_frames)
        for message in received:
            note = None if isinstance(message, ConnectionEnd) else decode_note(message)
            if note is None:
                self._state = on_child(self._state, message)
            else:
                self._take_note(note)
        if is_call_final(self._state) or ConnectionEnd.CLOSED in received:
            self._poll.unregister(self._run_socket)

    def _receive_from_forkserver(self) -> None:
        self._forkserver.note_answer()
        received = _read(self._watch_socket, self._forkserver_frames)
        if not received:  # a part of a message
            return
        self._child_end.close()
        self._forkserver_end.close()
        if isinstance(received[-1], ConnectionEnd):
            self._poll.unregister(self._watch_socket)
        self._state = functools.reduce(on_forkserver, received, self._state)


def _read(connection: socket.socket, frames: Frames) -> list[Received]:
    """Return the messages that have arrived over *connection*, and its end."""
    data = b""
    with contextlib.suppress(OSError):  # it was closed with unread data
        data = connection.recv(MAX_READ_BYTES)
    received: list[Received] = []
    try:
        received.extend(frames.add(data))
    except GarbledError:
        received.append(ConnectionEnd.GARBLED)
    if not data:
        received.append(ConnectionEnd.CLOSED)
    return received
