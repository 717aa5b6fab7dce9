"""Tasks that no worker will finish: expired leases, expired tasks, and documents that no claim can take.

The leases of lost workers are found by their end, or by the name of an owner that is known to be dead. Unclaimable
documents are adopted, or quarantined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne

from tidemill import indexes
from tidemill.documents import build_adoption_filter, decode, error_document, is_text, read_task
from tidemill.errors import MissingIndexError
from tidemill.model import LANES, Malformed, Reason, Task, TaskId
from tidemill.policy.scheduling import EXPIRED
from tidemill.store.claims import COUNTABLE_ATTEMPTS
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.index_obstacles import match_lists
from tidemill.store.scan import list_queues
from tidemill.store.tasks import WITHOUT_PAYLOAD
from tidemill.store.writes import WriteCounts, write_each

CLAIMABLE: Final[dict[str, Any]] = {
    "queue": {"$type": "string", "$not": {"$type": "array"}},
    "lane": {"$in": list(LANES), "$not": {"$type": "array"}},
    "due_at": {"$type": "date", "$not": {"$type": "array"}},
    "attempts": COUNTABLE_ATTEMPTS,
}
"""Filter of the pending documents that a claim finds and can stamp."""

SETTLED_BY_SWEEP: Final = "sweep"
"""Value of ``settled_by`` of a task that had no lease when it failed."""

# Without "array": for it the server would read all documents. It finds arrays by the types of their elements anyway.
_OTHER_TYPES: Final = [
    "double", "object", "binData", "objectId", "bool", "regex", "dbPointer", "javascript", "javascriptWithScope",
    "int", "timestamp", "long", "decimal", "minKey", "maxKey", "undefined",
]  # fmt: skip
_TYPES_BUT_TEXT: Final = [*_OTHER_TYPES, "date"]
_TYPES_BUT_DATE: Final = [*_OTHER_TYPES, "string", "symbol"]

_CLAIM_INDEX: Final = next(index for index in indexes.INDEXES if index.name == indexes.CLAIM)

_IS_WHOLE_LEASE: Final = {
    "$and": [
        {"$eq": [{"$type": f"$lease.{field}"}, kind]}
        for field, kind in (("token", "string"), ("owner", "string"), ("expires_at", "date"))
    ]
}
"""Expression that is true for each lease that a claim wrote."""


def find_expired_leases(
    tasks: Tasks, *, before: datetime, limit: int, excluded_ids: Sequence[TaskId] = ()
) -> list[Task | Malformed]:
    """Return tasks whose lease ended before *before*, the earliest end first, without the ids in *excluded_ids*."""
    where = {"status": "processing", "lease.expires_at": {"$lt": before}}
    return _read_processing(tasks, where, indexes.LEASES, limit=limit, excluded_ids=excluded_ids)


def find_leaseless(tasks: Tasks, *, limit: int, excluded_ids: Sequence[TaskId] = ()) -> list[Task | Malformed]:
    """Return processing tasks without the end of a lease. No claim wrote them, so no worker will settle them."""
    where = {"status": "processing", "lease.expires_at": {"$not": {"$type": "date"}}}
    return _read_processing(tasks, where, indexes.LEASES, limit=limit, excluded_ids=excluded_ids)


def find_leased_by(
    tasks: Tasks, owner: str, *, limit: int, excluded_ids: Sequence[TaskId] = ()
) -> list[Task | Malformed]:
    """Return the tasks that *owner* has under a lease, without the ids in *excluded_ids*."""
    where = {"status": "processing", "lease.owner": owner}
    return _read_processing(tasks, where, indexes.OWNERS, limit=limit, excluded_ids=excluded_ids)


def list_owners(tasks: Tasks) -> list[str]:
    """Return the owners of all leases, once each."""
    with translate_errors():
        return [owner for owner in tasks.distinct("lease.owner", {"status": "processing"}) if isinstance(owner, str)]


def remove_broken_leases(tasks: Tasks, ids: Sequence[TaskId]) -> WriteCounts:
    """Remove the broken leases of *ids*. No claim wrote them, so no worker can prove them.

    If the process stops after that, `find_leaseless` finds the task.
    """
    broken = {"status": "processing", "$expr": {"$not": [_IS_WHOLE_LEASE]}}
    return write_each(tasks, [UpdateOne({"_id": task_id} | broken, {"$unset": {"lease": ""}}) for task_id in ids])


def find_expired(tasks: Tasks, *, now: datetime, limit: int, excluded_ids: Sequence[TaskId] = ()) -> list[TaskId]:
    """Return the ids, without *excluded_ids*, of pending tasks whose ``expires_at`` passed before their first start."""
    with translate_errors():
        found = tasks.find(_build_expired_filter(now) | _exclude(excluded_ids), {"_id": 1}, hint=indexes.EXPIRY)
        return [decode(raw)["_id"] for raw in found.limit(limit).batch_size(limit + 1)]


def expire(tasks: Tasks, ids: Sequence[TaskId], *, now: datetime) -> WriteCounts:
    """Fail the tasks of *ids* that are still pending, never started, and past their ``expires_at``."""
    change = {"$set": build_failure("expired", EXPIRED, now=now)["$set"] | {"next_retry_at": None}}
    return write_each(tasks, [UpdateOne({"_id": task_id} | _build_expired_filter(now), change) for task_id in ids])


def find_unclaimable(tasks: Tasks, *, limit: int, excluded_ids: Sequence[TaskId] = ()) -> list[RawBSONDocument]:
    """Return pending documents that no claim finds: without a queue, without a lane, or never due.

    Ids in *excluded_ids* are left out, and payloads as `WITHOUT_PAYLOAD` describes. It takes at most six commands for
    any number of queues. If the claim index is missing, the documents are returned that it cannot hold: without them
    it can be built.

    Raises:
        MissingIndexError: The claim index is missing for another reason.
    """
    try:
        return _find_unclaimable(tasks, limit=limit, excluded_ids=excluded_ids)
    except MissingIndexError:
        found = find_unindexable(tasks, limit=limit, excluded_ids=excluded_ids)
        if not found:
            raise
        return found


def _find_unclaimable(tasks: Tasks, *, limit: int, excluded_ids: Sequence[TaskId]) -> list[RawBSONDocument]:
    found: list[RawBSONDocument] = []
    for where in _build_unclaimable_filters(list_queues(tasks)):
        left = limit - len(found)
        if not left:
            break
        # Two filters can match a document.
        unknown = {"_id": {"$nin": [*excluded_ids, *(decode(raw)["_id"] for raw in found)]}}
        stages: list[dict[str, Any]] = [
            {"$match": {"status": "pending"} | where | unknown},
            {"$limit": left},
            WITHOUT_PAYLOAD,
        ]
        with translate_errors():
            found += tasks.aggregate(stages, hint=indexes.CLAIM, batchSize=left + 1)
    return found


def find_unindexable(tasks: Tasks, *, limit: int, excluded_ids: Sequence[TaskId] = ()) -> list[RawBSONDocument]:
    """Return pending documents that the claim index cannot hold, while it is missing because of them.

    It reads the whole collection. Ids and payloads are left out as by `find_unclaimable`.
    """
    unindexable = {"status": "pending"} | match_lists(_CLAIM_INDEX) | _exclude(excluded_ids)
    stages: list[dict[str, Any]] = [{"$match": unindexable}, {"$limit": limit}, WITHOUT_PAYLOAD]
    with translate_errors():
        return list(tasks.aggregate(stages, hint={"$natural": 1}, batchSize=limit + 1))


def adopt(tasks: Tasks, adoptions: Sequence[tuple[TaskId, dict[str, Any]]]) -> WriteCounts:
    """Give unclaimable documents their missing fields, unless they were repaired or claimed meanwhile."""
    updates = [
        UpdateOne(_build_unclaimable_filter(task_id) | build_adoption_filter(fields), {"$set": fields})
        for task_id, fields in adoptions
    ]
    return write_each(tasks, updates)


def quarantine_all(tasks: Tasks, documents: Sequence[Malformed], *, now: datetime) -> WriteCounts:
    """Fail documents that no claim can take, unless they were repaired meanwhile. Their other fields do not change."""
    return write_each(tasks, [UpdateOne(*_build_quarantine(document, now=now)) for document in documents])


def quarantine(tasks: Tasks, document: Malformed, *, now: datetime) -> bool:
    """Fail a document that no claim can take; return False if it was repaired meanwhile."""
    with translate_errors():
        return tasks.update_one(*_build_quarantine(document, now=now)).matched_count == 1


def _read_processing(
    tasks: Tasks, where: dict[str, Any], index: str, *, limit: int, excluded_ids: Sequence[TaskId]
) -> list[Task | Malformed]:
    stages: list[dict[str, Any]] = [{"$match": where | _exclude(excluded_ids)}, {"$limit": limit}, WITHOUT_PAYLOAD]
    with translate_errors():
        return [read_task(raw) for raw in tasks.aggregate(stages, hint=index, batchSize=limit + 1)]


def _build_expired_filter(now: datetime) -> dict[str, Any]:
    unstarted = {"attempts": 0, "crashes": {"$not": {"$gt": 0}}}
    return {"status": "pending", "expires_at": {"$type": "date", "$lte": now}, **unstarted}


def _build_unclaimable_filters(found_queues: list[Any]) -> Iterator[dict[str, Any]]:
    names = [queue for queue in found_queues if is_text(queue)]
    if len(names) < len(found_queues):  # by type: a value could be a regular expression, or look like an operator
        lists = [queue for queue in found_queues if isinstance(queue, list)]
        yield {"queue": {"$in": [None, *lists]}}
        yield {"queue": {"$type": _TYPES_BUT_TEXT}}
    if names:
        any_queue, lanes = {"$in": names}, list(LANES)
        yield {"queue": any_queue, "lane": {"$nin": lanes}}
        yield {"queue": any_queue, "lane": {"$in": lanes}, "due_at": {"$type": _TYPES_BUT_DATE}}
        yield {"queue": any_queue, "lane": {"$in": lanes}, "due_at": {"$in": [None, []]}}


def _build_unclaimable_filter(task_id: TaskId) -> dict[str, Any]:
    return {"_id": task_id, "status": "pending", "$nor": [CLAIMABLE]}


def _build_quarantine(document: Malformed, *, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    return _build_unclaimable_filter(document.id), build_failure("malformed", document.problem, now=now)


def build_failure(reason: Reason, message: str, *, now: datetime) -> dict[str, Any]:
    """Return the update that fails a task without a lease for *reason*."""
    error = error_document(message=message, code=reason, at=now)
    fields: dict[str, Any] = {"status": "failed", "reason": reason, "error": error, "settled_by": SETTLED_BY_SWEEP}
    return {"$set": fields | {"finished_at": now, "updated_at": now}}


def _exclude(ids: Sequence[TaskId]) -> dict[str, Any]:
    return {"_id": {"$nin": list(ids)}} if ids else {}
