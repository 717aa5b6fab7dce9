"""Task functions of a team, for these tests: what they do to the process they run in is what tasks do one day."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from tidemill import Backoff, RetryPolicy, TaskContext, task

SOON = RetryPolicy(max_retries=2, backoff=Backoff(strategy="fixed", base_sec=0.3, jitter="none"))


@task("fails_first", http=True, retry=SOON)
def fails_first(payload: dict[str, Any], ctx: TaskContext) -> int:
    """Fail the first attempt."""
    if ctx.attempt == 1:
        raise RuntimeError(f"cannot digest {payload}")
    return ctx.attempt


@task("dies", http=True, retry="one_shot")
def dies(payload: dict[str, Any]) -> str:
    """Take the process along, until the file ``cure`` is there."""
    if not Path(payload["cure"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "cured"


@task("stubborn", http=True, timeout=0.2, retry="one_shot")
def stubborn(payload: dict[str, Any]) -> None:  # noqa: ARG001
    """Take no exception for an end."""
    while True:
        try:
            time.sleep(0.02)
        except BaseException:  # noqa: BLE001
            continue


@task("waits", http=True)
def waits(payload: dict[str, Any]) -> int:
    """Wait for the file ``until``; tell in which process."""
    while not Path(payload["until"]).exists():
        time.sleep(0.01)
    return os.getpid()


@task("looks_around", http=True)
def looks_around(payload: dict[str, Any]) -> dict[str, Any]:
    """Tell what can be written to, and what the environment lacks."""
    return {
        "task_folder": _trouble_in(os.environ["LAMBDA_TASK_ROOT"]),
        "layer": _trouble_in(str(Path(__file__).parent)),
        "tmp": _trouble_in(payload["tmp"]),
        "has_home": "HOME" in os.environ,
    }


def _trouble_in(folder: str) -> str | None:
    try:
        Path(folder, "written.txt").write_text("")
    except OSError as error:
        return type(error).__name__
    return None
