"""Sections for tests of the frame: one finds a broken promise, one never ends."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from tools.chaos.found import Found


def survive(uri: str, *, seconds: float, seed: int) -> Found:
    """Find that one task of two was lost."""
    assert uri.startswith("mongodb://")
    return Found(
        faults=Counter(kills=3),
        accepted=2,
        done=1,
        lost=1,
        repeated=Counter({"killed while it ran": 1}),
        notes=[f"{seconds:g} s, seed {seed}"],
        broken=["task 7 is nowhere"],
    )


def never(uri: str) -> dict[str, Any]:
    """Wait for ever."""
    threading.Event().wait()
    return {"uri": uri}
