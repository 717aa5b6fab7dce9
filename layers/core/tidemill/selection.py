"""Which lane is served first, and with how many of the free slots: pure. Further policies belong here."""

from __future__ import annotations

import math

from tidemill.model import Lane

DEFAULT_RETRY_SHARE = 0.2


def lane_quotas(
    *, free: int, slots: int, retries_in_flight: int, retry_share: float, draw: float
) -> list[tuple[Lane, int]]:
    """Return how many tasks of each lane to ask for, in the order of asking (selection ``weighted``).

    Retries hold ``retry_share`` of the *slots*, not of one claim, while both lanes have work:
    ``clamp(floor(retry_share * slots + draw) - retries_in_flight, 0, free)``. *draw* in [0, 1) makes a
    fractional share right on average. What one lane cannot use the caller offers to the other.
    """
    retries = min(max(math.floor(retry_share * slots + draw) - retries_in_flight, 0), free)
    return [("retry", retries), ("fresh", free - retries)]
