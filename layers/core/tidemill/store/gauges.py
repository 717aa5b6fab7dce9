"""How much is where: counts that stop at a limit, each from an index and never from all tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from tidemill import indexes
from tidemill.documents import decode, read
from tidemill.model import LANES, Malformed, Task
from tidemill.selection import Lanes
from tidemill.store.collections import Tasks, translated

MANY: Final = 10_000
"""Where counting stops: a count of one more says that there are more than so many."""


def ready(tasks: Tasks, queue: str, *, now: datetime, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are due, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes) | {"due_at": {"$lte": now}}, limit=limit)


def delayed(tasks: Tasks, queue: str, *, now: datetime, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are pending and not due yet, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes) | {"due_at": {"$gt": now}}, limit=limit)


def pending(tasks: Tasks, queue: str, *, lanes: Lanes = LANES, limit: int = MANY) -> int:
    """Return how many tasks of *lanes* are pending, due or not, at most *limit* + 1."""
    return _count(tasks, _pending(queue, lanes), limit=limit)


def oldest_due(tasks: Tasks, queue: str, *, now: datetime) -> datetime | None:
    """Return since when the longest waiting task is due, or ``None`` where none is.

    One index key for every priority in use: within a priority the first is the oldest.
    """
    found: list[datetime] = []
    for lane in LANES:
        stages: list[dict[str, Any]] = [
            {"$match": {"status": "pending", "queue": queue, "lane": lane, "due_at": {"$lte": now}}},
            {"$sort": {"priority": -1, "due_at": 1}},
            {"$group": {"_id": "$priority", "due_at": {"$first": "$due_at"}}},
        ]
        with translated():
            firsts = [decode(raw)["due_at"] for raw in tasks.aggregate(stages, hint=indexes.CLAIM)]
        found += [at for at in firsts if isinstance(at, datetime) and at <= now]
    return min(found, default=None)


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
