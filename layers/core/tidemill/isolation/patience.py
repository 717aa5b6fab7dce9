"""Waiting in slices: where a container is frozen meanwhile that costs one slice, not all the patience there is."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

SLICE_SEC: Final = 0.2
"""Also how late a cancellation may be passed on."""


def slices(span: timedelta) -> range:
    """Return as many numbers as there are slices in *span*, at least one."""
    return range(max(1, math.ceil(span.total_seconds() / SLICE_SEC)))
