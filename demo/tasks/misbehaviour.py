"""Task functions for what no webhook can do to its worker: they stand beside ``layers/tasks`` in the demo alone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tidemill import task

FOR_EVER_SEC = 600.0


def register() -> None:
    """Register them in this process. Not on import: the tests import the demo, and know what is registered."""
    task("demo_crash", http=True)(demo_crash)
    task("demo_hang", http=True)(demo_hang)


def demo_crash(_: dict[str, Any]) -> None:
    """Kill the process, as running out of memory would: nothing is caught, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def demo_hang(_: dict[str, Any]) -> None:
    """Wait inside C code, where the executor's interruption does not reach."""
    time.sleep(FOR_EVER_SEC)
