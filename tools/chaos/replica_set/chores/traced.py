"""Functions that leave a trace of each run: when it began, and when it ended, if it did."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tidemill import TaskContext, task
from tools.chaos.replica_set.traces import traced

FAILS_BEFORE = 2


@task("quick", http=True)
def quick(_: dict[str, Any], ctx: TaskContext) -> str:
    """Do nothing else."""
    with traced(ctx):
        return "done"


@task("slow", http=True)
def slow(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Take so many ``ms``."""
    with traced(ctx):
        time.sleep(payload["ms"] / 1000)


@task("unpunctual", http=True)
async def unpunctual(_: dict[str, Any], ctx: TaskContext) -> None:
    """Fail at the first two attempts."""
    with traced(ctx):
        if ctx.attempt <= FAILS_BEFORE:
            raise OSError("not yet")


@task("broken", http=True)
def broken(_: dict[str, Any], ctx: TaskContext) -> None:
    """Fail each time."""
    with traced(ctx):
        raise OSError("never")


@task("alone", http=True, isolate=True)
def alone(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Take so many ``ms`` in a process of its own."""
    with traced(ctx):
        time.sleep(payload["ms"] / 1000)


@task("fatal", http=True)
def fatal(_: dict[str, Any], ctx: TaskContext) -> None:
    """Kill the process it runs in, which the first time is its executor."""
    with traced(ctx):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
