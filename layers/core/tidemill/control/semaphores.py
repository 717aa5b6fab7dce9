"""Counting semaphores across all executors, with permits that expire: one document per semaphore.

A document of ``control`` keeps its permits as ``holds: [{owner, execution, n, seq, until}]``. A permit belongs to an
execution, because two invocations of one owner may run at once. Every change is one pipeline update. It drops expired
and invalid permits, and sets the total number of the execution.

A number is right only in the order in which the numbers of its execution were computed. An update may be applied after
a later one: it was sent by another thread, or it timed out at the client and not at the server. So each update carries
``seq``, which counts up per execution, and an update whose ``seq`` is not above the stored one changes nothing. A late
update finds a stored ``seq`` even if its execution holds nothing any more, because an entry of 0 permits stays.

The pipeline compares ``seq``, not the filter. A filter that does not match would turn the upsert into an insert of an
existing id, and its error into two more round trips. The pipeline answers in one, and the answer is majority-committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from pymongo import ReturnDocument
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from tidemill.documents import CONTROL
from tidemill.errors import UnavailableError
from tidemill.store.connection import translate_errors, with_lenient_decoding, with_majority

Stages: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitOwner:
    """Owner of permits: one *execution* of *owner*, the name under which the platform reports a death."""

    owner: str
    execution: str


def acquire(
    db: Database[Any],
    name: str,
    owner: PermitOwner,
    *,
    seq: int,
    held: int,
    wanted: int,
    limit: int,
    until: datetime,
    now: datetime,
    zero_until: datetime | None = None,
) -> int:
    """Acquire up to *wanted* permits of *name* beside the *held* ones; return the number that *owner* then has.

    Permits above *held* are acquired within *limit*. With *wanted* of 0 the permits above *held* are released. All
    permits expire at *until* of the last call. If an update with this *seq* or a higher one is stored, nothing
    changes; the number is that of the stored update. *zero_until* is as in `build_update`.

    Raises:
        UnavailableError: The effect is unknown, and the update may be applied later. The next call corrects it.
    """
    stages = build_update(
        owner, seq=seq, held=held, wanted=wanted, limit=limit, until=until, now=now, zero_until=zero_until
    )
    return count_permits(owner, after=update_semaphore(db, name, stages), now=now)


def release_all(db: Database[Any], owner: str) -> None:
    """Release all permits of *owner*, which is known to be dead."""
    with translate_errors(CONTROL):
        with_majority(db)[CONTROL].update_many(
            {"holds": {"$type": "array", "$elemMatch": {"owner": owner}}}, {"$pull": {"holds": {"owner": owner}}}
        )


def update_semaphore(db: Database[Any], name: str, stages: Stages) -> dict[str, Any]:
    """Update the document *name* by *stages*, insert it if it is missing, and return it."""
    collection = with_lenient_decoding(db)[CONTROL]
    with translate_errors(CONTROL):
        try:
            return _update_document(collection, name, stages)
        except DuplicateKeyError:  # two executions inserted the document at once
            return _update_document(collection, name, stages)


def count_permits(owner: PermitOwner, *, after: Mapping[str, Any], now: datetime) -> int:
    """Return the number of permits of *owner* in a document, *after* an update of it."""
    return sum(permit["n"] for permit in list_permits(after, now=now) if permit.get("execution") == owner.execution)


def list_permits(document: Mapping[str, Any], *, now: datetime) -> list[Mapping[str, Any]]:
    """Return the entries of *document* that hold permits, by the same rule as the updates, without those of 0."""
    return [
        permit
        for permit in list_unexpired(document, now=now)
        if isinstance(permit.get("n"), int) and not isinstance(permit["n"], bool) and permit["n"] > 0
    ]


def list_unexpired(document: Mapping[str, Any], *, now: datetime) -> list[Mapping[str, Any]]:
    """Return the entries of *document* whose time has not passed, whatever they hold."""
    holds = document.get("holds")
    entries = [entry for entry in holds if isinstance(entry, Mapping)] if isinstance(holds, list) else []
    return [entry for entry in entries if isinstance(entry.get("until"), datetime) and entry["until"] > now]


def build_update(
    owner: PermitOwner,
    *,
    seq: int,
    held: int,
    wanted: int,
    limit: int,
    until: datetime,
    now: datetime,
    zero_until: datetime | None = None,
    note: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Stages:
    """Return the update that sets the permits of *owner*, as pipeline stages that a caller may extend.

    An entry of 0 permits stays until *zero_until*, which is *until* by default. Give *now*, so that none stays, if
    every earlier update of *owner* was answered: then no late one can arrive.

    *note* is stored beside the permits. *fields* are set by the same update, if it changes anything; their expressions
    may use ``$$mine``, the number of permits of *owner*.
    """
    zero_until = until if zero_until is None else zero_until
    entry = {
        "owner": {"$literal": owner.owner},
        "execution": {"$literal": owner.execution},
        "n": "$$mine",
        "seq": seq,
        "until": until,
    }
    stored_note = {name: {"$literal": value} for name, value in (note or {}).items()}
    if_none = [entry | {"until": zero_until}] if zero_until > now else []
    own_permits = {"$cond": [{"$gt": ["$$mine", 0]}, [entry | stored_note], if_none]}
    room = {"$subtract": [limit, {"$sum": "$$others.n"}]}
    mine = {"$max": [held, {"$min": [held + wanted, room]}]}
    holds = {"$concatArrays": ["$$others", own_permits]}
    changed = {"$mergeObjects": ["$$ROOT", {"holds": holds, **(fields or {})}]}
    is_own = {"$eq": ["$$permit.execution", {"$literal": owner.execution}]}
    is_newer = {"$and": [is_own, _is_integer("$$permit.seq"), {"$gte": ["$$permit.seq", seq]}]}
    updated = _let({"others": _filter("$$live", {"$not": [is_own]})}, _let({"mine": mine}, changed))
    guarded = {"$cond": [{"$eq": [_filter("$$live", is_newer), []]}, updated, "$$ROOT"]}
    stored = {"$cond": [{"$isArray": "$holds"}, "$holds", []]}
    return [{"$replaceWith": _let({"live": _filter(stored, _is_live(now))}, guarded)}]


def _is_live(now: datetime) -> dict[str, Any]:
    """Return the expression of a valid permit that has not expired. People edit documents: every type is checked."""
    is_date = {"$eq": [{"$type": "$$permit.until"}, "date"]}
    is_unexpired = {"$gt": ["$$permit.until", now]}
    return {"$and": [is_date, is_unexpired, _is_integer("$$permit.n"), {"$gte": ["$$permit.n", 0]}]}


def _is_integer(path: str) -> dict[str, Any]:
    return {"$in": [{"$type": path}, ["int", "long"]]}


def _filter(array: object, condition: dict[str, Any]) -> dict[str, Any]:
    return {"$filter": {"input": array, "as": "permit", "cond": condition}}


def _let(names: dict[str, Any], expression: dict[str, Any]) -> dict[str, Any]:
    return {"$let": {"vars": names, "in": expression}}


def _update_document(collection: Collection[Any], name: str, stages: Stages) -> dict[str, Any]:
    after: dict[str, Any] | None = collection.find_one_and_update(
        {"_id": name}, stages, upsert=True, return_document=ReturnDocument.AFTER
    )
    if after is None:
        raise UnavailableError("MongoDB did not acknowledge the permits")
    return after
