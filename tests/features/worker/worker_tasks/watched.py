"""Each leaves a line with its number in the file ``trace`` of its payload once it begins, and does not end at once."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

from tidemill import Backoff, Fail, RetryPolicy, TaskContext, task

LONG_SEC = 600.0


@task("watched.note")
def note(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """End at once."""
    _trace(payload)


@task("watched.wait", timeout=LONG_SEC)
def wait(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Wait for the file ``go``, or until it is asked to stop; return which it was."""
    _trace(payload)
    while not Path(payload["go"]).exists():
        if ctx.cancelled():
            return "stopped"
        time.sleep(0.01)
    return "went"


@task("watched.exhaust", timeout=LONG_SEC)
def exhaust(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Let this process have no more slots, and wait for the file ``go``."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "tidemill-slot":
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse  # type: ignore[assignment,method-assign]
    _trace(payload)
    while not Path(payload["go"]).exists():
        time.sleep(0.01)


@task("watched.await", timeout=LONG_SEC)
async def await_(payload: dict[str, Any], _ctx: TaskContext) -> str:
    """Wait for the file ``go`` without blocking."""
    _trace(payload)
    while not Path(payload["go"]).exists():
        await asyncio.sleep(0.01)
    return "went"


@task("watched.apart", timeout=LONG_SEC, isolate=True)
def apart(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Wait for the file ``go`` in a process of its own, whose id is told in the trace."""
    _trace(payload | {"n": os.getpid()})
    while not Path(payload["go"]).exists():
        time.sleep(0.01)


@task("watched.burn", timeout=4, isolate=True)
def burn(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Take most of a second, as on a core of its own; the line at the end has the number below zero."""
    _trace(payload | {"n": payload["n"] + 1})
    time.sleep(0.8)
    _trace(payload | {"n": -payload["n"] - 1})


@task("watched.occupy", timeout=LONG_SEC, isolate=True)
def occupy(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Wait for the file ``go`` in a process of its own."""
    return wait(payload, ctx)


@task("watched.deaf", timeout=0.5)
def deaf(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Run past its timeout where no interruption reaches it."""
    _trace(payload)
    time.sleep(LONG_SEC)


@task("watched.fail")
def fail(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Fail for good."""
    _trace(payload)
    raise Fail("no such order", code="gone")


HOURLY = Backoff(strategy="fixed", base_sec=3600, max_sec=3600, jitter="none")


@task("watched.stumble", retry=RetryPolicy(max_retries=3, backoff=HOURLY))
def stumble(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Log a warning, and fail once an hour."""
    logging.getLogger(__name__).warning("about to stumble")
    print("half a line", end="", flush=True)  # noqa: T201 - as functions do
    raise LookupError(f"no\nroute\x1b[31m to {'x' * 3000} {payload['n'] - payload['n']}")


@task("watched.stumble_apart", retry=RetryPolicy(max_retries=0), isolate=True)
def stumble_apart(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Do the same in a process of its own, once."""
    stumble(payload, ctx)


@task("watched.fork")
def fork(payload: dict[str, Any], _ctx: TaskContext) -> list[int]:
    """Run something in forked processes."""
    _trace(payload)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, 2])


@task("watched.leave_child")
def leave_child(payload: dict[str, Any], _ctx: TaskContext) -> int:
    """Leave a forked process behind that waits for the file ``go``, and return its id."""
    pid = os.fork()
    if pid == 0:
        while not Path(payload["go"]).exists():
            time.sleep(0.01)
        os._exit(0)
    return pid


@task("watched.litter")
def litter(payload: dict[str, Any], _ctx: TaskContext) -> None:
    """Leave a thread behind that would keep the process for ever."""
    _trace(payload)
    threading.Thread(target=time.sleep, args=(LONG_SEC,)).start()


def _trace(payload: dict[str, Any]) -> None:
    with Path(payload["trace"]).open("a", encoding="utf-8") as trace:
        trace.write(f"{payload['n']}\n")
