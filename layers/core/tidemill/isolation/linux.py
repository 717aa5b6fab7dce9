"""What only Linux offers to keep processes together; elsewhere these do nothing, and process groups have to do."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from pathlib import Path
from typing import Final

_SET_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
_LIKELIEST: Final = "1000"  # the highest score the kernel knows

_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have this process killed when its parent ends, whatever it is busy with then."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def die_first() -> None:
    """Have the kernel choose this process, and what it starts, where memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_LIKELIEST)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends."""
    _prctl(_SET_SUBREAPER, 1)


def children() -> set[int]:
    """Return the ids of this process's children, those that ended and are not reaped included."""
    with contextlib.suppress(OSError):
        listed = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
        return {int(pid) for pid in listed.split()}
    return set()


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
