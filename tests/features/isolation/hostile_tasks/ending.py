"""Functions that end their process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import bson

from tidemill import task

_Payload = dict[str, Any]


@task("hostile.segfault")
def segfault(_payload: _Payload) -> None:
    ctypes.string_at(0)


@task("hostile.exit")
def exits(payload: _Payload) -> None:
    os._exit(payload["code"])


@task("hostile.signal")
def is_killed(payload: _Payload) -> None:
    os.kill(os.getpid(), payload["number"])
    time.sleep(60)


@task("hostile.abort")
def aborts(_payload: _Payload) -> None:
    os.abort()


@task("hostile.alarm")
def sets_alarm(_payload: _Payload) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(60)


@task("hostile.recursion")
def recurses_in_c(_payload: _Payload) -> None:
    sys.setrecursionlimit(10**9)
    repr(_Endless())


class _Endless:
    def __repr__(self) -> str:
        return repr([self])


@task("hostile.memory")
def eats_memory(_payload: _Payload) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 1024**2,) * 2)
    eaten = []
    while True:
        eaten.append(bytearray(1024**2))


@task("hostile.closes")
def closes_all_files(_payload: _Payload) -> str:
    os.closerange(3, 1024)
    return "unheard"


@task("hostile.replaces")
def puts_files_where_sockets_were(payload: _Payload) -> str:
    os.closerange(3, 64)
    for _ in range(3, 64):
        os.open(payload["file"], os.O_CREAT | os.O_RDWR)
    return "unheard"


@task("hostile.scribbles")
def writes_garbage_to_all_files(payload: _Payload) -> str:
    _write_to_all(payload["garbage"])
    return "after garbage"


@task("hostile.floods")
def writes_messages_without_end(payload: _Payload) -> None:
    messages = payload["message"] * 10_000
    while True:
        _write_to_all(messages)


@task("hostile.kills_helper")
def kills_the_helper(_payload: _Payload) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@task("hostile.dies_after")
def answers_by_itself_and_dies(_payload: _Payload) -> None:
    _write_to_all(bson.encode({"returned": "answered"}))
    os._exit(3)


@task("hostile.answers_and_scribbles")
def answers_by_itself_and_writes_garbage(_payload: _Payload) -> None:
    _write_to_all(bson.encode({"returned": "answered"}) + b"\xff" * 10)


def _write_to_all(data: bytes) -> None:
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, data)
