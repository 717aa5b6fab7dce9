"""Many tasks: all or none of a thousand, in one transaction where the server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pymongo.client_session import ClientSession

from tidemill.enqueueing.values import Accepted, new_document, refuse_expired
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
    now: datetime,
    trace: Mapping[str, str] | None = None,
    session: ClientSession | None = None,
) -> list[Accepted]:
    """Store *requests* in order; one whose key is held by the same request is the task that holds it.

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
    for start in range(0, len(requests), MAX_TASKS):
        documents = [new_document(one, now=now, trace=trace) for one in requests[start : start + MAX_TASKS]]
        accepted += _stored(tasks, documents, first=start, session=session)
    return accepted


def _stored(
    tasks: Tasks, documents: Sequence[dict[str, Any]], *, first: int, session: ClientSession | None
) -> list[Accepted]:
    if session is not None and session.in_transaction:
        return _stored_in(tasks, documents, first=first, session=session)
    if not has_transactions(tasks.database):
        return _stored_in_order(tasks, documents, first=first)
    return in_transaction(tasks.database, lambda own: _stored_in(tasks, documents, first=first, session=own))


def _stored_in(
    tasks: Tasks, documents: Sequence[dict[str, Any]], *, first: int, session: ClientSession
) -> list[Accepted]:
    plan = _planned(documents, _held(tasks, documents, session=session), first=first)
    intake.add_all(tasks, plan.new, session=session)
    return plan.accepted


def _stored_in_order(tasks: Tasks, documents: Sequence[dict[str, Any]], *, first: int) -> list[Accepted]:
    for _ in range(ROUNDS):
        with translated():
            held = _held(tasks, documents)
        plan = _planned(documents, held, first=first)
        if intake.add_in_order(tasks, plan.new) == len(plan.new):
            return plan.accepted
    raise UnavailableError("others take the same keys at the same time")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    accepted: list[Accepted]
    new: list[dict[str, Any]]


def _held(
    tasks: Tasks, documents: Sequence[dict[str, Any]], *, session: ClientSession | None = None
) -> dict[str, dict[str, Any]]:
    keys = {one["idempotency_key"] for one in documents if "idempotency_key" in one}
    return intake.held(tasks, keys, session=session) if keys else {}


def _planned(documents: Sequence[dict[str, Any]], held: Mapping[str, Mapping[str, Any]], *, first: int) -> _Plan:
    """Return which of *documents* are to be inserted, where those of *held* are stored.

    Raises:
        DuplicateKeyError: A key belongs to another request.
    """
    keys: dict[str, Mapping[str, Any]] = dict(held)
    plan = _Plan(accepted=[], new=[])
    taken: dict[int, TaskId] = {}
    for index, document in enumerate(documents, first):
        holder = keys.setdefault(document["idempotency_key"], document) if "idempotency_key" in document else document
        if holder.get("request_hash") != document.get("request_hash"):
            taken[index] = holder["_id"]
        is_new = holder["_id"] == document["_id"]
        if is_new:
            plan.new.append(document)
        plan.accepted.append(Accepted(id=holder["_id"], status=str(holder.get("status")), is_new=is_new))
    if taken:
        raise DuplicateKeyError(next(iter(taken.values())), problems=foremost(_problems(taken)))
    return plan


def _problems(taken: Mapping[int, TaskId]) -> list[Problem]:
    return [Problem(f"{index}.idempotency_key", "was used with another request") for index in taken]
