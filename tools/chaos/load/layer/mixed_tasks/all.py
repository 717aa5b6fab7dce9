"""Functions of every temper, each of which leaves a line when it begins, and one when it succeeds."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any, Final

from tidemill import Backoff, RetryPolicy, TaskContext, task

TRACES: Final = "LOAD_TRACES"
"""The variable that names the file."""

AGAIN: Final = RetryPolicy(max_retries=5, backoff=Backoff(strategy="fixed", base_sec=0.3, jitter="full"))
TWICE: Final = RetryPolicy(max_retries=1, backoff=Backoff(strategy="fixed", base_sec=0.3, jitter="none"))


@task("quick", retry=AGAIN, http=True)
def quick(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Take no time."""
    _trace("began", payload, ctx)
    _trace("done", payload, ctx)


@task("sleeps", retry=AGAIN, http=True)
def sleeps(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Keep its thread for ``sec``, and return something that is stored."""
    _trace("began", payload, ctx)
    time.sleep(payload["sec"])
    _trace("done", payload, ctx)
    return "x" * 100


@task("awaits", retry=AGAIN, http=True)
async def awaits(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Wait for ``sec`` on an event loop."""
    _trace("began", payload, ctx)
    await asyncio.sleep(payload["sec"])
    _trace("done", payload, ctx)


@task("fails_twice", retry=AGAIN, http=True)
def fails_twice(payload: dict[str, Any], ctx: TaskContext) -> int:
    """Fail, fail again, and succeed."""
    _trace("began", payload, ctx)
    if ctx.attempt <= 2:
        raise RuntimeError("not yet")
    _trace("done", payload, ctx)
    return ctx.attempt


@task("fails", retry=TWICE, http=True)
def fails(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Fail always."""
    _trace("began", payload, ctx)
    raise RuntimeError("never")


@task("overruns", timeout=0.2, retry="one_shot", http=True)
async def overruns(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Run into its timeout."""
    _trace("began", payload, ctx)
    await asyncio.sleep(60)


@task("isolated", isolate=True, retry=AGAIN, http=True)
def isolated(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Succeed in a process of its own."""
    _trace("began", payload, ctx)
    _trace("done", payload, ctx)


@task("crashes", isolate=True, retry=TWICE, http=True)
def crashes(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Kill the process it runs in, which is its own."""
    _trace("began", payload, ctx)
    os.kill(os.getpid(), signal.SIGKILL)


def _trace(what: str, payload: dict[str, Any], ctx: TaskContext) -> None:
    """Append a line with one write, which leaves those of other processes whole."""
    line = f"{what} {ctx.task_id} {ctx.attempt} {payload['n']} {len(payload['text'])}\n"
    file = os.open(os.environ[TRACES], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
