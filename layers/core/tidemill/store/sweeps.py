"""Pending documents that no claim will ever take: found through the claim index, adopted or quarantined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne

from tidemill import indexes
from tidemill.admission import EXPIRED
from tidemill.documents import decode, error_document, is_text
from tidemill.model import LANES, Malformed, Reason, TaskId
from tidemill.store.claims import COUNTABLE, queues
from tidemill.store.collections import Tasks, translated
from tidemill.store.lean import LEAN
from tidemill.store.writes import Written, write_each

CLAIMABLE: Final[dict[str, Any]] = {
    "queue": {"$type": "string", "$not": {"$type": "array"}},
    "lane": {"$in": list(LANES), "$not": {"$type": "array"}},
    "due_at": {"$type": "date", "$not": {"$type": "array"}},
    "attempts": COUNTABLE,
}
"""What a pending document must look like for a claim to see and stamp it."""

SWEEP: Final = "sweep"
"""What ``settled_by`` says of a task that was never leased when it failed."""

# Not "array": the server looks for arrays in the documents, all of them, and finds their elements by type anyway.
_NEITHER: Final = [
    "double", "object", "binData", "objectId", "bool", "regex", "dbPointer", "javascript", "javascriptWithScope",
    "int", "timestamp", "long", "decimal", "minKey", "maxKey", "undefined",
]  # fmt: skip
_NO_TEXT: Final = [*_NEITHER, "date"]
_NO_DATE: Final = [*_NEITHER, "string", "symbol"]


def strays(tasks: Tasks, *, limit: int, but: Sequence[TaskId] = ()) -> list[RawBSONDocument]:
    """Return pending documents out of every claim's sight, without *but*: of no queue, no lane, or never due.

    Six commands at most, whatever the number of queues; payloads are left out as `LEAN` says.
    """
    found: list[RawBSONDocument] = []
    for where in _out_of_sight(queues(tasks)):
        left = limit - len(found)
        if not left:
            break
        others = {"_id": {"$nin": [*but, *(decode(raw)["_id"] for raw in found)]}}  # one that is found twice is one
        stages: list[dict[str, Any]] = [{"$match": {"status": "pending"} | where | others}, {"$limit": left}, LEAN]
        with translated():
            found += tasks.aggregate(stages, hint=indexes.CLAIM, batchSize=left + 1)
    return found


def adopt(tasks: Tasks, adoptions: Sequence[tuple[TaskId, dict[str, Any]]]) -> Written:
    """Give stray documents the fields they lack, but those that somebody mended or took meanwhile."""
    return write_each(
        tasks,
        [
            # null matches both: absent, and null
            UpdateOne(_stray(task_id) | dict.fromkeys(fields), {"$set": fields})
            for task_id, fields in adoptions
        ],
    )


def quarantine_all(tasks: Tasks, documents: Sequence[Malformed], *, now: datetime) -> Written:
    """Fail documents that no claim can take, as they are, but those that somebody mended meanwhile."""
    return write_each(tasks, [UpdateOne(_stray(one.id), _malformed(one, now=now)) for one in documents])


def quarantine(tasks: Tasks, document: Malformed, *, now: datetime) -> bool:
    """Fail a document that no claim can take, as it is; false where somebody mended it meanwhile."""
    with translated():
        return tasks.update_one(_stray(document.id), _malformed(document, now=now)).matched_count == 1


def expired(tasks: Tasks, *, now: datetime, limit: int, but: Sequence[TaskId] = ()) -> list[TaskId]:
    """Return the ids of pending tasks whose ``expires_at`` passed before they were ever started, without *but*."""
    others = {"_id": {"$nin": list(but)}} if but else {}
    with translated():
        found = tasks.find(_past_expiry(now) | others, {"_id": 1}, hint=indexes.EXPIRY)
        return [decode(raw)["_id"] for raw in found.limit(limit).batch_size(limit + 1)]


def expire(tasks: Tasks, ids: Sequence[TaskId], *, now: datetime) -> Written:
    """Fail those of *ids* that are still pending, unstarted and past their ``expires_at``."""
    failed = {"$set": _failed("expired", EXPIRED, now=now)["$set"] | {"next_retry_at": None}}
    return write_each(tasks, [UpdateOne({"_id": one} | _past_expiry(now), failed) for one in ids])


def _past_expiry(now: datetime) -> dict[str, Any]:
    unstarted = {"attempts": 0, "crashes": {"$not": {"$gt": 0}}}
    return {"status": "pending", "expires_at": {"$type": "date", "$lte": now}, **unstarted}


def _stray(task_id: TaskId) -> dict[str, Any]:
    return {"_id": task_id, "status": "pending", "$nor": [CLAIMABLE]}


def _malformed(document: Malformed, *, now: datetime) -> dict[str, Any]:
    return _failed("malformed", document.problem, now=now)


def _failed(reason: Reason, message: str, *, now: datetime) -> dict[str, Any]:
    error = error_document(message=message, code=reason, at=now)
    ended: dict[str, Any] = {"status": "failed", "reason": reason, "error": error, "settled_by": SWEEP}
    return {"$set": ended | {"finished_at": now, "updated_at": now}}


def _out_of_sight(found_queues: list[Any]) -> Iterator[dict[str, Any]]:
    named = [one for one in found_queues if is_text(one)]
    if len(named) < len(found_queues):  # by kind, since a value may be a pattern, or look like an operator
        lists = [one for one in found_queues if isinstance(one, list)]
        yield {"queue": {"$in": [None, *lists]}}
        yield {"queue": {"$type": _NO_TEXT}}
    if named:
        queue, lanes = {"$in": named}, list(LANES)
        yield {"queue": queue, "lane": {"$nin": lanes}}
        yield {"queue": queue, "lane": {"$in": lanes}, "due_at": {"$type": _NO_DATE}}
        yield {"queue": queue, "lane": {"$in": lanes}, "due_at": {"$in": [None, []]}}
