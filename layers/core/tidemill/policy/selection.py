"""Selection: the order of the lanes and each lane's share of the free slots. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, TypeVar, assert_never

from tidemill.model import LANES, Lane, Selection

DEFAULT_RETRY_SHARE = 0.2
_T = TypeVar("_T")

Lanes: TypeAlias = tuple[Lane, ...]
"""One lane, or both lanes in one order: priority, then due time, then id."""

BOTH: Lanes = LANES
RETRY: Lanes = ("retry",)
FRESH: Lanes = ("fresh",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Number of tasks to claim from *lanes*."""

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
    """Return the shares in the order of claiming; the counts sum up to *free*. Unused counts may be passed on.

    ``weighted``: while both lanes have work, retries occupy *retry_share* of all *slots*, not of one claim:
    ``clamp(floor(retry_share * slots + draw) - retries_in_flight, 0, free)``. *draw* in [0, 1) makes a fractional
    share right on average. ``retries_first``: all due retries before any fresh task. ``oldest_first``: both lanes in
    one order. If *lanes* is a single lane, all selections are the same.
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


def take_shares(asked: Sequence[Share], take: Callable[[Lanes, int], Sequence[_T]]) -> list[_T]:
    """Return the tasks that *take* returned for the shares in *asked*; each lane may use the unused count before it.

    *take* is called with lanes and a count above 0, and returns at most that many tasks. It is called once more for
    the first lanes if the last lanes left a count unused.
    """
    taken: list[_T] = []
    unused = 0
    for share in [*asked, Share(lanes=asked[0].lanes, count=0)] if len(asked) > 1 else asked:
        wanted = share.count + unused
        found = take(share.lanes, wanted) if wanted > 0 else []
        taken += found
        unused = wanted - len(found)
    return taken


def interleave(first: Sequence[_T], second: Sequence[_T]) -> list[_T]:
    """Return *first* and *second* interleaved: each prefix has both in the proportion of the whole.

    A claim may return more tasks than there are slots, and they start in this order. Interleaved, each lane keeps
    its share of the slots.
    """
    positions = [((n + 0.5) / len(tasks), tasks[n]) for tasks in (first, second) for n in range(len(tasks))]
    return [task for _, task in sorted(positions, key=lambda position: position[0])]


def time_saved(*, ahead: int, mean_run: timedelta, slots: int) -> timedelta:
    """Estimate the time that a retry gained by starting before *ahead* due fresh tasks.

    The estimate assumes one executor with *slots* slots, and the mean run time for every task.
    """
    return mean_run * ahead / slots
