"""What the open dead letters failed of, by fingerprint.

They are counted by the keys of one index, and no letter is read for it. Where there are too many for that, the newest
are counted: the index is in the order of the fingerprints, and a part of it may lack the largest group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidemill import indexes
from tidemill.dead_letters.brief import BRIEF, brief_letter
from tidemill.dead_letters.values import Letter, date_in
from tidemill.documents import DEAD_LETTERS, decode, is_text
from tidemill.store import Tasks, translated

HOURS: Final = 24
MOST: Final = 200_000
"""So many letters are counted by their keys, which takes 0.9 s."""

NEWEST: Final = 20_000
"""So many are counted where there are more than `MOST`. Each is read, for no index has all of them in this order."""

_HOUR: Final = timedelta(hours=1)
_HOUR_MS: Final = 3_600_000
_NEWEST_FIRST: Final = {"dead_lettered_at": -1, "_id": -1}
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
        newest_only: ``None``, or all of this is of so many dead letters, those that died last, for there are too many.
    """

    page: tuple[Group, ...]
    in_all: int
    letters: int
    newest_only: int | None


def groups(dead: Tasks, *, limit: int, now: datetime) -> Groups:
    """Return the *limit* largest groups of open letters, of equal ones the newest first; three commands, or four."""
    newest_only = None
    found = _of_all(dead, limit, now)
    if found is None:
        found = _counted(dead, _NEWEST_FIRST, indexes.RECENT, most=NEWEST, limit=limit, now=now)
        newest_only = NEWEST if _totals(found)["keys"] == NEWEST else None
    samples = _samples(dead, found["page"])
    return Groups(
        page=tuple(_group(one, samples.get(index)) for index, one in enumerate(found["page"])),
        in_all=_totals(found)["groups"],
        letters=_totals(found)["letters"],
        newest_only=newest_only,
    )


def fingerprints(dead: Tasks, *, of: int) -> frozenset[str]:
    """Return the fingerprints that the newest *of* letters have."""
    with translated(DEAD_LETTERS):
        found = dead.find({}, {"fingerprint": 1}, hint=indexes.RECENT).sort(list(_NEWEST_FIRST.items()))
        told = [decode(raw).get("fingerprint") for raw in found.limit(of).batch_size(of + 1)]
    return frozenset(one for one in told if is_text(one))


def _of_all(dead: Tasks, limit: int, now: datetime) -> dict[str, Any] | None:
    """Return what there is, or ``None`` where that is too much; the server's own count may be out of date."""
    with translated(DEAD_LETTERS):
        is_too_much = dead.estimated_document_count() > MOST
    if is_too_much:
        return None
    found = _counted(dead, {}, indexes.GROUPS, most=MOST + 1, limit=limit, now=now)
    return found if _totals(found)["keys"] <= MOST else None


def _counted(
    dead: Tasks, order: Mapping[str, int], index: str, *, most: int, limit: int, now: datetime
) -> dict[str, Any]:
    first: list[dict[str, Any]] = [{"$sort": order}] if order else []
    with translated(DEAD_LETTERS):
        [raw] = dead.aggregate([*first, {"$limit": most}, *_largest(limit, now)], hint=index, allowDiskUse=True)
    return decode(raw)


def _totals(found: Mapping[str, Any]) -> dict[str, int]:
    return next(iter(found["totals"]), {"keys": 0, "letters": 0, "groups": 0})


def _largest(limit: int, now: datetime) -> list[dict[str, Any]]:
    if_open = {"$cond": [_IS_OPEN, "$dead_lettered_at", None]}  # neither $min nor $max looks at null
    counted = {
        "_id": "$fingerprint",
        "keys": {"$sum": 1},
        "open": {"$sum": {"$cond": [_IS_OPEN, 1, 0]}},
        "first": {"$min": if_open},
        "last": {"$max": if_open},
        "hours_ago": {"$push": _hours_ago(now)},
    }
    totals = {
        "_id": None,
        "keys": {"$sum": "$keys"},
        "letters": {"$sum": "$open"},
        "groups": {"$sum": {"$cond": ["$open", 1, 0]}},
    }
    page = [{"$match": {"open": {"$gt": 0}}}, {"$sort": {"open": -1, "last": -1, "_id": 1}}, {"$limit": limit}]
    return [{"$group": counted}, {"$facet": {"page": page, "totals": [{"$group": totals}]}}]


def _hours_ago(now: datetime) -> dict[str, Any]:
    """Return how many whole hours before *now* an open letter died, and nothing where these are `HOURS` or more."""
    is_date = {"$eq": [{"$type": "$dead_lettered_at"}, "date"]}
    is_recent = {"$and": [_IS_OPEN, is_date, {"$gt": ["$dead_lettered_at", now - HOURS * _HOUR]}]}
    hours = {"$floor": {"$divide": [{"$subtract": [now, "$dead_lettered_at"]}, _HOUR_MS]}}
    return {"$cond": [is_recent, {"$toInt": {"$max": [0, hours]}}, "$$REMOVE"]}  # an archiver's clock may be ahead


def _samples(dead: Tasks, page: Sequence[Mapping[str, Any]]) -> dict[int, Letter]:
    """Return the open letter of each group on *page* that died last, by the group's place: all by one command."""
    if not page:
        return {}
    first, *others = [_newest(one, place) for place, one in enumerate(page)]
    united = [{"$unionWith": {"coll": dead.name, "pipeline": stages}} for stages in others]
    with translated(DEAD_LETTERS):
        found = list(dead.aggregate([*first, *united], hint=indexes.GROUPS, batchSize=len(page) + 1))
    return {decode(raw)["place"]: brief_letter(raw) for raw in found}


def _newest(group: Mapping[str, Any], place: int) -> list[dict[str, Any]]:
    died = {"fingerprint": {"$eq": group["_id"]}, "dead_lettered_at": {"$eq": group["last"]}, "redriven_at": None}
    return [{"$match": died}, {"$limit": 1}, *BRIEF, {"$set": {"place": {"$literal": place}}}]


def _group(one: Mapping[str, Any], sample: Letter | None) -> Group:
    hours_ago = Counter(one["hours_ago"])
    return Group(
        fingerprint=one["_id"] if is_text(one["_id"]) else "",
        letters=one["open"],
        first_at=date_in(one["first"]),
        last_at=date_in(one["last"]),
        trend=tuple(hours_ago[HOURS - 1 - hour] for hour in range(HOURS)),
        sample=sample,
    )
