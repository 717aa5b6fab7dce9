"""Pending documents that no claim will ever take: found through the claim index, adopted or quarantined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.admission import EXPIRED
from tidemill.documents import error_document
from tidemill.model import LANES, Malformed, Reason, TaskId
from tidemill.store.claims import COUNTABLE, queues
from tidemill.store.collections import Tasks, translated

CLAIMABLE: Final[dict[str, Any]] = {
    "queue": {"$type": "string", "$not": {"$type": "array"}},
    "lane": {"$in": list(LANES), "$not": {"$type": "array"}},
    "due_at": {"$type": "date", "$not": {"$type": "array"}},
    "attempts": COUNTABLE,
}
"""What a pending document must look like for a claim to see and stamp it."""

# Not "array": the server looks for arrays in the documents, all of them, and finds their elements by type anyway.
_NO_DATE: Final = [
    "double", "string", "object", "binData", "objectId", "bool", "regex", "javascript", "int", "timestamp", "long",
    "decimal", "minKey", "maxKey",
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
    absent = dict.fromkeys(fields)  # null matches both: absent, and null
    with translated():
        update = {"$set": fields}
        where = {"_id": task_id, "status": "pending", "$nor": [CLAIMABLE]}
        return tasks.update_one(where | absent, update).matched_count == 1


def quarantine(tasks: Tasks, document: Malformed, *, now: datetime) -> bool:
    """Fail a document that no claim can take, as it is; false where somebody mended it meanwhile."""
    where = {"_id": document.id, "status": "pending", "$nor": [CLAIMABLE]}
    with translated():
        return tasks.update_one(where, _failed("malformed", document.problem, now=now)).matched_count == 1


def expired(tasks: Tasks, *, now: datetime, limit: int) -> list[TaskId]:
    """Return the ids of pending tasks whose ``expires_at`` has passed before they were ever started."""
    with translated():
        return [raw["_id"] for raw in tasks.find(_past_expiry(now), {"_id": 1}, hint=indexes.EXPIRY).limit(limit)]


def expire(tasks: Tasks, ids: Sequence[TaskId], *, now: datetime) -> int:
    """Fail those of *ids* that are still pending, unstarted and past their ``expires_at``; return how many."""
    with translated():
        where = {"_id": {"$in": list(ids)}, **_past_expiry(now)}
        return tasks.update_many(where, _failed("expired", EXPIRED, now=now)).matched_count


def _past_expiry(now: datetime) -> dict[str, Any]:
    unstarted = {"attempts": 0, "crashes": {"$not": {"$gt": 0}}}
    return {"status": "pending", "expires_at": {"$type": "date", "$lte": now}, **unstarted}


def _failed(reason: Reason, message: str, *, now: datetime) -> dict[str, Any]:
    error = error_document(message=message, code=reason, at=now)
    return {"$set": {"status": "failed", "reason": reason, "error": error, "finished_at": now, "updated_at": now}}


def _out_of_sight(found_queues: list[Any]) -> Iterator[dict[str, Any]]:
    for queue in found_queues:
        if not isinstance(queue, str):
            yield {"queue": queue}
            continue
        yield {"queue": queue, "lane": {"$nin": list(LANES)}}
        for lane in LANES:
            yield {"queue": queue, "lane": lane, "due_at": {"$type": _NO_DATE}}
            yield {"queue": queue, "lane": lane, "due_at": {"$in": [None, []]}}
