"""Tasks of a schedule, stored once for each occurrence even if it is delivered again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from tidemill.documents import OCCURRENCES
from tidemill.enqueue.documents import Accepted, Encoder, refuse_expired
from tidemill.enqueue.enqueue import Batch, make_batch, plan_batch, store_in_order
from tidemill.errors import UnavailableError
from tidemill.requests.events import Occurrence
from tidemill.requests.tasks import NewTask
from tidemill.store import writes
from tidemill.store.connection import Tasks, majority_read, translate_errors, with_majority
from tidemill.store.writes import has_transactions, run_in_transaction

_HASH_BYTES: Final = 6
"""Bytes of the occurrence's hash in the twelve bytes of an ObjectId: four of time before it, two of count after it."""


def accept_occurrence(
    tasks: Tasks,
    occurrence: Occurrence,
    requests: Sequence[NewTask],
    *,
    now: datetime,
    trace: Mapping[str, str] | None = None,
) -> list[Accepted]:
    """Store *requests* in order, or return the tasks that an earlier delivery of *occurrence* stored.

    A request repeated under its key returns the task of the first one. The tasks of an earlier delivery may have been
    deleted since: the occurrence is a document of its own, kept longer than any delivery takes. It is written in one
    transaction with its tasks. A standalone server writes it after them. Their ids are derived from the occurrence,
    so the next delivery completes an interrupted one.

    Raises:
        InvalidRequestError: Naming the index of each task that would expire before it starts; nothing was stored.
        DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing was stored.
        UnavailableError: MongoDB did not confirm; a repeat is safe.
    """
    refuse_expired(requests, now=now)
    ids = _derive_ids(occurrence, len(requests))
    batch = make_batch(requests, Encoder(now=now, trace=trace), ids=ids)
    mark = {"_id": _make_id(occurrence), "created_at": now}
    if not has_transactions(tasks.database):
        return _store_in_order(tasks, batch, mark)
    try:
        return run_in_transaction(tasks.database, lambda session: _store(tasks, batch, mark, session=session))
    except _KnownError:
        known = find_occurrence(tasks, occurrence, count=len(requests), may_be_forgotten=True)
    if known is None:
        raise UnavailableError("stored tasks of this occurrence were rolled back; repeat it")
    return known


def find_occurrence(
    tasks: Tasks, occurrence: Occurrence, *, count: int, may_be_forgotten: bool = False
) -> list[Accepted] | None:
    """Return the *count* tasks of *occurrence*, or ``None`` if it was not stored before. No request is checked.

    With *may_be_forgotten*, a stored task is enough: the document of the occurrence may be deleted.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    mark_id = _make_id(occurrence)
    with translate_errors(OCCURRENCES):
        mark = _open_marks(tasks).find_one({"_id": mark_id})
    ids = _derive_ids(occurrence, count)
    if (mark is None and not may_be_forgotten) or not _is_confirmed(tasks, mark_id, ids):
        return None
    known = (mark or {}).get("task_ids", ids)
    return [Accepted(id=task_id, status=None, is_new=False) for task_id in known]


def _store(tasks: Tasks, batch: Batch, mark: dict[str, Any], *, session: ClientSession) -> list[Accepted]:
    plan = plan_batch(tasks, batch, session=session)
    try:
        _open_marks(tasks).insert_one(mark | _make_id_field(plan.accepted, batch), session=session)
        writes.insert_all(tasks, plan.new, session=session)
    except (DuplicateKeyError, writes.TakenIdError):  # another delivery was quicker, or the mark is deleted
        raise _KnownError from None
    return plan.accepted


def _store_in_order(tasks: Tasks, batch: Batch, mark: dict[str, Any]) -> list[Accepted]:
    accepted = store_in_order(tasks, batch)
    change = {"$setOnInsert": mark | _make_id_field(accepted, batch)}
    with translate_errors(OCCURRENCES):
        is_first = _open_marks(tasks).update_one({"_id": mark["_id"]}, change, upsert=True).upserted_id is not None
    return accepted if is_first else [task._replace(status=None, is_new=False) for task in accepted]


def _make_id_field(accepted: Sequence[Accepted], batch: Batch) -> dict[str, Any]:
    """Return the field with the ids of the tasks if a repeat cannot derive them, because a key belongs to another."""
    ids = [task.id for task in accepted]
    return {} if ids == list(batch.ids) else {"task_ids": ids}


def _is_confirmed(tasks: Tasks, mark_id: dict[str, Any], ids: Sequence[ObjectId]) -> bool:
    """Return True if a majority has the mark or a task: a change of primary may have rolled back what was found."""
    with translate_errors(OCCURRENCES), majority_read(_open_marks(tasks)) as (marks, session):
        if marks.find_one({"_id": mark_id}, {"_id": 1}, session=session) is not None:
            return True
        lasting = tasks.with_options(read_concern=marks.read_concern)
        return lasting.find_one({"_id": {"$in": list(ids)}}, {"_id": 1}, session=session) is not None


def _open_marks(tasks: Tasks) -> Collection[Any]:
    return with_majority(tasks.database)[OCCURRENCES]


class _KnownError(Exception):
    """The occurrence is stored already. Raised to end the transaction."""


def _make_id(occurrence: Occurrence) -> dict[str, Any]:
    return {"schedule": occurrence.schedule, "at": occurrence.at}


def _derive_ids(occurrence: Occurrence, count: int) -> list[ObjectId]:
    """Return ids that sort like other ids: by time, then by position."""
    seconds = int(occurrence.at.timestamp()) % 2**32
    text = f"{occurrence.schedule}|{occurrence.at.isoformat()}".encode()
    begin = seconds.to_bytes(4, "big") + hashlib.sha256(text).digest()[:_HASH_BYTES]
    return [ObjectId(begin + index.to_bytes(2, "big")) for index in range(count)]
