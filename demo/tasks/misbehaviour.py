"""Task functions for what no webhook can do to its worker."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tidemill import task

FOR_EVER_SEC = 600.0


@task("demo_crash", http=True)
def demo_crash(_: dict[str, Any]) -> None:
    """Kill the process, as running out of memory would: nothing is caught, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


@task("demo_hang", http=True)
def demo_hang(_: dict[str, Any]) -> None:
    """Wait inside C code, where the executor's interruption does not reach."""
    time.sleep(FOR_EVER_SEC)
