"""What the open dead letters failed of, by fingerprint: counted by the keys of one index, no letter is read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidemill import indexes
from tidemill.dead_letters.brief import BRIEF, brief_letter
from tidemill.dead_letters.values import Letter
from tidemill.documents import DEAD_LETTERS, decode
from tidemill.store import Tasks, translated

HOURS: Final = 24
MOST: Final = 500_000
"""So many letters are counted, which takes no more than 2 s."""

_HOUR: Final = timedelta(hours=1)
_HOUR_MS: Final = 3_600_000
_IS_OPEN: Final[dict[str, Any]] = {"$lte": ["$redriven_at", None]}  # a filter on null would have to look at the letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Open letters that failed for the same reason.

    Attributes:
        trend: How many of them died in each of the last `HOURS`, up to now, the longest ago first.
        sample: The one that died last, as a list has it; ``None`` where it has just gone.
    """

    fingerprint: str
    letters: int
    first_at: datetime | None
    last_at: datetime | None
    trend: tuple[int, ...]
    sample: Letter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The largest groups.

    Attributes:
        in_all: How many groups there are.
        letters: How many open letters there are in all of them.
        is_all: No letter was left uncounted.
    """

    page: tuple[Group, ...]
    in_all: int
    letters: int
    is_all: bool


def groups(dead: Tasks, *, limit: int, now: datetime) -> Groups:
    """Return the *limit* largest groups of open letters, of equal ones the newest first; three commands."""
    with translated(DEAD_LETTERS):
        [raw] = dead.aggregate(_largest(limit), hint=indexes.GROUPS, allowDiskUse=True)
    found = decode(raw)
    totals = next(iter(found["totals"]), {"keys": 0, "letters": 0, "groups": 0})
    trends = _trends(dead, [one["_id"] for one in found["page"] if isinstance(one["_id"], str)], now=now)
    samples = _samples(dead, found["page"])
    return Groups(
        page=tuple(_group(one, trends, samples.get(index)) for index, one in enumerate(found["page"])),
        in_all=totals["groups"],
        letters=totals["letters"],
        is_all=totals["keys"] < MOST,
    )


def _largest(limit: int) -> list[dict[str, Any]]:
    if_open = {"$cond": [_IS_OPEN, "$dead_lettered_at", None]}  # neither $min nor $max looks at null
    counted = {
        "_id": "$fingerprint",
        "keys": {"$sum": 1},
        "open": {"$sum": {"$cond": [_IS_OPEN, 1, 0]}},
        "first": {"$min": if_open},
        "last": {"$max": if_open},
    }
    totals = {
        "_id": None,
        "keys": {"$sum": "$keys"},
        "letters": {"$sum": "$open"},
        "groups": {"$sum": {"$cond": ["$open", 1, 0]}},
    }
    page = [{"$match": {"open": {"$gt": 0}}}, {"$sort": {"open": -1, "last": -1, "_id": 1}}, {"$limit": limit}]
    return [{"$limit": MOST}, {"$group": counted}, {"$facet": {"page": page, "totals": [{"$group": totals}]}}]


def _trends(dead: Tasks, fingerprints: Sequence[str], *, now: datetime) -> dict[str, list[int]]:
    """Return how many letters of each group died in each hour."""
    found = {one: [0] * HOURS for one in fingerprints}
    hours_ago = {"$floor": {"$divide": [{"$subtract": [now, "$dead_lettered_at"]}, _HOUR_MS]}}
    stages: list[dict[str, Any]] = [
        {"$match": {"fingerprint": {"$in": list(fingerprints)}, "dead_lettered_at": {"$gt": now - HOURS * _HOUR}}},
        {"$limit": MOST},
        {
            "$group": {
                "_id": {"fingerprint": "$fingerprint", "hours_ago": hours_ago},
                "open": {"$sum": {"$cond": [_IS_OPEN, 1, 0]}},
            }
        },
    ]
    if fingerprints:
        with translated(DEAD_LETTERS):
            told = [decode(raw) for raw in dead.aggregate(stages, hint=indexes.GROUPS)]
        for one in told:
            fingerprint, ago = one["_id"]["fingerprint"], int(one["_id"]["hours_ago"])
            if isinstance(fingerprint, str):  # an array is found by its elements
                found[fingerprint][HOURS - 1 - max(ago, 0)] += one["open"]  # an archiver's clock may be ahead
    return found


def _samples(dead: Tasks, page: Sequence[Mapping[str, Any]]) -> dict[int, Letter]:
    """Return the open letter of each group on *page* that died last, by the group's place: all by one command."""
    if not page:
        return {}
    first, *others = [_newest(one, place) for place, one in enumerate(page)]
    united = [{"$unionWith": {"coll": dead.name, "pipeline": stages}} for stages in others]
    with translated(DEAD_LETTERS):
        found = list(dead.aggregate([*first, *united], hint=indexes.GROUPS, batchSize=len(page) + 1))
    return {raw["place"]: brief_letter(raw) for raw in found}


def _newest(group: Mapping[str, Any], place: int) -> list[dict[str, Any]]:
    died = {"fingerprint": {"$eq": group["_id"]}, "dead_lettered_at": {"$eq": group["last"]}, "redriven_at": None}
    return [{"$match": died}, {"$limit": 1}, *BRIEF, {"$set": {"place": {"$literal": place}}}]


def _group(one: Mapping[str, Any], trends: Mapping[str, Sequence[int]], sample: Letter | None) -> Group:
    fingerprint = one["_id"] if isinstance(one["_id"], str) else ""
    return Group(
        fingerprint=fingerprint,
        letters=one["open"],
        first_at=_date(one["first"]),
        last_at=_date(one["last"]),
        trend=tuple(trends.get(fingerprint, [0] * HOURS)),
        sample=sample,
    )


def _date(value: object) -> datetime | None:
    return value if isinstance(value, datetime) else None
