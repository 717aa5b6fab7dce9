"""Pending documents that no claim will ever take: found through the claim index, adopted or quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.documents import error_document, read
from tidemill.model import LANES, Failure, Malformed, Task, TaskId
from tidemill.store.claims import COUNTABLE, queues
from tidemill.store.collections import Tasks, translated

CLAIMABLE: Final[dict[str, Any]] = {
    "queue": {"$type": "string", "$not": {"$type": "array"}},
    "lane": {"$in": list(LANES), "$not": {"$type": "array"}},
    "due_at": {"$type": "date", "$not": {"$type": "array"}},
    "attempts": COUNTABLE,
}
"""What a pending document must look like for a claim to see and stamp it."""

_NO_DATE: Final = [
    "double", "string", "object", "array", "binData", "undefined", "objectId", "bool", "null", "regex",
    "javascript", "int", "timestamp", "long", "decimal", "minKey", "maxKey",
]  # fmt: skip


def strays(tasks: Tasks, *, limit: int) -> list[RawBSONDocument]:
    """Return pending documents out of every claim's sight: of no queue, no lane, or never due."""
    found: list[RawBSONDocument] = []
    for where in _out_of_sight(queues(tasks)):
        if len(found) >= limit:
            break
        with translated():
            found += tasks.find({"status": "pending", **where}, hint=indexes.CLAIM).limit(limit - len(found))
    return found


def adopt(tasks: Tasks, task_id: TaskId, fields: dict[str, Any]) -> bool:
    """Give a stray document the *fields* it lacks; false where somebody mended or took it meanwhile."""
    absent = {name: {"$exists": False} for name in fields}
    with translated():
        update = {"$set": fields}
        return tasks.update_one(_unclaimable(task_id) | absent, update).matched_count == 1


def quarantine(tasks: Tasks, task_id: TaskId, failure: Failure, *, now: datetime) -> bool:
    """Fail a document that no claim can take, as it is; false where somebody mended it meanwhile."""
    error = error_document(message=failure.message, code=failure.code, at=now)
    with translated():
        update = {"$set": {"status": "failed", "finished_at": now, "updated_at": now, "error": error}}
        return tasks.update_one(_unclaimable(task_id), update).matched_count == 1


def expired(tasks: Tasks, *, now: datetime, limit: int) -> list[Task | Malformed]:
    """Return pending tasks whose ``expires_at`` has passed."""
    where = {"status": "pending", "expires_at": {"$type": "date", "$lte": now}}
    with translated():
        return [read(raw) for raw in tasks.find(where, hint=indexes.EXPIRY).limit(limit)]


def expire(tasks: Tasks, ids: list[TaskId], failure: Failure, *, now: datetime) -> int:
    """Fail those of *ids* that are still pending and past their ``expires_at``; return how many."""
    error = error_document(message=failure.message, code=failure.code, at=now)
    with translated():
        return tasks.update_many(
            {"_id": {"$in": ids}, "status": "pending", "expires_at": {"$type": "date", "$lte": now}},
            {
                "$set": {
                    "status": "failed",
                    "finished_at": now,
                    "updated_at": now,
                    "next_retry_at": None,
                    "error": error,
                }
            },
        ).matched_count


def _unclaimable(task_id: TaskId) -> dict[str, Any]:
    return {"_id": task_id, "status": "pending", "$nor": [CLAIMABLE]}


def _out_of_sight(found_queues: list[Any]) -> Iterator[dict[str, Any]]:
    for queue in found_queues:
        if not isinstance(queue, str):
            yield {"queue": queue}
            continue
        yield {"queue": queue, "lane": {"$nin": list(LANES)}}
        for lane in LANES:
            yield {"queue": queue, "lane": lane, "due_at": {"$type": _NO_DATE}}
            yield {"queue": queue, "lane": lane, "due_at": None}
