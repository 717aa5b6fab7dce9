"""How many tasks to hold beside the running ones, so that slots do not wait for a claim."""

from __future__ import annotations

import math
from typing import Final

WEIGHT: Final = 0.3
"""What the newest claim counts in the average."""


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
        if self._since is not None and began > self._since:
            rate = self._ended / (began - self._since)
            self._per_sec += WEIGHT * (rate - self._per_sec)
        self._since, self._ended = began, 0

    def ahead(self, *, slots: int, at: float) -> int:
        """Return how many tasks to hold ready *at* that time: none where tasks are slow, at most one for every slot.

        A while in which fewer have ended than was expected counts at once: slow tasks may have followed quick ones.
        """
        per_sec = self._per_sec
        if self._since is not None and at > self._since:
            per_sec = min(per_sec, (self._ended + 1) / (at - self._since))
        return min(math.floor(per_sec * self._claim_sec), slots)
