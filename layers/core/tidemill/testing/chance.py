"""Chance without surprises: jitter that a test can reckon with."""

from __future__ import annotations

import math
import random


class Longest(random.Random):
    """Draws the longest wait that jitter allows, and all else by chance."""

    # Named here, since a class that overrides `random` alone would have all else drawn from that, too.
    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        """Return the largest number below 1."""
        return math.nextafter(1.0, 0.0)


class Shortest(random.Random):
    """Draws the shortest wait that jitter allows, and all else by chance."""

    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        """Return 0."""
        return 0.0
