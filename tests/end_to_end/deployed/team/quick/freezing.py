"""A task function that lets nothing else run."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from tidemill import task


@task("freezes", http=True, timeout=1)
def freezes(payload: dict[str, Any]) -> int:
    """Keep every thread of the process from running, until the file ``cure`` is there; tell in which process."""
    if not Path(payload["cure"]).exists():
        ctypes.PyDLL(None).sleep(60)  # unlike CDLL, it keeps the interpreter's lock
    return os.getpid()
