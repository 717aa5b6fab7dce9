"""How much is where: counts that stop at a limit, each from an index and never from all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, decode, read
from tidemill.model import EARLIEST, LANES, Lane, Malformed, Task
from tidemill.selection import Lanes
from tidemill.store.claims import queues
from tidemill.store.collections import Tasks, translated

MANY: Final = 10_000
"""Where counting stops: a count of one more says that there are more than so many."""

QUEUES_AT_ONCE: Final = 100
"""So many queues are looked at by one command."""


def ready(tasks: Tasks, queue: str, *, now: datetime, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are due, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes) | {"due_at": {"$lte": now}}, limit=limit)


def delayed(tasks: Tasks, queue: str, *, now: datetime, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are pending and not due yet, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes) | {"due_at": {"$gt": now}}, limit=limit)


def pending(tasks: Tasks, queue: str, *, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are pending, due or not, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes), limit=limit)


def ahead_of(tasks: Tasks, task: Task, *, now: datetime, limit: int = MANY) -> int:
    """Return how many due tasks of its queue and lane are claimed before *task*, at most *limit* + 1."""
    lane = _pending(task.queue, (task.lane,))
    before: list[dict[str, Any]] = [
        {"priority": {"$gt": task.priority}, "due_at": {"$lte": now}},
        {"priority": task.priority, "due_at": {"$lt": min(task.due_at, now)}},
        {"priority": task.priority, "due_at": task.due_at, "_id": {"$lt": task.id}},
    ]
    return _count(tasks, {"$or": [lane | one for one in before]}, limit=limit)


def oldest_due(tasks: Tasks, queue: str, *, now: datetime) -> datetime | None:
    """Return since when the longest waiting task is due, or ``None`` where none is.

    One index key for every priority in use: within a priority the first is the oldest.
    """
    return _oldest_due(tasks, [queue], now=now)


def due_anywhere(tasks: Tasks, lane: Lane, *, now: datetime, limit: int = MANY) -> int:
    """Return how many tasks of *lane* are due in all queues together, paused ones too; at most *limit*."""
    return _count(tasks, {"status": "pending", "lane": lane, "due_at": {"$lte": now}}, limit=limit - 1)


def oldest_due_anywhere(tasks: Tasks, *, now: datetime) -> datetime | None:
    """Return since when the longest waiting task of any queue is due, or ``None`` where none is.

    Two commands for up to `QUEUES_AT_ONCE` queues.
    """
    named = [queue for queue in queues(tasks) if isinstance(queue, str)]
    parts = [named[start : start + QUEUES_AT_ONCE] for start in range(0, len(named), QUEUES_AT_ONCE)]
    found = [_oldest_due(tasks, part, now=now) for part in parts]
    return min((at for at in found if at is not None), default=None)


def dead_letters(dead: Tasks, *, limit: int = MANY) -> int:
    """Return how many dead letters are kept, redriven or not, at most *limit*: which is which no index tells."""
    with translated(DEAD_LETTERS):
        return dead.count_documents({}, hint="_id_", limit=limit)


def processing(tasks: Tasks, queue: str, *, limit: int = MANY) -> int:
    """Return how many tasks are leased, at most *limit* + 1. Looks at all that are, in every queue."""
    with translated():
        return tasks.count_documents({"status": "processing", "queue": queue}, hint=indexes.LEASES, limit=limit + 1)


def leased_queues(tasks: Tasks) -> list[str]:
    """Return the queues that have tasks under a lease. Looks at all that are."""
    stages: list[dict[str, Any]] = [{"$match": {"status": "processing"}}, {"$group": {"_id": "$queue"}}]
    with translated():
        found = [decode(raw)["_id"] for raw in tasks.aggregate(stages, hint=indexes.LEASES)]
    return [queue for queue in found if isinstance(queue, str)]


def current(tasks: Tasks, queue: str, *, limit: int) -> list[Task | Malformed]:
    """Return *limit* of the tasks that are leased, those whose lease ends first, without their payloads."""
    stages: list[dict[str, Any]] = [
        {"$match": {"status": "processing", "queue": queue}},
        {"$sort": {"lease.expires_at": 1}},
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


def _oldest_due(tasks: Tasks, found_queues: Sequence[str], *, now: datetime) -> datetime | None:
    first, *others = [_firsts(queue, lane, now=now) for queue in found_queues for lane in LANES]
    unions = [{"$unionWith": {"coll": tasks.name, "pipeline": stages}} for stages in others]
    is_date = {"$eq": [{"$type": "$due_at"}, "date"]}  # an array is found by its elements
    oldest = {"$group": {"_id": None, "due_at": {"$min": {"$cond": [is_date, "$due_at", None]}}}}
    with translated():
        found = [decode(raw) for raw in tasks.aggregate([*first, *unions, oldest], hint=indexes.CLAIM)]
    return next((one["due_at"] for one in found if isinstance(one["due_at"], datetime)), None)


def _firsts(queue: str, lane: Lane, *, now: datetime) -> list[dict[str, Any]]:
    """Return the stages that find the first due task of each priority, which the index leads to one by one."""
    due = {"$gte": EARLIEST, "$lte": now}
    return [
        {"$match": {"status": "pending", "queue": queue, "lane": lane, "due_at": due}},
        {"$sort": {"priority": -1, "due_at": 1}},
        {"$group": {"_id": "$priority", "due_at": {"$first": "$due_at"}}},
    ]
