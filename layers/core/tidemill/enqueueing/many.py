"""Many tasks: all or none of a thousand, in one transaction where the server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession

from tidemill.enqueueing.encoding import Encoder, Keyed
from tidemill.enqueueing.values import Accepted, refuse_expired
from tidemill.errors import DuplicateKeyError, Problem, UnavailableError
from tidemill.model import TaskId
from tidemill.requests import MAX_TASKS, NewTask, foremost
from tidemill.store import Tasks, intake, translated
from tidemill.store.transactions import has_transactions, in_transaction

ROUNDS: Final = 50
"""How often a key may be taken by others between the look at it and the insert, where no transaction prevents it."""


def accept_many(
    tasks: Tasks,
    requests: Sequence[NewTask],
    *,
    payloads: Sequence[bytes] | None = None,
    now: datetime,
    trace: Mapping[str, str] | None = None,
    session: ClientSession | None = None,
) -> list[Accepted]:
    """Store *requests* in order; one whose key is held by the same request is the task that holds it.

    *payloads* are those of the requests as BSON, where they are at hand.

    A thousand at a time are stored in one transaction: all of them or none. On a standalone server, which has none,
    they are inserted in order, and an error half-way leaves the first of them stored. In a transaction of *session*
    that one decides, and the driver's own errors are raised.

    Raises:
        InvalidRequestError: Naming the index of each task that would expire before it starts; nothing was stored.
        DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing of its
            thousand was stored; the thousands before it are.
        UnavailableError: MongoDB did not confirm; with keys, a repeat is safe.
    """
    refuse_expired(requests, now=now)
    accepted: list[Accepted] = []
    encoder = Encoder(now=now, trace=trace)
    for start in range(0, len(requests), MAX_TASKS):
        some = slice(start, start + MAX_TASKS)
        encoded = [bson.encode(one.payload) for one in requests[some]] if payloads is None else payloads[some]
        batch = _batch(requests[some], encoded, encoder, first=start)
        accepted += _stored(tasks, batch, session=session)
    return accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Up to a thousand new tasks. *first* is the index of the first of them in all."""

    first: int
    ids: Sequence[ObjectId]
    keyed: Sequence[Keyed | None]
    documents: Sequence[RawBSONDocument]


def _batch(requests: Sequence[NewTask], payloads: Sequence[bytes], encoder: Encoder, *, first: int) -> _Batch:
    ids = [ObjectId() for _ in requests]
    keyed = [None if one.idempotency_key is None else (one.idempotency_key, one.hash()) for one in requests]
    documents = encoder.documents(requests, payloads=payloads, ids=ids, keyed=keyed)
    return _Batch(first=first, ids=ids, keyed=keyed, documents=documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    accepted: list[Accepted]
    new: Sequence[RawBSONDocument]


def _stored(tasks: Tasks, batch: _Batch, *, session: ClientSession | None) -> list[Accepted]:
    if session is not None and session.in_transaction:
        return _stored_in(tasks, batch, session=session)
    if not has_transactions(tasks.database):
        return _stored_in_order(tasks, batch)
    return in_transaction(tasks.database, lambda own: _stored_in(tasks, batch, session=own))


def _stored_in(tasks: Tasks, batch: _Batch, *, session: ClientSession) -> list[Accepted]:
    plan = _planned(batch, _held(tasks, batch, session=session))
    intake.add_all(tasks, plan.new, session=session)
    return plan.accepted


def _stored_in_order(tasks: Tasks, batch: _Batch) -> list[Accepted]:
    for _ in range(ROUNDS):
        with translated():
            held = _held(tasks, batch)
        plan = _planned(batch, held)
        if intake.add_in_order(tasks, plan.new) == len(plan.new):
            return plan.accepted
    raise UnavailableError("others take the same keys at the same time")


def _held(tasks: Tasks, batch: _Batch, *, session: ClientSession | None = None) -> dict[str, dict[str, Any]]:
    keys = {one[0] for one in batch.keyed if one is not None}
    return intake.held(tasks, keys, session=session) if keys else {}


def _planned(batch: _Batch, held: Mapping[str, Mapping[str, Any]]) -> _Plan:
    """Return what of *batch* is to be inserted, where the tasks of *held* are stored.

    Raises:
        DuplicateKeyError: A key belongs to another request.
    """
    if not any(batch.keyed):
        return _Plan(accepted=[Accepted(one) for one in batch.ids], new=batch.documents)
    holders: dict[str, Mapping[str, Any]] = dict(held)
    accepted: list[Accepted] = []
    taken: dict[int, TaskId] = {}
    for index, (task_id, keyed) in enumerate(zip(batch.ids, batch.keyed, strict=True), batch.first):
        own = {"_id": task_id, "status": "pending", "request_hash": keyed and keyed[1]}
        holder = own if keyed is None else holders.setdefault(keyed[0], own)
        if holder.get("request_hash") != own["request_hash"]:
            taken[index] = holder["_id"]
        accepted.append(Accepted(holder["_id"], str(holder.get("status")), is_new=holder["_id"] == task_id))
    if taken:
        raise DuplicateKeyError(next(iter(taken.values())), problems=foremost(_problems(taken)))
    new = [document for document, one in zip(batch.documents, accepted, strict=True) if one.is_new]
    return _Plan(accepted=accepted, new=new)


def _problems(taken: Mapping[int, TaskId]) -> list[Problem]:
    return [Problem(f"{index}.idempotency_key", "was used with another request") for index in taken]
