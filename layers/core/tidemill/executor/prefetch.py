"""Prefetch: the number of tasks to claim for slots that are not free yet.

Prefetched tasks keep slots from waiting for a claim, and keep claims large.
"""

from __future__ import annotations

import math
from typing import Final

from tidemill.executor.lifetime import TIMING, Timing

NEWEST_CLAIM_WEIGHT: Final = 0.3
"""Weight of the newest claim in the averages."""


class Prefetch:
    """Estimates the number of tasks that end during one claim. Times are readings of the monotonic clock."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self._timing = timing
        self._claim_sec = 0.0
        self._per_sec = 0.0
        self._ended = 0
        self._since: float | None = None

    def record_ended(self, count: int) -> None:
        """Record that *count* more tasks have ended."""
        self._ended += count

    def record_claim(self, *, began: float, took: float) -> None:
        """Record a claim that leased tasks."""
        self._claim_sec = (
            took if not self._claim_sec else self._claim_sec + NEWEST_CLAIM_WEIGHT * (took - self._claim_sec)
        )
        if self._since is None:
            self._since, self._ended = began, 0
        elif began - self._since >= self._timing.rate_window_sec:
            rate = self._ended / (began - self._since)
            self._per_sec = rate if not self._per_sec else self._per_sec + NEWEST_CLAIM_WEIGHT * (rate - self._per_sec)
            self._since, self._ended = began, 0

    def size_within_slots(self, *, slots: int, at: float) -> int:
        """Return the number of tasks to prefetch at time *at*: at most one per slot, and none if tasks are slow.

        A sudden drop in throughput lowers the estimate immediately, because slow tasks may follow short ones.
        """
        return min(math.floor(self._rate(at) * self._claim_sec), slots)

    def size(self, *, slots: int, most: int, at: float) -> int:
        """Return `size_within_slots`, or 30 ms of work more if every slot ends a task during one claim.

        The result is at most *most*. Large claims are preferred, because small ones cost almost as much.
        """
        supply = math.floor(self._rate(at) * (self._claim_sec + self._timing.prefetch_sec))
        return min(supply, most) if supply >= slots else self.size_within_slots(slots=slots, at=at)

    def _rate(self, at: float) -> float:
        if self._since is None or at <= self._since:
            return self._per_sec
        return min(self._per_sec, (self._ended + 1) / (at - self._since))
