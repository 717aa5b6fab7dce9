"""How much is where: counts that stop at a limit, each from an index and never from all tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, decode, is_text, read
from tidemill.model import EARLIEST, LANES, Lane, Malformed, Task
from tidemill.selection import Lanes
from tidemill.store.claims import queues
from tidemill.store.collections import Tasks, translated

MANY: Final = 10_000
"""Where counting stops: a count of one more says that there are more than so many."""

QUEUES_AT_ONCE: Final = 100
"""So many queues are looked at by one command."""

_Stages: TypeAlias = list[dict[str, Any]]
_IS_DATE: Final = {"$eq": [{"$type": "$due_at"}, "date"]}  # an array is found by its elements
_OLDEST: Final[dict[str, Any]] = {"$group": {"_id": None, "due_at": {"$min": {"$cond": [_IS_DATE, "$due_at", None]}}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of a queue is pending: `pending` of each lane, `delayed` and `oldest_due` at once."""

    fresh: int = 0
    retry: int = 0
    delayed: int = 0
    oldest_due: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """How many tasks are leased in each queue that has any; where not *is_all*, there are more somewhere."""

    by_queue: Mapping[str, int]
    is_all: bool


def ready(tasks: Tasks, queue: str, *, now: datetime, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are due, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes) | {"due_at": {"$lte": now}}, limit=limit)


def pending(tasks: Tasks, queue: str, *, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are pending, due or not, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes), limit=limit)


def ahead_of(
    tasks: Tasks, task: Task, *, now: datetime, in_order: Lanes, first: Lanes = (), limit: int = MANY
) -> dict[Lane, int]:
    """Return how many due tasks of its queue are claimed before *task*, by lane; at most *limit* + 1 together.

    Of the lanes *in_order* those that the order of claims puts there, of the lanes *first* all.
    """
    before: list[dict[str, Any]] = [
        {"priority": {"$gt": task.priority}, "due_at": {"$lte": now}},
        {"priority": task.priority, "due_at": {"$lt": min(task.due_at, now)}},
        {"priority": task.priority, "due_at": task.due_at, "_id": {"$lt": task.id}},
    ]
    ways = [_pending(task.queue, in_order) | one for one in before]
    ways += [_pending(task.queue, (lane,)) | {"due_at": {"$lte": now}} for lane in first]
    stages: list[dict[str, Any]] = [
        {"$match": {"$or": ways}},
        {"$limit": limit + 1},
        {"$group": {"_id": "$lane", "n": {"$sum": 1}}},
    ]
    with translated():
        found = [decode(raw) for raw in tasks.aggregate(stages, hint=indexes.CLAIM)]
    return {lane: sum(one["n"] for one in found if one["_id"] == lane) for lane in LANES}


def due_anywhere(tasks: Tasks, lane: Lane, *, now: datetime, limit: int = MANY) -> int:
    """Return how many tasks of *lane* are due in all queues together, paused ones too; at most *limit*."""
    return _count(tasks, {"status": "pending", "lane": lane, "due_at": {"$lte": now}}, limit=limit - 1)


def oldest_due_anywhere(tasks: Tasks, *, now: datetime) -> datetime | None:
    """Return since when the longest waiting task of any queue is due, or ``None`` where none is.

    Two commands for up to `QUEUES_AT_ONCE` queues.
    """
    named = [queue for queue in queues(tasks) if is_text(queue)]
    found = [_oldest_due(tasks, part, now=now) for part in _parts(named)]
    return min((at for at in found if at is not None), default=None)


def sizes(tasks: Tasks, named: Sequence[str], *, now: datetime, limit: int = MANY) -> dict[str, Sizes]:
    """Return how much of each queue is pending, counted up to *limit* + 1.

    One command for up to `QUEUES_AT_ONCE` queues.
    """
    found: dict[str, Sizes] = {}
    for part in _parts(named):
        stages = [_sizes_of(queue, tasks.name, now=now, limit=limit) for queue in part]
        with translated():
            told = [decode(raw) for raw in tasks.aggregate(_united(stages, tasks.name), hint=indexes.CLAIM)]
        fields: dict[str, dict[str, Any]] = {queue: {} for queue in part}
        for one in told:
            fields[one["queue"]][one["of"]] = one["is"]
        found |= {queue: Sizes(**known) for queue, known in fields.items()}
    return found


def depths(tasks: Tasks, named: Sequence[str], *, lane: Lane, limit: int = MANY) -> dict[str, int]:
    """Return how many tasks of *lane* are pending in each queue, as `sizes` does."""
    found: dict[str, int] = dict.fromkeys(named, 0)
    for part in _parts(named):
        stages = [_counted(queue, lane, _pending(queue, (lane,)), limit=limit) for queue in part]
        with translated():
            told = [decode(raw) for raw in tasks.aggregate(_united(stages, tasks.name), hint=indexes.CLAIM)]
        found |= {one["queue"]: one["is"] for one in told}
    return found


def dead_letters(dead: Tasks, *, limit: int = MANY) -> int:
    """Return how many dead letters are kept, redriven or not, at most *limit*: which is which no index tells."""
    with translated(DEAD_LETTERS):
        return dead.count_documents({}, hint=indexes.BY_ID, limit=limit)


def processing(tasks: Tasks, queue: str, *, limit: int = MANY) -> int:
    """Return how many tasks are leased, at most *limit* + 1. Looks at all that are, in every queue."""
    with translated():
        return tasks.count_documents({"status": "processing", "queue": queue}, hint=indexes.LEASES, limit=limit + 1)


def leased(tasks: Tasks, *, limit: int = MANY) -> Leased:
    """Return how many tasks are leased in each queue. Looks at *limit* + 1 of them, whose leases end first."""
    stages: list[dict[str, Any]] = [
        {"$match": {"status": "processing"}},
        {"$limit": limit + 1},
        {"$group": {"_id": "$queue", "n": {"$sum": 1}}},
    ]
    with translated():
        found = [decode(raw) for raw in tasks.aggregate(stages, hint=indexes.LEASES)]
    return Leased(
        by_queue={one["_id"]: one["n"] for one in found if is_text(one["_id"])},
        is_all=sum(one["n"] for one in found) <= limit,
    )


def current(tasks: Tasks, queue: str, *, limit: int) -> list[Task | Malformed]:
    """Return *limit* of the tasks that are leased, those whose lease ends first, without their payloads.

    Looks at `MANY` of those that are, in every queue.
    """
    stages: list[dict[str, Any]] = [
        {"$match": {"status": "processing"}},
        {"$sort": {"lease.expires_at": 1}},
        {"$limit": MANY},
        {"$match": {"queue": queue}},
        {"$limit": limit},
        {"$set": {"payload": {"$literal": {}}}},
    ]
    with translated():
        return [read(raw) for raw in tasks.aggregate(stages, hint=indexes.LEASES)]


def _pending(queue: str, lanes: Lanes) -> dict[str, Any]:
    return {"status": "pending", "queue": queue, "lane": {"$in": list(lanes)}}


def _count(tasks: Tasks, where: dict[str, Any], *, limit: int) -> int:
    with translated():
        return tasks.count_documents(where, hint=indexes.CLAIM, limit=limit + 1)


def _parts(named: Sequence[str]) -> list[Sequence[str]]:
    return [named[start : start + QUEUES_AT_ONCE] for start in range(0, len(named), QUEUES_AT_ONCE)]


def _sizes_of(queue: str, collection: str, *, now: datetime, limit: int) -> _Stages:
    """Return the stages that yield one document for each of the `Sizes` of *queue* that is there."""
    later = _pending(queue, LANES) | {"due_at": {"$gt": now}}
    counted = [_counted(queue, lane, _pending(queue, (lane,)), limit=limit) for lane in LANES]
    oldest = _united([_firsts(queue, lane, now=now) for lane in LANES], collection)
    return _united([*counted, _counted(queue, "delayed", later, limit=limit), [*oldest, *_least(queue)]], collection)


def _counted(queue: str, of: Literal["delayed"] | Lane, where: dict[str, Any], *, limit: int) -> _Stages:
    told = {"queue": {"$literal": queue}, "of": of, "is": "$n"}
    return [{"$match": where}, {"$limit": limit + 1}, {"$group": {"_id": None, "n": {"$sum": 1}}}, {"$project": told}]


def _least(queue: str) -> _Stages:
    return [_OLDEST, {"$project": {"queue": {"$literal": queue}, "of": "oldest_due", "is": "$due_at"}}]


def _united(pipelines: Sequence[_Stages], collection: str) -> _Stages:
    first, *others = pipelines
    return [*first, *({"$unionWith": {"coll": collection, "pipeline": stages}} for stages in others)]


def _oldest_due(tasks: Tasks, found_queues: Sequence[str], *, now: datetime) -> datetime | None:
    firsts = _united([_firsts(queue, lane, now=now) for queue in found_queues for lane in LANES], tasks.name)
    with translated():
        found = [decode(raw) for raw in tasks.aggregate([*firsts, _OLDEST], hint=indexes.CLAIM)]
    return next((one["due_at"] for one in found if isinstance(one["due_at"], datetime)), None)


def _firsts(queue: str, lane: Lane, *, now: datetime) -> _Stages:
    """Return the stages that find the first due task of each priority, which the index leads to one by one."""
    due = {"$gte": EARLIEST, "$lte": now}
    return [
        {"$match": {"status": "pending", "queue": queue, "lane": lane, "due_at": due}},
        {"$sort": {"priority": -1, "due_at": 1}},
        {"$group": {"_id": "$priority", "due_at": {"$first": "$due_at"}}},
    ]
