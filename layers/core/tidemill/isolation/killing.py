"""Killing a process with all that has stayed in its group."""

from __future__ import annotations

import contextlib
import os
import signal


def kill(leader: int) -> None:
    """Kill the process *leader*, and the group that bears its number, in which it may not be any more."""
    for deliver in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            deliver(leader, signal.SIGKILL)
