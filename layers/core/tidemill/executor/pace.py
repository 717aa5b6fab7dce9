"""How many tasks to hold beside the running ones, so that slots do not wait for a claim, and claims are not small."""

from __future__ import annotations

import math
from typing import Final

WEIGHT: Final = 0.3
"""What the newest claim counts in the average."""

WINDOW_SEC: Final = 0.04
"""Over how long, at least, a rate is measured: tasks that were started together end together."""

SUPPLY_SEC: Final = 0.03
"""For how long a claim of quick tasks is to last, beyond the time that the next one takes."""


class Pace:
    """Estimates how many tasks end while one claim is under way; times are readings of the monotonic clock."""

    def __init__(self) -> None:
        self._claim_sec = 0.0
        self._per_sec = 0.0
        self._ended = 0
        self._since: float | None = None

    def ended(self, count: int) -> None:
        """Note that so many tasks have ended."""
        self._ended += count

    def claimed(self, *, began: float, took: float) -> None:
        """Note a claim that brought something."""
        self._claim_sec = took if not self._claim_sec else self._claim_sec + WEIGHT * (took - self._claim_sec)
        if self._since is None:
            self._since, self._ended = began, 0
        elif began - self._since >= WINDOW_SEC:
            rate = self._ended / (began - self._since)
            self._per_sec = rate if not self._per_sec else self._per_sec + WEIGHT * (rate - self._per_sec)
            self._since, self._ended = began, 0

    def ahead(self, *, slots: int, at: float) -> int:
        """Return how many tasks to hold ready *at* that time: none where tasks are slow, at most one for every slot.

        A while in which fewer have ended than was expected counts at once: slow tasks may have followed quick ones.
        """
        return min(math.floor(self._rate(at) * self._claim_sec), slots)

    def supply(self, *, slots: int, most: int, at: float) -> int:
        """Return as many as `ahead` does or, where every slot ends a task meanwhile, what ends in `SUPPLY_SEC` more.

        That are at most *most*. A claim of a few costs nearly as much as one of many.
        """
        supply = math.floor(self._rate(at) * (self._claim_sec + SUPPLY_SEC))
        return min(supply, most) if supply >= slots else self.ahead(slots=slots, at=at)

    def _rate(self, at: float) -> float:
        if self._since is None or at <= self._since:
            return self._per_sec
        return min(self._per_sec, (self._ended + 1) / (at - self._since))
