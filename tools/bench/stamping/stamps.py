"""A task that tells when it was started."""

from __future__ import annotations

import time
from typing import Any

from tidemill import task


@task("noop", http=True)
def noop(_: dict[str, Any]) -> int:
    """Return the reading of the monotonic clock, which all processes of a machine share, in nanoseconds."""
    return time.monotonic_ns()
