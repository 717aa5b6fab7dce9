"""Documents of another program that it had started or ended: found, and completed as tasks in the same state.

Their shape is ``{payload, status, attempts, next_retry_at}``. `recovery` adopts the pending ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, assert_never

from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne

from tidemill import indexes
from tidemill.documents import build_adoption_filter, error_document
from tidemill.model import Malformed, Task, TaskId
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.recovery import SETTLED_BY_SWEEP, build_failure
from tidemill.store.tasks import WITHOUT_PAYLOAD
from tidemill.store.writes import WriteCounts, write_each

ADOPTION_LEASE: Final = timedelta(minutes=10)
"""Lease of an adopted document that is processing: the other program may still run it."""

State: TypeAlias = Literal["processing", "failed", "ended"]
"""State of documents to adopt; ``ended`` is done or cancelled."""

FOREIGN: Final[dict[str, Any]] = {
    "lane": None,
    "due_at": None,
    "payload": {"$type": "object"},
    "attempts": {"$type": "number"},
}
"""Filter of a document that another program wrote: every release of Tidemill writes a lane and a due time."""

UNADOPTED_FAILURE: Final[dict[str, Any]] = {"finished_at": None, "reason": None} | FOREIGN
"""Filter of a failed document that the sweep has to complete, before it can be moved to the dead letters."""

_FILTERS: Final[Mapping[State, tuple[dict[str, Any], str]]] = {
    "processing": ({"status": "processing", "lease.expires_at": None, "lease": None}, indexes.LEASES),
    "failed": ({"status": "failed"} | UNADOPTED_FAILURE, indexes.FAILED),
    "ended": ({"status": {"$in": ["cancelled", "done"], "$lte": "done"}, "retain_from": None}, indexes.RETENTION),
}
"""Filter of the documents of a state, and the index that finds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Document to adopt as *task*, with the *fields* that it lacks; *is_exhausted* if its retries are used up.

    ``names`` are the fields that it has: they do not change, even if they have no meaning here.
    """

    task: Task
    fields: Mapping[str, Any]
    names: frozenset[str] = frozenset()
    is_exhausted: bool = False


def find_foreign(
    tasks: Tasks, state: State, *, limit: int, excluded_ids: Sequence[TaskId] = ()
) -> list[RawBSONDocument]:
    """Return documents of another program in *state*, without payloads and without the ids in *excluded_ids*."""
    where, index = _FILTERS[state]
    unknown = {"_id": {"$nin": list(excluded_ids)}} if excluded_ids else {}
    stages: list[dict[str, Any]] = [{"$match": where | FOREIGN | unknown}, {"$limit": limit}, WITHOUT_PAYLOAD]
    with translate_errors():
        return list(tasks.aggregate(stages, hint=index, batchSize=limit + 1))


def adopt_foreign(tasks: Tasks, state: State, adoptions: Sequence[Adoption], *, now: datetime) -> WriteCounts:
    """Complete documents in *state*, unless they were changed meanwhile. Their own fields do not change.

    A document that is processing gets a lease of the sweep, so that reclaim takes it back after `ADOPTION_LEASE`.
    """
    return write_each(tasks, [_build_update(state, adoption, now=now) for adoption in adoptions])


def quarantine_failed(tasks: Tasks, documents: Sequence[Malformed], *, now: datetime) -> WriteCounts:
    """Record on failed documents that cannot be adopted why not. Their other fields do not change."""
    where = {"status": "failed"} | UNADOPTED_FAILURE
    updates = [
        UpdateOne(
            {"_id": {"$eq": document.id}} | where,
            build_failure("malformed", document.problem, now=now),
            hint=indexes.BY_ID,
        )
        for document in documents
    ]
    return write_each(tasks, updates)


def _build_update(state: State, adoption: Adoption, *, now: datetime) -> UpdateOne:
    task = adoption.task
    added = _build_state_fields(state, adoption, now=now)
    fields = {**adoption.fields, **{name: value for name, value in added.items() if name not in adoption.names}}
    where = {"_id": {"$eq": task.id}, "status": task.status} | FOREIGN | build_adoption_filter(fields)
    return UpdateOne(where, {"$set": fields}, hint=indexes.BY_ID)


def _build_state_fields(state: State, adoption: Adoption, *, now: datetime) -> dict[str, Any]:
    task = adoption.task
    match state:
        case "processing":
            lease = {"token": uuid.uuid4().hex, "owner": SETTLED_BY_SWEEP, "expires_at": now + ADOPTION_LEASE}
            return {"lease": lease}
        case "failed":
            reason = "exhausted" if adoption.is_exhausted else "not_retryable"
            message = f"it had failed before it was adopted, after {task.attempts} attempts"
            error = error_document(message=message, code=reason, at=now)
            return {"reason": reason, "finished_at": now, "settled_by": SETTLED_BY_SWEEP, "error": error}
        case "ended":
            return {"retain_from": now, "finished_at": now}
        case _:
            assert_never(state)
