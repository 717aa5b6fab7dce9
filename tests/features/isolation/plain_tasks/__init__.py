"""The hostile functions where the system lends no hand: on Linux, as if it were not.

A process that imports this package loses what only Linux does. So only forkservers import it.
"""

import ctypes
import sys

from tidemill.runner import child

_SUBREAPER = 36


def _nothing() -> None:
    """Do as on another system."""


if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0)  # the helper has become one already
child.set_parent_death_signal = child.raise_oom_score = child.become_subreaper = _nothing
child.list_children = set[int]
