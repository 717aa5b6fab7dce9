"""Giving a lease up: settle what ended, release what did not start, extend what goes on. All guarded by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from tidemill import indexes
from tidemill.documents import decode
from tidemill.errors import RefusedError
from tidemill.model import Task, TaskId
from tidemill.settlement import Settlement, statements, together
from tidemill.store.collections import Tasks, translated
from tidemill.store.writes import refused_in

LEAST_TOGETHER: Final = 5
"""So few are written one by one, which the driver repeats by itself where the primary changes."""

MOST_TOGETHER: Final = 100
"""So many results, each as large as it may be, still fit into one statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a batch of settlements.

    ``lost``: the lease was taken away first, nothing was written. ``stuck``: the server refuses the write.
    """

    settled: tuple[Settlement, ...] = ()
    lost: tuple[Settlement, ...] = ()
    stuck: tuple[Settlement, ...] = ()


def settle(
    tasks: Tasks,
    settlements: Sequence[Settlement],
    *,
    now: datetime,
    expired_before: datetime | None = None,
) -> Verdict:
    """Record how leased attempts ended and give their leases up, in one bulk write, unless some of it is refused.

    A repeat is safe: what a first try already wrote is found by its token and counts as settled. With
    *expired_before* only leases that ran out by then are touched.

    Raises:
        UnavailableError: Some, all or none were written; repeat it.
    """
    if not settlements:
        return Verdict()
    writes = _gathered(settlements, now=now, expired_before=expired_before)
    has_groups = any(len(some) > 1 for _, some in writes)
    try:
        refused, matched = _write(tasks, writes)
    except RefusedError:  # all of it, where a statement is too large to be sent
        if not has_groups:
            raise
        refused, matched = list(settlements), 0
    if refused and has_groups:  # perhaps for the sake of one of those that were written together
        refused, others = _write(tasks, _one_by_one(refused, now=now, expired_before=expired_before))
        matched += others
    if refused and not settlements[0].bare:
        slim = [replace(settlement, bare=True) for settlement in refused]
        rest = settle(tasks, slim, now=now, expired_before=expired_before)
        stuck, matched = rest.stuck, matched + len(rest.settled)
    else:
        stuck = tuple(refused)
    tried = [one for one in settlements if not any(one.task is two.task for two in stuck)]
    if matched == len(tried):
        return Verdict(settled=tuple(tried), stuck=stuck)
    mine = _settled_by(tasks, tried)
    return Verdict(
        settled=tuple(one for one in tried if _is_mine(one, mine)),
        lost=tuple(one for one in tried if not _is_mine(one, mine)),
        stuck=stuck,
    )


def release(tasks: Tasks, held: Sequence[Task], *, now: datetime) -> int:
    """Give back claims that did not start, attempts refunded; return how many still were ours to give.

    Another claim of the same task is left alone, also where others of *held* carry its token.
    """
    by_token: defaultdict[str, list[TaskId]] = defaultdict(list)
    for task in held:
        if task.lease is not None:
            by_token[task.lease.token].append(task.id)
    if not by_token:
        return 0
    claims = [_held(ids, [token]) for token, ids in by_token.items()]
    return _give_back(tasks, {"$or": claims}, now=now)


def release_unseen(tasks: Tasks, *, owner: str, tokens: Sequence[str], started: Sequence[TaskId], now: datetime) -> int:
    """Give back what carries one of *tokens* of *owner* and was not *started*: stamps that were never read back."""
    where = {
        "status": "processing",
        "lease.owner": owner,
        "lease.token": {"$in": list(tokens)},
        "_id": {"$nin": list(started)},
    }
    return _give_back(tasks, where, now=now, hint=indexes.OWNERS)


def extend(tasks: Tasks, held: Sequence[Task], *, until: datetime) -> list[Task]:
    """Move the end of leases to *until*, also of one that ran out and nobody took; return those that were lost.

    Raises:
        UnavailableError: Some, all or none were moved; repeat it.
    """
    leases = [(task, task.lease) for task in held if task.lease is not None]
    if not leases:
        return []
    with translated():
        moved = tasks.bulk_write(
            [
                UpdateOne(_held([task.id], [lease.token]), {"$set": {"lease.expires_at": until}}, hint=indexes.BY_ID)
                for task, lease in leases
            ],
            ordered=False,
        ).matched_count
        if moved == len(leases):
            return []
        where = _held([task.id for task, _ in leases], _tokens(held))
        found = [decode(raw) for raw in tasks.find(where, {"lease.token": 1})]
    kept = [(one["_id"], one["lease"]["token"]) for one in found]
    return [task for task, lease in leases if (task.id, lease.token) not in kept]


def _gathered(
    settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None
) -> list[tuple[UpdateOne | UpdateMany, Sequence[Settlement]]]:
    """Return the writes, each with what it settles: successes under the same lease in one."""
    by_token: defaultdict[str | None, list[Settlement]] = defaultdict(list)
    others: list[Settlement] = []
    for one in settlements:
        (by_token[one.signature] if one.is_plain_success and expired_before is None else others).append(one)
    writes: list[tuple[UpdateOne | UpdateMany, Sequence[Settlement]]] = []
    for group in by_token.values():
        for start in range(0, len(group), MOST_TOGETHER):
            some = group[start : start + MOST_TOGETHER]
            if len(some) < LEAST_TOGETHER:
                others += some
            else:
                writes.append((UpdateMany(*together(some, now=now), hint=indexes.BY_ID), some))
    return writes + _one_by_one(others, now=now, expired_before=expired_before)


def _one_by_one(
    settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None
) -> list[tuple[UpdateOne | UpdateMany, Sequence[Settlement]]]:
    return [
        (UpdateOne(where, update, hint=indexes.BY_ID), [one])
        for one in settlements
        for where, update in statements(one, now=now, expired_before=expired_before)
    ]


def _write(
    tasks: Tasks, writes: Sequence[tuple[UpdateOne | UpdateMany, Sequence[Settlement]]]
) -> tuple[list[Settlement], int]:
    """Return what the server refuses, and how many documents it found."""
    with translated():
        try:
            return [], tasks.bulk_write([write for write, _ in writes], ordered=False).matched_count
        except BulkWriteError as error:
            refused = {id(one): one for wrong in refused_in(error) for one in writes[wrong["index"]][1]}
            return list(refused.values()), error.details["nMatched"]


def _settled_by(tasks: Tasks, settlements: Sequence[Settlement]) -> list[tuple[Any, Any]]:
    with translated():
        where = {"_id": {"$in": [one.task.id for one in settlements]}}
        found = [decode(raw) for raw in tasks.find(where, {"settled_by": 1})]
    return [(one["_id"], one.get("settled_by")) for one in found]


def _is_mine(settlement: Settlement, settled_by: list[tuple[Any, Any]]) -> bool:
    return settlement.signature is not None and (settlement.task.id, settlement.signature) in settled_by


def _give_back(tasks: Tasks, where: dict[str, Any], *, now: datetime, hint: str | None = None) -> int:
    """Make what *where* finds in process pending again, and return how much that was.

    In two statements: of what a person has set to nothing, or to no number, nothing is taken off, and the error would
    end the release of all. In no pipeline: before MongoDB 5 it is refused where a name in a payload begins with "$".
    """
    update = {"$set": {"status": "pending", "updated_at": now}, "$unset": {"lease": ""}}
    counted = {"attempts": {"$gt": 0, "$not": {"$type": "array"}}}
    writes = [
        UpdateMany(where | counted, update | {"$inc": {"attempts": -1}}, hint=hint),
        UpdateMany(where | {"$nor": [counted]}, update, hint=hint),  # not all that is left: a stamp may come late
    ]
    with translated():
        return tasks.bulk_write(writes).matched_count


def _tokens(held: Sequence[Task]) -> list[str]:
    return sorted({task.lease.token for task in held if task.lease is not None})


def _held(ids: Sequence[TaskId], tokens: Sequence[str]) -> dict[str, Any]:
    # The status, too: what a person has ended or set back meanwhile may still bear the lease.
    return {"_id": {"$in": list(ids)}, "status": "processing", "lease.token": {"$in": list(tokens)}}
