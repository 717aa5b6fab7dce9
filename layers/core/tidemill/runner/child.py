"""Child process of one isolated run: receive the run spec, run the function on the main thread, answer, exit.

A second thread receives the cancellation. It kills the child and everything it started once the executor is gone.

Calls that only Linux has do nothing elsewhere, where process groups must suffice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Final, NoReturn

from tidemill.clock import read_monotonic
from tidemill.registry import Registry, TaskType
from tidemill.runner.call import Coroutines, run_function
from tidemill.runner.process_protocol import (
    MAX_READ_BYTES,
    MAX_RUN_SPEC_BYTES,
    Frames,
    RunSpec,
    decode_run_spec,
    encode_answer,
    encode_note,
    send_message,
)
from tidemill.runner.resources import close_process_resources
from tidemill.task_functions import TaskContext

_SET_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
_MAX_OOM_SCORE: Final = "1000"  # the kernel's highest oom_score_adj

_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None

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


def kill_with_group(leader: int) -> None:
    """Kill the process *leader* and the group of the same number, which *leader* may have left."""
    for send_signal in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send_signal(leader, signal.SIGKILL)


def set_parent_death_signal() -> None:
    """Have the kernel kill this process once its parent ends."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def raise_oom_score() -> None:
    """Have the kernel kill this process and its children first once memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_MAX_OOM_SCORE)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_SET_SUBREAPER, 1)


def list_children() -> set[int]:
    """Return the process ids of this process's children, including ended ones that are not reaped."""
    with contextlib.suppress(OSError):
        pids = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
        return {int(pid) for pid in pids.split()}
    return set()


def _isolate_process(forkserver: int) -> None:
    os.setpgid(0, 0)
    set_parent_death_signal()
    if os.getppid() != forkserver:  # it exited before the signal was set
        os._exit(EXIT_CODE_BROKEN)
    raise_oom_score()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it would hold payloads
    become_subreaper()
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
    pid, socket_id, sending = os.getpid(), _identify_socket(run_socket), threading.Lock()

    def may_send() -> bool:
        # A fork made by the function must not send, and nothing may go to a descriptor that replaced the socket.
        return os.getpid() == pid and _identify_socket(run_socket) == socket_id

    def send_note(text: str) -> None:
        if may_send():
            with contextlib.suppress(OSError), sending:  # an error: the executor is gone
                send_message(run_socket, encode_note(text))

    ctx = TaskContext(
        task_id=spec.task_id,
        name=spec.name,
        attempt=spec.attempt,
        is_last_attempt=spec.is_last_attempt,
        deadline=read_monotonic() + spec.timeout.total_seconds(),
        correlation_id=spec.correlation_id,
        traceparent=spec.traceparent,
        _cancelled=cancelled,
        _take_note=send_note,
    )
    send_message(run_socket, {"begun": True})
    coroutines = Coroutines()  # never closed: calls left on threads end with the process
    result = run_function(
        lambda: coroutines.run_to_end(lambda: task_type.call(spec.payload, ctx)),
        task_type.rules,
        keeps_traceback=spec.keeps_traceback,
    )
    if may_send():  # before the answer, after which this process is killed
        coroutines.close_resources()
        close_process_resources()
    if may_send():
        flush_output()
        with sending:
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


def flush_output() -> None:
    """Write the buffered output of this process, whatever task code has made of its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the function may have replaced it by any object
            stream.flush()


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
