"""Functions that do not end, or leave something that does not. Who is there is told in a file."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tidemill import TaskContext, task

_Payload = dict[str, Any]


@task("hostile.sleep")
def sleeps(payload: _Payload) -> None:
    _tell(payload, os.getpid())
    time.sleep(1000)


@task("hostile.ignores")
def ignores_signals(payload: _Payload) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _tell(payload, os.getpid())
    while True:
        time.sleep(1000)


@task("hostile.stops")
def stops_itself(payload: _Payload) -> None:
    _tell(payload, os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)


@task("hostile.holds_gil")
def hangs_in_c(payload: _Payload) -> None:
    _tell(payload, os.getpid())
    ctypes.PyDLL(None).sleep(1000)


@task("hostile.regex")
def matches_for_ever(payload: _Payload) -> None:
    _tell(payload, os.getpid())
    re.match(r"(a+)+$", "a" * 60 + "!")


@task("hostile.children")
def has_children_and_hangs(payload: _Payload) -> None:
    _tell(payload, os.getpid(), *_offspring())
    ctypes.PyDLL(None).sleep(1000)


@task("hostile.leaves_and_sleeps")
def has_children_and_sleeps(payload: _Payload) -> None:
    _tell(payload, os.getpid(), *_offspring())
    time.sleep(1000)


@task("hostile.leaves_children")
def leaves_children(payload: _Payload) -> str:
    _tell(payload, os.getpid(), *_offspring())
    return "returned"


@task("hostile.leaves_strays")
def leaves_children_in_a_session_of_their_own(payload: _Payload) -> str:
    stray = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    _tell(payload, os.getpid(), stray.pid)
    return "returned"


@task("hostile.leaves_and_dies")
def leaves_children_and_dies(payload: _Payload) -> None:
    _tell(payload, os.getpid(), *_offspring())
    os._exit(9)


@task("hostile.leaves_thread")
def leaves_a_thread(payload: _Payload) -> str:
    _tell(payload, os.getpid())
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return "returned"


@task("hostile.forks")
def forks_and_both_return(_payload: _Payload) -> str:
    parent = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)
    return "parent" if os.getpid() == parent else "fork"


@task("hostile.leaves_group")
def leaves_its_group(payload: _Payload) -> None:
    os.setpgid(0, os.getsid(0))
    _tell(payload, os.getpid())
    time.sleep(1000)


@task("hostile.waits")
def waits_for_cancellation(payload: _Payload, ctx: TaskContext) -> str:
    _tell(payload, os.getpid())
    while not ctx.cancelled():
        time.sleep(0.005)
    return "stopped"


@task("hostile.leaves_orphan")
def leaves_an_orphan_and_waits(payload: _Payload, ctx: TaskContext) -> str:
    between = subprocess.run(
        ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    )
    _tell(payload, os.getpid(), int(between.stdout))
    while not ctx.cancelled():
        time.sleep(0.005)
    return "stopped"


def _offspring() -> list[int]:
    """Start a program, and a fork that ignores what it can."""
    program = subprocess.Popen(["sleep", "1000"])
    if fork := os.fork():
        return [program.pid, fork]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1000)


def _tell(payload: _Payload, *pids: int) -> None:
    told = Path(payload["trace"])
    half = told.with_suffix(".half")
    half.write_text(" ".join(map(str, pids)))
    half.rename(told)
