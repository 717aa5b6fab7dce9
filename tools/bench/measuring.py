"""Measuring on a shared machine: in turns, as ratios within one round, by their median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of several rounds and their extremes."""

    median: float
    least: float
    most: float


def seconds(work: Callable[[], object]) -> float:
    """Return how long *work* takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(rounds: int, works: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Call each of *works* once a round, every other round backwards; return what they returned, by name.

    A work prepares on its own and returns only what is to be compared: seconds, or a rate.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds):
        for name in list(works)[:: -1 if turn % 2 else 1]:
            found[name].append(works[name]())
    return found


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the extremes of *values*."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values))


def ratio(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Return how *values* compare with what was measured in the same round of *others*."""
    return spread([value / other for value, other in zip(values, others, strict=True)])
