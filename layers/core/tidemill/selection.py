"""Which lane is served first, and with how many of the free slots: pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, TypeVar, assert_never

from tidemill.model import LANES, Lane
from tidemill.policies import Selection

DEFAULT_RETRY_SHARE = 0.2
_T = TypeVar("_T")

Lanes: TypeAlias = tuple[Lane, ...]
"""One lane, or both in one order: priority, then due time, then id."""

BOTH: Lanes = LANES
RETRY: Lanes = ("retry",)
FRESH: Lanes = ("fresh",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many tasks to ask *lanes* for."""

    lanes: Lanes
    count: int


def shares(
    selection: Selection,
    *,
    lanes: Lanes = LANES,
    free: int,
    slots: int,
    retries_in_flight: int,
    retry_share: float,
    draw: float,
) -> list[Share]:
    """Return what to ask for, in the order of asking; the counts sum up to *free*. See `served` for the leftovers.

    ``weighted``: retries hold *retry_share* of the *slots*, not of one claim, while both lanes have work:
    ``clamp(floor(retry_share * slots + draw) - retries_in_flight, 0, free)``. *draw* in [0, 1) makes a fractional
    share right on average. ``retries_first``: all due retries before any fresh task. ``oldest_first``: both lanes in
    one order. Where only one of the *lanes* may be served, all selections are the same.
    """
    if len(lanes) == 1:
        return [Share(lanes=lanes, count=free)]
    match selection:
        case "weighted":
            retries = min(max(math.floor(retry_share * slots + draw) - retries_in_flight, 0), free)
            return [Share(lanes=RETRY, count=retries), Share(lanes=FRESH, count=free - retries)]
        case "retries_first":
            return [Share(lanes=RETRY, count=free), Share(lanes=FRESH, count=0)]
        case "oldest_first":
            return [Share(lanes=BOTH, count=free), Share(lanes=FRESH, count=0)]
        case _:
            assert_never(selection)


def served(asked: Sequence[Share], take: Callable[[Lanes, int], Sequence[_T]]) -> list[_T]:
    """Return what *take* gave for the shares that were *asked* for; what one lane cannot use goes to the others.

    *take* is called with lanes and a number above 0, and returns at most so many; the first lanes are asked once more
    for what nobody else could use.
    """
    given: list[_T] = []
    unused = 0
    for share in [*asked, Share(lanes=asked[0].lanes, count=0)] if len(asked) > 1 else asked:
        wanted = share.count + unused
        found = take(share.lanes, wanted) if wanted > 0 else []
        given += found
        unused = wanted - len(found)
    return given


def mixed(some: Sequence[_T], others: Sequence[_T]) -> list[_T]:
    """Return both, each in its order, so that every beginning of the whole has them in the proportions of the whole.

    What is claimed at once for many slots' worth is started one after the other: a lane holds its share of the slots
    only so.
    """
    places = [((n + 0.5) / len(one), one[n]) for one in (some, others) for n in range(len(one))]
    return [one for _, one in sorted(places, key=lambda place: place[0])]


def time_saved(*, ahead: int, mean_run: timedelta, slots: int) -> timedelta:
    """Estimate what one retry gained by going before *ahead* fresh tasks that were due: their runs, side by side.

    An estimate: as if one executor with *slots* slots served the queue and every task ran as long as the mean.
    """
    return mean_run * ahead / slots
