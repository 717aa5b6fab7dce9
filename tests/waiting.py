"""Waiting with a deadline, and nothing else to import: the programs that tests start use it too."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(happens: Callable[[], bool], *, within: float = 5.0) -> bool:
    """Whether *happens* becomes true; for threads and processes, which have no moment at which they are done."""
    end = time.monotonic() + within
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
