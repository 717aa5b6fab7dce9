"""The hostile functions where the system lends no hand: on Linux, as if it were not.

Whoever imports this loses what `tidemill.isolation.linux` does, so only helpers do.
"""

from tidemill.isolation import linux

_SUBREAPER = 36


def _nothing() -> None:
    """Do as on another system."""


linux._prctl(_SUBREAPER, 0)  # the helper has become one already
linux.die_with_parent = linux.die_first = linux.adopt_orphans = _nothing
linux.children = set[int]
