"""The child: runs one function on its main thread, answers, and ends.

A second thread hears whether the task was cancelled, and kills the child with all it has started where the
executor is gone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from typing import Final, NoReturn

from tidemill.conclusions import Coroutines, conclude
from tidemill.isolation import linux
from tidemill.isolation.frames import Frames, send
from tidemill.isolation.killing import kill
from tidemill.isolation.order import IsolatedRun
from tidemill.isolation.wire import MAX_ORDER_BYTES, answer_document, order_of
from tidemill.registry import Registry, TaskContext, TaskType

BROKEN: Final = 70
"""The exit code of a child that came to nothing by itself."""

_READ_BYTES: Final = 64 * 1024


def live(talk: socket.socket, registry: Registry, *, forkserver: int) -> NoReturn:
    """Run the function that is ordered over *talk*, and end this process."""
    code = BROKEN
    try:
        _settle_in(forkserver)
        _serve(talk, registry)
        code = 0
    finally:
        os._exit(code)


def _settle_in(forkserver: int) -> None:
    os.setpgid(0, 0)
    linux.die_with_parent()
    if os.getppid() != forkserver:  # it died before it was this process's to say
        os._exit(BROKEN)
    linux.die_first()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it would hold payloads
    linux.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _serve(talk: socket.socket, registry: Registry) -> None:
    order = _received(talk)
    task_type = registry.get(order.name)
    if task_type is None:
        send(talk, {"refused": f"no task function is registered as {order.name!r}"})
        return
    cancelled = threading.Event()
    threading.Thread(target=_heed, args=(talk, cancelled), name="tidemill-heed", daemon=True).start()
    _run(talk, order, task_type, cancelled)


def _received(talk: socket.socket) -> IsolatedRun:
    frames = Frames(limit=MAX_ORDER_BYTES)
    while True:
        data = talk.recv(_READ_BYTES)
        if not data:
            os._exit(BROKEN)  # it was thought better of
        for message in frames.add(data):
            return order_of(message)


def _run(talk: socket.socket, order: IsolatedRun, task_type: TaskType, cancelled: threading.Event) -> None:
    here, socket_here = os.getpid(), _identity(talk)
    ctx = TaskContext(
        task_id=order.task_id,
        attempt=order.attempt,
        is_last_attempt=order.is_last_attempt,
        deadline=time.monotonic() + order.timeout.total_seconds(),
        correlation_id=order.correlation_id,
        traceparent=order.traceparent,
        _cancelled=cancelled,
    )
    send(talk, {"begun": True})
    calls = Coroutines()  # never closed: what a coroutine left to threads ends with the process, unawaited
    conclusion = conclude(lambda: calls.run_to_end(lambda: task_type.call(order.payload, ctx)), task_type.rules)
    # Neither a fork that the function made answers, nor is anything sent over what has taken the socket's place.
    if os.getpid() == here and _identity(talk) == socket_here:
        _flush()
        send(talk, answer_document(conclusion))


def _heed(talk: socket.socket, cancelled: threading.Event) -> None:
    """Wait for the executor's word: all that can come is that the task is cancelled, or that the executor is gone."""
    with contextlib.suppress(OSError):  # the function closed the socket: the forkserver sees to the rest
        while talk.recv(_READ_BYTES):
            cancelled.set()
        kill(os.getpid())


def _identity(talk: socket.socket) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.fstat(talk.fileno())
        return found.st_dev, found.st_ino
    return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the function may have put anything there
            stream.flush()
