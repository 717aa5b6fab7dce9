"""Enqueueing of one task in a single write, or of many tasks in batches, with or without idempotency keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession

from tidemill.documents import decode
from tidemill.enqueue.documents import Accepted, Encoder, Keyed, new_document, refuse_expired
from tidemill.errors import DuplicateKeyError, InvalidRequestError, Problem, UnavailableError
from tidemill.model import TaskId
from tidemill.requests.tasks import MAX_TASKS, NewTask
from tidemill.requests.validation import limit_problems
from tidemill.store import writes
from tidemill.store.connection import Tasks, majority_read, translate_errors
from tidemill.store.writes import has_transactions, run_in_transaction

MAX_INSERT_ROUNDS: Final = 50
"""Upper limit of rounds of look-up and insert without a transaction: another caller may take a key in between."""


def accept(
    tasks: Tasks,
    request: NewTask,
    *,
    task_id: ObjectId | None = None,
    now: datetime,
    trace: Mapping[str, str] | None = None,
    session: ClientSession | None = None,
) -> Accepted:
    """Store *request* as a task, or return the task of an earlier equal request with the same key.

    *task_id* is the id of the task if the caller derives it.

    Raises:
        InvalidRequestError: The task would expire before it starts.
        DuplicateKeyError: The key was used with another request; nothing was stored.
        TakenIdError: A stored task has *task_id*.
        UnavailableError: MongoDB did not confirm; with a key, a repeat is safe.
    """
    refuse_expired([request], now=now, is_single_task=True)
    document = new_document(request, now=now, trace=trace, task_id=task_id)
    if request.idempotency_key is None:
        writes.insert_task(tasks, document, session=session)
        return Accepted(id=document["_id"])
    stored = decode(writes.insert_once(tasks, document, session=session))
    if stored["_id"] == document["_id"]:
        return Accepted(id=document["_id"])
    if stored.get("request_hash") != document["request_hash"]:
        raise DuplicateKeyError(stored["_id"])
    return Accepted(id=stored["_id"], status=str(stored.get("status")), is_new=False)


def accept_many(
    tasks: Tasks,
    requests: Sequence[NewTask],
    *,
    payloads: Sequence[bytes] | None = None,
    ids: Sequence[ObjectId] | None = None,
    now: datetime,
    trace: Mapping[str, str] | None = None,
    session: ClientSession | None = None,
) -> list[Accepted]:
    """Store *requests* in order. A request repeated under its key returns the task of the first one.

    *payloads* are the requests' payloads as BSON if the caller has them; *ids* are the ids of the tasks if the caller
    derives them.

    Each thousand is stored in one transaction: all of them or none. A standalone server has no transactions: tasks
    are inserted in order, and an error half-way leaves the first ones stored. In a transaction of *session*, that
    transaction decides, and the driver's own errors are raised.

    Raises:
        InvalidRequestError: Naming the index of each task that would expire before it starts; nothing was stored.
        DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing of its
            thousand was stored; the thousands before it are stored.
        TakenIdError: A stored task has one of *ids*. A standalone server returns that task instead.
        UnavailableError: MongoDB did not confirm; with keys, a repeat is safe.
    """
    refuse_expired(requests, now=now)
    accepted: list[Accepted] = []
    encoder = Encoder(now=now, trace=trace)
    for start in range(0, len(requests), MAX_TASKS):
        part = slice(start, start + MAX_TASKS)
        batch = make_batch(
            requests[part],
            encoder,
            payloads=None if payloads is None else payloads[part],
            ids=None if ids is None else ids[part],
            first=start,
        )
        accepted += _store(tasks, batch, session=session)
    return accepted


def store_or_find_earlier(
    tasks: Tasks,
    requests: Sequence[NewTask],
    store: Callable[[], list[Accepted]],
    *,
    session: ClientSession | None = None,
) -> list[Accepted]:
    """Return the tasks that *store* stores, or the tasks of earlier *requests* with the same keys if it refuses.

    A repeat may arrive after its ``expires_at``, or after its function was removed. Its sender still learns that the
    first request was accepted.

    Raises:
        InvalidRequestError: *store* refuses, and at least one of *requests* was not stored before.
    """
    try:
        return store()
    except InvalidRequestError:
        known = _find_earlier(tasks, requests, session=session)
        if known is None:
            raise
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Up to a thousand new tasks. *first* is the index of the first one among all requests."""

    first: int
    ids: Sequence[ObjectId]
    keyed: Sequence[Keyed | None]
    documents: Sequence[RawBSONDocument]


def make_batch(
    requests: Sequence[NewTask],
    encoder: Encoder,
    *,
    payloads: Sequence[bytes] | None = None,
    ids: Sequence[ObjectId] | None = None,
    first: int = 0,
) -> Batch:
    """Return *requests* as encoded documents, with new ids if none are given."""
    payloads = [bson.encode(request.payload) for request in requests] if payloads is None else payloads
    ids = [ObjectId() for _ in requests] if ids is None else ids
    keyed = [
        None if request.idempotency_key is None else (request.idempotency_key, request.hash()) for request in requests
    ]
    documents = encoder.documents(requests, payloads=payloads, ids=ids, keyed=keyed)
    return Batch(first=first, ids=ids, keyed=keyed, documents=documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The task of each request, and the documents of the new tasks."""

    accepted: list[Accepted]
    new: Sequence[RawBSONDocument]


def plan_batch(tasks: Tasks, batch: Batch, *, session: ClientSession) -> Plan:
    """Return the plan for *batch* in the transaction of *session*.

    Raises:
        DuplicateKeyError: A key belongs to another request.
    """
    return _make_plan(batch, _find_by_batch(tasks, batch, session=session))


def store_in_order(tasks: Tasks, batch: Batch) -> list[Accepted]:
    """Store *batch* task by task, on a standalone server.

    Raises:
        DuplicateKeyError: A key belongs to another request.
        UnavailableError: The first tasks may be stored, the rest is not.
    """
    for _ in range(MAX_INSERT_ROUNDS):
        with translate_errors():
            by_key = _find_by_batch(tasks, batch)
        plan = _make_plan(batch, by_key)
        if writes.insert_in_order(tasks, plan.new) == len(plan.new):
            return plan.accepted
    raise UnavailableError("other callers use the same idempotency keys at the same time; repeat it")


def _store(tasks: Tasks, batch: Batch, *, session: ClientSession | None) -> list[Accepted]:
    if session is not None and session.in_transaction:
        return _store_in_transaction(tasks, batch, session=session)
    if not has_transactions(tasks.database):
        return store_in_order(tasks, batch)
    return run_in_transaction(tasks.database, lambda own: _store_in_transaction(tasks, batch, session=own))


def _store_in_transaction(tasks: Tasks, batch: Batch, *, session: ClientSession) -> list[Accepted]:
    plan = plan_batch(tasks, batch, session=session)
    writes.insert_all(tasks, plan.new, session=session)
    return plan.accepted


def _find_by_batch(tasks: Tasks, batch: Batch, *, session: ClientSession | None = None) -> dict[str, dict[str, Any]]:
    keys = {keyed[0] for keyed in batch.keyed if keyed is not None}
    return writes.find_key_holders(tasks, keys, session=session) if keys else {}


def _make_plan(batch: Batch, stored: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Return the plan for *batch*; *stored* are the stored tasks by key.

    Raises:
        DuplicateKeyError: A key belongs to another request.
    """
    if not any(batch.keyed):
        return Plan(accepted=[Accepted(task_id) for task_id in batch.ids], new=batch.documents)
    by_key: dict[str, Mapping[str, Any]] = dict(stored)
    accepted: list[Accepted] = []
    taken: dict[int, TaskId] = {}
    for index, (task_id, keyed) in enumerate(zip(batch.ids, batch.keyed, strict=True), batch.first):
        new = {"_id": task_id, "status": "pending", "request_hash": keyed and keyed[1]}
        task = new if keyed is None else by_key.setdefault(keyed[0], new)
        if task.get("request_hash") != new["request_hash"]:
            taken[index] = task["_id"]
        accepted.append(Accepted(task["_id"], str(task.get("status")), is_new=task["_id"] == task_id))
    if taken:
        raise DuplicateKeyError(next(iter(taken.values())), problems=limit_problems(_list_problems(taken)))
    documents = [document for document, result in zip(batch.documents, accepted, strict=True) if result.is_new]
    return Plan(accepted=accepted, new=documents)


def _list_problems(taken: Mapping[int, TaskId]) -> list[Problem]:
    return [Problem(f"{index}.idempotency_key", "was used with another request") for index in taken]


def _find_earlier(tasks: Tasks, requests: Sequence[NewTask], *, session: ClientSession | None) -> list[Accepted] | None:
    """Return the tasks that the keys of all *requests* made before, or ``None`` if one is missing or differs."""
    keys = [request.idempotency_key for request in requests if request.idempotency_key is not None]
    if len(keys) < len(requests):
        return None
    with translate_errors():
        by_key = _find_by_key(tasks, set(keys), session=session)
    found = [by_key[key] for key in keys if key in by_key]
    if len(found) < len(keys) or any(
        task.get("request_hash") != request.hash() for task, request in zip(found, requests, strict=True)
    ):
        return None
    return [Accepted(id=task["_id"], status=str(task.get("status")), is_new=False) for task in found]


def _find_by_key(tasks: Tasks, keys: Collection[str], *, session: ClientSession | None) -> dict[str, dict[str, Any]]:
    if session is not None:
        return writes.find_key_holders(tasks, keys, session=session)
    with majority_read(tasks) as (lasting, own):
        return writes.find_key_holders(lasting, keys, session=own)
