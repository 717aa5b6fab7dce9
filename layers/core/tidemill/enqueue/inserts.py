"""Inserts of new tasks, each once: by its idempotency key, by its derived id, or by the occurrence of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError as TakenKeyError

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, OCCURRENCES, decode
from tidemill.enqueue.documents import Accepted, Batch, Encoder, Plan, make_batch, make_plan, new_document
from tidemill.enqueue.rules import Submission
from tidemill.errors import DuplicateKeyError, UnavailableError
from tidemill.requests.events import Occurrence
from tidemill.requests.tasks import MAX_TASKS
from tidemill.store import writes
from tidemill.store.connection import Tasks, majority_read, translate_errors, with_majority
from tidemill.store.writes import has_transactions, run_in_transaction

MAX_INSERT_ROUNDS: Final = 50
"""Upper limit of rounds of look-up and insert without a transaction: another caller may take a key in between."""


def store_task(tasks: Tasks, submission: Submission, *, now: datetime) -> Accepted:
    """Store the only request as a task, or return the task of an earlier equal request with the same key.

    Raises:
        DuplicateKeyError: The key was used with another request; nothing was stored.
        TakenIdError: A stored task has the id.
        UnavailableError: MongoDB did not confirm; with a key, a repeat is safe.
    """
    [request], [task_id], session = submission.requests, submission.ids, submission.session
    document = new_document(request, now=now, trace=submission.trace, task_id=task_id)
    if request.idempotency_key is None:
        writes.insert_task(tasks, document, session=session)
        return Accepted(id=task_id)
    stored = decode(writes.insert_once(tasks, document, session=session))
    if stored["_id"] == task_id:
        return Accepted(id=task_id)
    if stored.get("request_hash") != document["request_hash"]:
        raise DuplicateKeyError(stored["_id"])
    return Accepted(id=stored["_id"], status=str(stored.get("status")), is_new=False)


def store_tasks(tasks: Tasks, submission: Submission, *, now: datetime) -> list[Accepted]:
    """Store the requests in order. A request repeated under its key returns the task of the first one.

    Each thousand is stored in one transaction: all of them or none. A standalone server has no transactions: tasks
    are inserted in order, and an error half-way leaves the first ones stored. In a transaction of the submission's
    session, that transaction decides, and the driver's own errors are raised.

    Raises:
        DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing of its
            thousand was stored; the thousands before it are stored.
        TakenIdError: A stored task has one of the ids. A standalone server returns that task instead.
        UnavailableError: MongoDB did not confirm; with keys, a repeat is safe.
    """
    accepted: list[Accepted] = []
    encoder = Encoder(now=now, trace=submission.trace)
    for start in range(0, len(submission.requests), MAX_TASKS):
        batch = make_batch(submission.take(start, start + MAX_TASKS), encoder)
        accepted += _store_batch(tasks, batch, session=submission.session)
    return accepted


def find_by_keys(tasks: Tasks, submission: Submission) -> list[Accepted] | None:
    """Return the tasks that the keys of all requests made before, or ``None`` if one is missing or differs."""
    requests, session = submission.requests, submission.session
    keys = [request.idempotency_key for request in requests if request.idempotency_key is not None]
    if len(keys) < len(requests):
        return None
    with translate_errors():
        if session is not None:
            by_key = writes.find_key_holders(tasks, set(keys), session=session)
        else:
            with majority_read(tasks) as (lasting, own):
                by_key = writes.find_key_holders(lasting, set(keys), session=own)
    found = [by_key[key] for key in keys if key in by_key]
    if len(found) < len(keys) or any(
        task.get("request_hash") != request.hash() for task, request in zip(found, requests, strict=True)
    ):
        return None
    return [Accepted(id=task["_id"], status=str(task.get("status")), is_new=False) for task in found]


def find_by_ids(tasks: Tasks, dead: Tasks, ids: Sequence[ObjectId]) -> list[Accepted]:
    """Return the stored tasks of an invocation: all or none, on a standalone server perhaps only the first ones.

    The tasks may be pending, running, ended, or dead letters, redriven or not. A majority confirms what was found.
    """
    in_range = {"_id": {"$gte": ids[0], "$lte": ids[-1]}}
    with translate_errors(), majority_read(tasks) as (lasting, session):
        found = {
            fields["_id"]: str(fields.get("status"))
            for fields in map(decode, lasting.find(in_range, {"status": 1}, hint=indexes.BY_ID, session=session))
        }
        # Dead letters come second: archiving inserts the dead letter before it deletes the task.
        dead_letters = dead.with_options(read_concern=lasting.read_concern)
        with translate_errors(DEAD_LETTERS):
            for raw in dead_letters.find(_match_dead_letters(ids), {"_id": 1}, hint=indexes.BY_ID, session=session):
                found.setdefault(decode(raw)["_id"]["task"], "failed")
    if not found:
        return []
    stored = ids if has_transactions(tasks.database) else ids[: ids.index(max(found)) + 1]
    return [Accepted(id=task_id, status=found.get(task_id), is_new=False) for task_id in stored]


def store_occurrence(tasks: Tasks, occurrence: Occurrence, submission: Submission, *, now: datetime) -> list[Accepted]:
    """Store the requests in order, or return the tasks that an earlier delivery of *occurrence* stored.

    A request repeated under its key returns the task of the first one. The tasks of an earlier delivery may have been
    deleted since: the occurrence is a document of its own, kept longer than any delivery takes. It is written in one
    transaction with its tasks. A standalone server writes it after them. Their ids are derived from the occurrence,
    so the next delivery completes an interrupted one.

    Raises:
        DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing was stored.
        UnavailableError: MongoDB did not confirm; a repeat is safe.
    """
    batch = make_batch(submission, Encoder(now=now, trace=submission.trace))
    mark = {"_id": _make_mark_id(occurrence), "created_at": now}
    if not has_transactions(tasks.database):
        return _store_marked_in_order(tasks, batch, mark)
    try:
        return run_in_transaction(tasks.database, lambda session: _store_marked(tasks, batch, mark, session=session))
    except _KnownError:
        known = find_occurrence(tasks, occurrence, submission.ids, may_be_forgotten=True)
    if known is None:
        raise UnavailableError("stored tasks of this occurrence were rolled back; repeat it")
    return known


def find_occurrence(
    tasks: Tasks, occurrence: Occurrence, ids: Sequence[ObjectId], *, may_be_forgotten: bool = False
) -> list[Accepted] | None:
    """Return the tasks of *occurrence*, or ``None`` if it was not stored before. *ids* are derived from it.

    With *may_be_forgotten*, a stored task is enough: the document of the occurrence may be deleted.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    mark_id = _make_mark_id(occurrence)
    with translate_errors(OCCURRENCES):
        mark = _open_marks(tasks).find_one({"_id": mark_id})
    if (mark is None and not may_be_forgotten) or not _is_confirmed(tasks, mark_id, ids):
        return None
    known = (mark or {}).get("task_ids", ids)
    return [Accepted(id=task_id, status=None, is_new=False) for task_id in known]


def _store_batch(tasks: Tasks, batch: Batch, *, session: ClientSession | None) -> list[Accepted]:
    if session is not None and session.in_transaction:
        return _store_in_transaction(tasks, batch, session=session)
    if not has_transactions(tasks.database):
        return _store_in_order(tasks, batch)
    return run_in_transaction(tasks.database, lambda own: _store_in_transaction(tasks, batch, session=own))


def _store_in_transaction(tasks: Tasks, batch: Batch, *, session: ClientSession) -> list[Accepted]:
    plan = _plan_batch(tasks, batch, session=session)
    writes.insert_all(tasks, plan.new, session=session)
    return plan.accepted


def _store_in_order(tasks: Tasks, batch: Batch) -> list[Accepted]:
    """Store *batch* task by task, on a standalone server.

    Raises:
        DuplicateKeyError: A key belongs to another request.
        UnavailableError: The first tasks may be stored, the rest is not.
    """
    for _ in range(MAX_INSERT_ROUNDS):
        with translate_errors():
            plan = _plan_batch(tasks, batch)
        if writes.insert_in_order(tasks, plan.new) == len(plan.new):
            return plan.accepted
    raise UnavailableError("other callers use the same idempotency keys at the same time; repeat it")


def _plan_batch(tasks: Tasks, batch: Batch, *, session: ClientSession | None = None) -> Plan:
    keys = {keyed[0] for keyed in batch.keyed if keyed is not None}
    return make_plan(batch, writes.find_key_holders(tasks, keys, session=session) if keys else {})


def _store_marked(tasks: Tasks, batch: Batch, mark: dict[str, Any], *, session: ClientSession) -> list[Accepted]:
    plan = _plan_batch(tasks, batch, session=session)
    try:
        _open_marks(tasks).insert_one(mark | _make_id_field(plan.accepted, batch), session=session)
        writes.insert_all(tasks, plan.new, session=session)
    except (TakenKeyError, writes.TakenIdError):  # another delivery was quicker, or the mark is deleted
        raise _KnownError from None
    return plan.accepted


def _store_marked_in_order(tasks: Tasks, batch: Batch, mark: dict[str, Any]) -> list[Accepted]:
    accepted = _store_in_order(tasks, batch)
    change = {"$setOnInsert": mark | _make_id_field(accepted, batch)}
    with translate_errors(OCCURRENCES):
        is_first = _open_marks(tasks).update_one({"_id": mark["_id"]}, change, upsert=True).upserted_id is not None
    return accepted if is_first else [task._replace(status=None, is_new=False) for task in accepted]


def _make_id_field(accepted: Sequence[Accepted], batch: Batch) -> dict[str, Any]:
    """Return the field with the ids of the tasks if a repeat cannot derive them, because a key belongs to another."""
    ids = [task.id for task in accepted]
    return {} if ids == list(batch.submission.ids) else {"task_ids": ids}


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


def _match_dead_letters(ids: Sequence[ObjectId]) -> dict[str, object]:
    return {"_id": {"$gte": {"task": ids[0], "redrives": MinKey()}, "$lte": {"task": ids[-1], "redrives": MaxKey()}}}


def _make_mark_id(occurrence: Occurrence) -> dict[str, Any]:
    return {"schedule": occurrence.schedule, "at": occurrence.at}
