"""Process control for isolated runs. Linux-only calls do nothing elsewhere, where process groups must suffice."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

_SET_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
_MAX_OOM_SCORE: Final = "1000"  # the kernel's highest oom_score_adj

_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def kill_with_group(leader: int) -> None:
    """Kill the process *leader* and the group of the same number, which *leader* may have left."""
    for send_signal in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send_signal(leader, signal.SIGKILL)


def set_parent_death_signal() -> None:
    """Have the kernel kill this process once its parent ends."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def raise_oom_score() -> None:
    """Have the kernel kill this process and its children first once memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_MAX_OOM_SCORE)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_SET_SUBREAPER, 1)


def list_children() -> set[int]:
    """Return the process ids of this process's children, including ended ones that are not reaped."""
    with contextlib.suppress(OSError):
        pids = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
        return {int(pid) for pid in pids.split()}
    return set()


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
