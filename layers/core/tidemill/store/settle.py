"""Writes of leased tasks: settle ended attempts, release tasks that did not start, extend leases.

Each write is guarded by the id of the task and the token of the lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from tidemill import indexes
from tidemill.documents import decode
from tidemill.errors import RefusedError
from tidemill.model import Task, TaskId
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.outcomes import Settlement, bulk_success_update, outcome_updates
from tidemill.store.writes import find_refused_writes

MIN_BULK_SUCCESSES: Final = 5
"""Fewest successes for one statement. Fewer are written singly, because the driver itself repeats single writes."""

MAX_BULK_SUCCESSES: Final = 100
"""Most successes for one statement: that many results of the maximum size still fit."""

_Writes: TypeAlias = Sequence[tuple[UpdateOne | UpdateMany, Sequence[Settlement]]]
"""Writes, each with its settlements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleResult:
    """Result of a batch of settlements.

    Attributes:
        settled: Written, now or by an earlier try.
        lost: The lease was taken away first; nothing was written.
        stuck: The server refuses the write.
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
) -> SettleResult:
    """Write the outcomes of leased attempts and end their leases, in one bulk write unless the server refuses a part.

    A repeat is safe: outcomes of an earlier try are found by their token and count as settled. With *expired_before*
    only leases that expired before that time are settled.

    Raises:
        UnavailableError: Some, all or none were written; repeat the call.
    """
    if not settlements:
        return SettleResult()
    writes = _build_writes(settlements, now=now, expired_before=expired_before)
    has_groups = any(len(group) > 1 for _, group in writes)
    try:
        refused, matched = _write(tasks, writes)
    except RefusedError:  # the whole batch: a statement is too large to be sent
        if not has_groups:
            raise
        refused, matched = list(settlements), 0
    if refused and has_groups:  # a single settlement can have caused the refusal of its group
        refused, matched_alone = _write(tasks, _build_single_writes(refused, now=now, expired_before=expired_before))
        matched += matched_alone
    if refused and not settlements[0].without_details:
        small = [replace(settlement, without_details=True) for settlement in refused]
        verdict = settle(tasks, small, now=now, expired_before=expired_before)
        stuck, matched = verdict.stuck, matched + len(verdict.settled)
    else:
        stuck = tuple(refused)
    stuck_tasks = {id(settlement.task) for settlement in stuck}
    tried = [settlement for settlement in settlements if id(settlement.task) not in stuck_tasks]
    if matched == len(tried):
        return SettleResult(settled=tuple(tried), stuck=stuck)
    signatures = _read_signatures(tasks, tried)
    return SettleResult(
        settled=tuple(settlement for settlement in tried if _is_mine(settlement, signatures)),
        lost=tuple(settlement for settlement in tried if not _is_mine(settlement, signatures)),
        stuck=stuck,
    )


def release(tasks: Tasks, leased_tasks: Sequence[Task], *, now: datetime) -> int:
    """Release claimed tasks that did not start, refund their attempts, and return the number of released tasks.

    A newer claim of the same task is left alone, even if another task of *leased_tasks* has its token.
    """
    by_token: defaultdict[str, list[TaskId]] = defaultdict(list)
    for task in leased_tasks:
        if task.lease is not None:
            by_token[task.lease.token].append(task.id)
    if not by_token:
        return 0
    claims = [_build_lease_filter(ids, [token]) for token, ids in by_token.items()]
    return _release(tasks, {"$or": claims}, now=now)


def release_unconfirmed(
    tasks: Tasks, *, owner: str, tokens: Sequence[str], started: Sequence[TaskId], now: datetime
) -> int:
    """Release the tasks of *owner* that have one of *tokens* and were not *started*: stamps that were not read back."""
    where = {
        "status": "processing",
        "lease.owner": owner,
        "lease.token": {"$in": list(tokens)},
        "_id": {"$nin": list(started)},
    }
    return _release(tasks, where, now=now, hint=indexes.OWNERS)


def extend(tasks: Tasks, leased_tasks: Sequence[Task], *, until: datetime) -> list[Task]:
    """Extend leases to *until* and return the tasks whose leases were lost.

    A lease that expired, but was not taken away, is extended too.

    Raises:
        UnavailableError: Some, all or none were extended; repeat the call.
    """
    leases = [(task, task.lease) for task in leased_tasks if task.lease is not None]
    if not leases:
        return []
    with translate_errors():
        change = {"$set": {"lease.expires_at": until}}
        extended = tasks.bulk_write(
            [
                UpdateOne(_build_lease_filter([task.id], [lease.token]), change, hint=indexes.BY_ID)
                for task, lease in leases
            ],
            ordered=False,
        ).matched_count
        if extended == len(leases):
            return []
        where = _build_lease_filter([task.id for task, _ in leases], sorted({lease.token for _, lease in leases}))
        documents = [decode(raw) for raw in tasks.find(where, {"lease.token": 1})]
    kept = [(document["_id"], document["lease"]["token"]) for document in documents]
    return [task for task, lease in leases if (task.id, lease.token) not in kept]


def _build_writes(settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None) -> _Writes:
    """Return the writes of *settlements*. Successes under the same lease share a write."""
    by_token: defaultdict[str | None, list[Settlement]] = defaultdict(list)
    single: list[Settlement] = []
    for settlement in settlements:
        is_groupable = settlement.is_plain_success and expired_before is None
        (by_token[settlement.signature] if is_groupable else single).append(settlement)
    writes: list[tuple[UpdateOne | UpdateMany, Sequence[Settlement]]] = []
    for successes in by_token.values():
        for start in range(0, len(successes), MAX_BULK_SUCCESSES):
            group = successes[start : start + MAX_BULK_SUCCESSES]
            if len(group) < MIN_BULK_SUCCESSES:
                single += group
            else:
                writes.append((UpdateMany(*bulk_success_update(group, now=now), hint=indexes.BY_ID), group))
    return [*writes, *_build_single_writes(single, now=now, expired_before=expired_before)]


def _build_single_writes(
    settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None
) -> _Writes:
    return [
        (UpdateOne(where, update, hint=indexes.BY_ID), [settlement])
        for settlement in settlements
        for where, update in outcome_updates(settlement, now=now, expired_before=expired_before)
    ]


def _write(tasks: Tasks, writes: _Writes) -> tuple[list[Settlement], int]:
    """Write *writes*; return the settlements that the server refuses, and the number of matched documents."""
    with translate_errors():
        try:
            return [], tasks.bulk_write([write for write, _ in writes], ordered=False).matched_count
        except BulkWriteError as error:
            groups = [writes[refusal["index"]][1] for refusal in find_refused_writes(error)]
            refused = {id(settlement): settlement for group in groups for settlement in group}
            return list(refused.values()), error.details["nMatched"]


def _read_signatures(tasks: Tasks, settlements: Sequence[Settlement]) -> list[tuple[Any, Any]]:
    with translate_errors():
        where = {"_id": {"$in": [settlement.task.id for settlement in settlements]}}
        documents = [decode(raw) for raw in tasks.find(where, {"settled_by": 1})]
    return [(document["_id"], document.get("settled_by")) for document in documents]


def _is_mine(settlement: Settlement, signatures: list[tuple[Any, Any]]) -> bool:
    return settlement.signature is not None and (settlement.task.id, settlement.signature) in signatures


def _release(tasks: Tasks, where: dict[str, Any], *, now: datetime, hint: str | None = None) -> int:
    """Make the tasks that *where* matches pending again, and return their number.

    There are two statements: a count edited by hand may be 0 or no number, and the error of ``$inc`` would end the
    release of all tasks. There is no pipeline: before MongoDB 5 the server refuses a pipeline if a name in a
    payload begins with "$".
    """
    update = {"$set": {"status": "pending", "updated_at": now}, "$unset": {"lease": ""}}
    countable = {"attempts": {"$gt": 0, "$not": {"$type": "array"}}}
    writes = [
        UpdateMany(where | countable, update | {"$inc": {"attempts": -1}}, hint=hint),
        UpdateMany(where | {"$nor": [countable]}, update, hint=hint),  # not just `where`: a stamp may take effect late
    ]
    with translate_errors():
        return tasks.bulk_write(writes).matched_count


def _build_lease_filter(ids: Sequence[TaskId], tokens: Sequence[str]) -> dict[str, Any]:
    # The status, too: a task that was ended or reset by hand may still have the lease.
    return {"_id": {"$in": list(ids)}, "status": "processing", "lease.token": {"$in": list(tokens)}}
