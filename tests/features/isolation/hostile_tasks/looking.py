"""Functions that look at what they were given, and change what they can."""

from __future__ import annotations

import asyncio
import decimal
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pymongo import MongoClient

from tidemill import TaskContext, task

_Payload = dict[str, Any]
_spoilt: list[str] = []


class Letter(BaseModel):
    """A payload with a shape."""

    to: str
    copies: int = 1


@task("hostile.echo")
def echo(payload: _Payload, ctx: TaskContext) -> _Payload:
    return {"payload": payload, "task_id": ctx.task_id, "attempt": ctx.attempt, "is_last": ctx.is_last_attempt}


@task("hostile.tells_who_asked")
def tells_who_asked(_payload: _Payload, ctx: TaskContext) -> list[str | None]:
    return [ctx.correlation_id, ctx.traceparent]


@task("hostile.length")
def measures(payload: _Payload) -> int:
    return len(payload["text"])


@task("hostile.remaining")
def tells_its_time(_payload: _Payload, ctx: TaskContext) -> float:
    return ctx.remaining().total_seconds()


@task("hostile.letter")
def takes_a_letter(letter: Letter) -> str:
    return f"{letter.copies} to {letter.to}"


@task("hostile.noop")
def nothing(_payload: _Payload) -> None:
    return None


@task("hostile.parent")
def tells_its_parent(_payload: _Payload) -> int:
    return os.getppid()


@task("hostile.naps")
def naps(payload: _Payload) -> float:
    time.sleep(payload["seconds"])
    return float(payload["seconds"])


@task("hostile.spoils")
def spoils_its_surroundings(_payload: _Payload) -> None:
    os.chdir("/")
    os.environ["SPOILT"] = "yes"
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    socket.setdefaulttimeout(0.001)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    decimal.getcontext().prec = 1
    sys.path.clear()
    _spoilt.append("yes")


@task("hostile.looks")
def looks_at_its_surroundings(_payload: _Payload) -> _Payload:
    return {
        "folder": str(Path.cwd()),
        "spoilt": os.environ.get("SPOILT"),
        "zone": os.environ.get("TZ"),
        "timeout": socket.getdefaulttimeout(),
        "alarm": signal.getsignal(signal.SIGALRM) == signal.SIG_DFL,
        "precision": decimal.getcontext().prec,
        "path": len(sys.path) > 0,
        "module": _spoilt,
    }


@task("hostile.inspects")
def inspects_its_process(_payload: _Payload) -> _Payload:
    files = {int(link.name): str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "threads": threading.active_count(),
        "files": {str(fd): file for fd, file in sorted(files.items()) if not file.startswith("/proc/")},
        "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "clients": sum(isinstance(one, MongoClient) for one in gc.get_objects()),
        "main": str(getattr(sys.modules["__main__"], "__file__", "")),
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
    }


@task("hostile.prints")
def prints(payload: _Payload) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write(payload["text"] + "\n")


@task("hostile.writes")
def writes_to_the_standard_files(payload: _Payload) -> None:
    for fd in (1, 2):
        os.write(fd, payload["text"].encode())


@task("hostile.async")
async def is_a_coroutine(payload: _Payload, ctx: TaskContext) -> _Payload:
    await asyncio.sleep(0.01)
    return {"got": payload, "attempt": ctx.attempt}


@task("hostile.async_raises")
async def is_a_coroutine_that_raises(_payload: _Payload) -> None:
    await asyncio.sleep(0)
    raise LookupError("in a coroutine")


@task("hostile.locks")
def makes_a_lock_of_multiprocessing(_payload: _Payload) -> None:
    multiprocessing.Lock()
