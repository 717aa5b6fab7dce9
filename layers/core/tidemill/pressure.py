"""How load lengthens the wait for a retry: pure. It never shortens one."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from tidemill.policies import Pressure


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a queue has chosen and what was measured of it.

    Attributes:
        pressure: What lengthens its waits.
        ready: Tasks that are due, both lanes; counted up to a limit.
        retries: Retries scheduled in this minute of the clock.
    """

    pressure: Pressure = field(default_factory=Pressure)
    ready: int = 0
    retries: int = 0


CALM: Final = Load()


def stretched(wait: timedelta, load: Load, *, cap: timedelta) -> timedelta:
    """Return *wait* as it is under *load*: at least itself, at most *cap* or the cap of the pressure, if larger.

    Adaptive: ``max(wait, min(max_sec, wait * (1 + ready / scale)))``. A budget that is spent multiplies by its
    ``factor``; *cap* is that of the retry policy.
    """
    longest = cap
    longer = wait
    adaptive, budget = load.pressure.adaptive, load.pressure.budget
    if adaptive is not None:
        # In seconds: a timedelta overflows where many are ready.
        crowded = wait.total_seconds() * (1 + load.ready / adaptive.scale)
        longer = max(longer, timedelta(seconds=min(crowded, adaptive.max_sec)))
        longest = max(longest, timedelta(seconds=adaptive.max_sec))
    if budget is not None and load.retries >= budget.per_minute:
        longer = max(longer, min(longest, longer * budget.factor))
    return longer
