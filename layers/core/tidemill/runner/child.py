"""Child process of one isolated run: receive the run spec, run the function on the main thread, answer, exit.

A second thread receives the cancellation. It kills the child and everything it started once the executor is gone.
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

from tidemill.registry import Registry, TaskType
from tidemill.runner import linux
from tidemill.runner.call import Coroutines, run_function
from tidemill.runner.linux import kill_with_group
from tidemill.runner.process_protocol import (
    MAX_READ_BYTES,
    MAX_RUN_SPEC_BYTES,
    Frames,
    RunSpec,
    decode_run_spec,
    encode_answer,
    send_message,
)
from tidemill.task_functions import TaskContext

EXIT_CODE_BROKEN: Final = 70
"""Exit code of a child that failed before the function was called, or outside it."""


def run_and_exit(run_socket: socket.socket, registry: Registry, *, forkserver: int) -> NoReturn:
    """Run the function that the run spec on *run_socket* names, and exit this process."""
    code = EXIT_CODE_BROKEN
    try:
        _isolate_process(forkserver)
        _run_received_spec(run_socket, registry)
        code = 0
    finally:
        os._exit(code)


def _isolate_process(forkserver: int) -> None:
    os.setpgid(0, 0)
    linux.set_parent_death_signal()
    if os.getppid() != forkserver:  # it exited before the signal was set
        os._exit(EXIT_CODE_BROKEN)
    linux.raise_oom_score()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it would hold payloads
    linux.become_subreaper()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_received_spec(run_socket: socket.socket, registry: Registry) -> None:
    spec = _receive_run_spec(run_socket)
    task_type = registry.get(spec.name)
    if task_type is None:
        send_message(run_socket, {"refused": f"no task function is registered as {spec.name!r}"})
        return
    cancelled = threading.Event()
    threading.Thread(
        target=_watch_executor, args=(run_socket, cancelled), name="tidemill-watch-executor", daemon=True
    ).start()
    _run_and_answer(run_socket, spec, task_type, cancelled)


def _receive_run_spec(run_socket: socket.socket) -> RunSpec:
    frames = Frames(limit=MAX_RUN_SPEC_BYTES)
    while True:
        data = run_socket.recv(MAX_READ_BYTES)
        if not data:
            os._exit(EXIT_CODE_BROKEN)  # the executor closed the connection before it sent a run spec
        for message in frames.add(data):
            return decode_run_spec(message)


def _run_and_answer(run_socket: socket.socket, spec: RunSpec, task_type: TaskType, cancelled: threading.Event) -> None:
    pid, socket_id = os.getpid(), _identify_socket(run_socket)
    ctx = TaskContext(
        task_id=spec.task_id,
        attempt=spec.attempt,
        is_last_attempt=spec.is_last_attempt,
        deadline=time.monotonic() + spec.timeout.total_seconds(),
        correlation_id=spec.correlation_id,
        traceparent=spec.traceparent,
        _cancelled=cancelled,
    )
    send_message(run_socket, {"begun": True})
    coroutines = Coroutines()  # never closed: calls left on threads end with the process
    result = run_function(lambda: coroutines.run_to_end(lambda: task_type.call(spec.payload, ctx)), task_type.rules)
    # A fork made by the function must not answer, and nothing may go to a descriptor that replaced the socket.
    if os.getpid() == pid and _identify_socket(run_socket) == socket_id:
        _flush_output()
        send_message(run_socket, encode_answer(result))


def _watch_executor(run_socket: socket.socket, cancelled: threading.Event) -> None:
    """Set *cancelled* on the executor's message; kill this process and its group at the end of the connection."""
    with contextlib.suppress(OSError):  # the function closed the socket: the forkserver kills this process
        while run_socket.recv(MAX_READ_BYTES):
            cancelled.set()
        kill_with_group(os.getpid())


def _identify_socket(run_socket: socket.socket) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.fstat(run_socket.fileno())
        return status.st_dev, status.st_ino
    return None


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the function may have replaced it by any object
            stream.flush()
