"""Clock that the test moves, and random generators for the bounds of jitter."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from tidemill.clock import truncate_to_ms


class ManualClock:
    """Clock that stands still until the test moves it.

    A queue made with it uses it for every enqueued task and for every `drain` of that queue.

    ::

        clock = ManualClock()
        queue = Queue(db, clock=clock)
        queue.enqueue("remind", {"order": 7}, delay=timedelta(days=3))
        clock.move(timedelta(days=3))
        assert drain(queue).done == 1

    Do not set it far back: MongoDB removes done tasks after the retention, by its own clock.

    Args:
        at: The first time; without it, the time of this machine.
    """

    def __init__(self, at: datetime | None = None) -> None:
        self._at = to_stored_time(datetime.now(UTC) if at is None else at)

    def now(self) -> datetime:
        """Return the time, as aware UTC in whole milliseconds."""
        return self._at

    def move(self, span: timedelta) -> datetime:
        """Move the clock by *span* and return the new time."""
        self._at = truncate_to_ms(self._at + span)
        return self._at


def to_stored_time(at: datetime) -> datetime:
    """Return *at* as the database stores it: UTC in whole milliseconds.

    Raises:
        ValueError: *at* has no time zone.
    """
    if at.utcoffset() is None:
        raise ValueError("a time must carry a time zone, as in datetime.now(UTC)")
    return truncate_to_ms(at.astimezone(UTC))


class LongestJitter(random.Random):
    """Draws the longest wait that jitter allows; every other draw is random."""

    # Kept: a class that overrides `random` alone would derive every other draw from it.
    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        """Return the largest number below 1."""
        return math.nextafter(1.0, 0.0)


class ShortestJitter(random.Random):
    """Draws the shortest wait that jitter allows; every other draw is random."""

    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        """Return 0."""
        return 0.0
