"""Each leaves a line in the file its payload names, then does what it is called after."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tidemill import TaskContext, task


@task("crash.innocent")
def innocent(payload: dict[str, Any], ctx: TaskContext) -> int:
    """Return how it was run: attempt 1."""
    _trace(payload, ctx)
    return ctx.attempt


@task("crash.segfault")
def segfault(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Read where nothing is."""
    _trace(payload, ctx)
    _without_a_core()
    ctypes.string_at(0)


@task("crash.exit")
def leave(payload: dict[str, Any], ctx: TaskContext) -> None:
    """End the process at once."""
    _trace(payload, ctx)
    os._exit(7)


@task("crash.memory")
def memory(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Die as the kernel ends what took too much memory."""
    _trace(payload, ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@task("crash.recursion")
def recursion(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Recurse through C until the stack is gone."""
    _trace(payload, ctx)
    _without_a_core()
    sys.setrecursionlimit(10**9)

    class Endless:
        def __repr__(self) -> str:
            return repr([self])

    repr(Endless())


def _trace(payload: dict[str, Any], ctx: TaskContext) -> None:
    with Path(payload["trace"]).open("a", encoding="utf-8") as trace:
        trace.write(f"{ctx.task_id}\n")


def _without_a_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
