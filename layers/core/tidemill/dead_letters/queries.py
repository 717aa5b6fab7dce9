"""Queries over dead letters: those of one task, groups by their fingerprint, and the known fingerprints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bson.max_key import MaxKey
from bson.min_key import MinKey

from tidemill import indexes
from tidemill.dead_letters.documents import (
    SUMMARY_STAGES,
    DeadLetter,
    DeadLetterId,
    decode_id,
    read_date,
    read_dead_letter,
    read_summary,
    read_task_of,
)
from tidemill.documents import DEAD_LETTERS, decode, is_text
from tidemill.model import Malformed, Task, TaskId
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.tasks import source_filter


def find_latest(dead: Tasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the newest open dead letter of a task, under the task's own id; with *source*, only from that source.

    A redriven dead letter says nothing about its task: the task may be done and removed since.
    """
    with translate_errors(DEAD_LETTERS):
        where = {"_id": match_task(task_id), "redriven_at": None} | source_filter(source)
        raw = dead.find_one(where, sort=[("_id", -1)], hint=indexes.BY_ID)
    if raw is None:
        return None
    return read_task_of(decode(raw), task_id)


def match_task(task_id: TaskId) -> dict[str, Any]:
    """Return the range of ids of a task's dead letters."""
    return {"$gte": {"task": task_id, "redrives": MinKey()}, "$lte": {"task": task_id, "redrives": MaxKey()}}


def find_dead_letter(dead: Tasks, letter_id: DeadLetterId) -> DeadLetter | None:
    """Return the dead letter with this id, or ``None``."""
    with translate_errors(DEAD_LETTERS):
        raw = dead.find_one({"_id": {"$eq": letter_id.document()}}, hint=indexes.BY_ID)
    return None if raw is None else replace(read_dead_letter(raw), id=letter_id)


def find_by_redrives(dead: Tasks, task_id: TaskId, redrives: int) -> DeadLetter | None:
    """Return a task's dead letter by its number of redrives.

    The dead letter of number 0 may be stored under the bare id of its task.
    """
    found = find_dead_letter(dead, DeadLetterId(task=task_id, redrives=redrives))
    return found if found is not None or redrives else find_dead_letter(dead, decode_id(task_id))


def find_of_task(dead: Tasks, task_id: TaskId, *, limit: int) -> tuple[DeadLetter, ...]:
    """Return the newest *limit* dead letters of a task, as in a list."""
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": match_task(task_id)}}, {"$sort": {"_id": -1}}, {"$limit": limit}, *SUMMARY_STAGES,
    ]  # fmt: skip
    with translate_errors(DEAD_LETTERS):
        return tuple(read_summary(raw) for raw in dead.aggregate(stages, hint=indexes.BY_ID))


def find_newest_open(dead: Tasks, task_id: TaskId) -> DeadLetterId | None:
    """Return the id of the task's newest open dead letter, or of the open one stored under the bare task id."""
    where = {"_id": match_task(task_id), "redriven_at": None}
    bare = {"_id": {"$eq": task_id}, "redriven_at": None}
    with translate_errors(DEAD_LETTERS):
        raw = dead.find_one(where, {"_id": 1}, sort=[("_id", -1)], hint=indexes.BY_ID)
        if raw is not None:
            return decode_id(decode(raw)["_id"])
        return None if dead.find_one(bare, {"_id": 1}, hint=indexes.BY_ID) is None else decode_id(task_id)


TREND_HOURS: Final = 24
_HOUR: Final = timedelta(hours=1)
_NEWEST_FIRST: Final = {"dead_lettered_at": -1, "_id": -1}
_IS_OPEN: Final[dict[str, Any]] = {"$lte": ["$redriven_at", None]}  # a filter on null would have to read the document


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Open dead letters that failed for the same reason.

    Attributes:
        trend: Number of these dead letters that were moved in each of the last `TREND_HOURS`, the earliest hour first.
        sample: The latest of the dead letters, as in a list; ``None`` if it has just disappeared.
    """

    fingerprint: str
    dead_letters: int
    first_at: datetime | None
    last_at: datetime | None
    trend: tuple[int, ...]
    sample: DeadLetter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The largest groups, and the numbers of all groups and of all open dead letters.

    Attributes:
        sampled_newest: Number of dead letters, the latest ones, that were counted; ``None`` if all were.
    """

    groups: tuple[Group, ...]
    total_groups: int
    dead_letters: int
    sampled_newest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Maximum numbers of dead letters to count for groups.

    Attributes:
        max_counted: Of all, by their index keys. This takes 0.9 s.
        sampled_newest: Of the newest, if there are more. Each is read, because no index has all fields in this order.
    """

    max_counted: int = 200_000
    sampled_newest: int = 20_000


DEFAULT_LIMITS: Final = GroupLimits()


def find_groups(dead: Tasks, *, limit: int, now: datetime, limits: GroupLimits = DEFAULT_LIMITS) -> Groups:
    """Return the *limit* largest groups of open dead letters, the newest first among equal ones.

    It takes three commands, or four.
    """
    sampled_newest = None
    counts = _count_all(dead, limit, now, most=limits.max_counted)
    if counts is None:
        most = limits.sampled_newest
        counts = _count_groups(dead, _NEWEST_FIRST, indexes.RECENT, most=most, limit=limit, now=now)
        sampled_newest = most if counts["keys"] == most else None
    samples = _find_samples(dead, counts["page"])
    return Groups(
        groups=tuple(_read_group(group, samples.get(index)) for index, group in enumerate(counts["page"])),
        total_groups=counts["groups"],
        dead_letters=counts["dead_letters"],
        sampled_newest=sampled_newest,
    )


def _count_all(dead: Tasks, limit: int, now: datetime, *, most: int) -> dict[str, Any] | None:
    """Return the counts of all dead letters, or ``None`` if there are more than *most*.

    The keys are counted again, because the server's own estimate may be out of date.
    """
    with translate_errors(DEAD_LETTERS):
        are_too_many = dead.estimated_document_count() > most
    if are_too_many:
        return None
    counts = _count_groups(dead, {}, indexes.GROUPS, most=most + 1, limit=limit, now=now)
    return counts if counts["keys"] <= most else None


def _count_groups(
    dead: Tasks, order: Mapping[str, int], index: str, *, most: int, limit: int, now: datetime
) -> dict[str, Any]:
    """Return the *page* of the largest groups, and the numbers of *keys*, open *dead_letters* and *groups*."""
    stages: list[dict[str, Any]] = [{"$sort": order}] if order else []
    stages += [{"$limit": most}, *_build_group_stages(limit, now)]
    with translate_errors(DEAD_LETTERS):
        [raw] = dead.aggregate(stages, hint=index, allowDiskUse=True)
    counts = decode(raw)
    [totals] = counts["totals"] or [{"keys": 0, "dead_letters": 0, "groups": 0}]
    return {**totals, "page": counts["page"]}


def _build_group_stages(limit: int, now: datetime) -> list[dict[str, Any]]:
    if_open = {"$cond": [_IS_OPEN, "$dead_lettered_at", None]}  # $min and $max ignore null
    group = {
        "_id": "$fingerprint",
        "keys": {"$sum": 1},
        "open": {"$sum": {"$cond": [_IS_OPEN, 1, 0]}},
        "first": {"$min": if_open},
        "last": {"$max": if_open},
        "hours_ago": {"$push": _build_hours_ago(now)},
    }
    totals = {
        "_id": None,
        "keys": {"$sum": "$keys"},
        "dead_letters": {"$sum": "$open"},
        "groups": {"$sum": {"$cond": ["$open", 1, 0]}},
    }
    page = [{"$match": {"open": {"$gt": 0}}}, {"$sort": {"open": -1, "last": -1, "_id": 1}}, {"$limit": limit}]
    return [{"$group": group}, {"$facet": {"page": page, "totals": [{"$group": totals}]}}]


def _build_hours_ago(now: datetime) -> dict[str, Any]:
    """Return the expression of whole hours between the move of an open dead letter and *now*.

    It has no value from `TREND_HOURS` on.
    """
    is_date = {"$eq": [{"$type": "$dead_lettered_at"}, "date"]}
    is_recent = {"$and": [_IS_OPEN, is_date, {"$gt": ["$dead_lettered_at", now - TREND_HOURS * _HOUR]}]}
    hours = {"$floor": {"$divide": [{"$subtract": [now, "$dead_lettered_at"]}, _HOUR // timedelta(milliseconds=1)]}}
    return {"$cond": [is_recent, {"$toInt": {"$max": [0, hours]}}, "$$REMOVE"]}  # another clock may be ahead


def _find_samples(dead: Tasks, page: Sequence[Mapping[str, Any]]) -> dict[int, DeadLetter]:
    """Return the latest open dead letter of each group on *page*, by the group's index, with one command."""
    if not page:
        return {}
    first, *rest = [_build_sample_stages(group, place) for place, group in enumerate(page)]
    united = [{"$unionWith": {"coll": dead.name, "pipeline": stages}} for stages in rest]
    with translate_errors(DEAD_LETTERS):
        found = list(dead.aggregate([*first, *united], hint=indexes.GROUPS, batchSize=len(page) + 1))
    return {decode(raw)["place"]: read_summary(raw) for raw in found}


def _build_sample_stages(group: Mapping[str, Any], place: int) -> list[dict[str, Any]]:
    is_latest = {"fingerprint": {"$eq": group["_id"]}, "dead_lettered_at": {"$eq": group["last"]}, "redriven_at": None}
    return [{"$match": is_latest}, {"$limit": 1}, *SUMMARY_STAGES, {"$set": {"place": {"$literal": place}}}]


def _read_group(group: Mapping[str, Any], sample: DeadLetter | None) -> Group:
    hours_ago = Counter(group["hours_ago"])
    return Group(
        fingerprint=group["_id"] if is_text(group["_id"]) else "",
        dead_letters=group["open"],
        first_at=read_date(group["first"]),
        last_at=read_date(group["last"]),
        trend=tuple(hours_ago[TREND_HOURS - 1 - hour] for hour in range(TREND_HOURS)),
        sample=sample,
    )


def find_fingerprints(dead: Tasks, *, of: int) -> frozenset[str]:
    """Return the fingerprints of the newest *of* dead letters."""
    with translate_errors(DEAD_LETTERS):
        found = dead.find({}, {"fingerprint": 1}, hint=indexes.RECENT).sort(list(_NEWEST_FIRST.items()))
        values = [decode(raw).get("fingerprint") for raw in found.limit(of).batch_size(of + 1)]
    return frozenset(value for value in values if is_text(value))


def has_fingerprint(dead: Tasks, fingerprint: str) -> bool:
    """Return whether any dead letter has this fingerprint, open or redriven."""
    with translate_errors(DEAD_LETTERS):
        return dead.count_documents({"fingerprint": {"$eq": fingerprint}}, hint=indexes.GROUPS, limit=1) > 0
