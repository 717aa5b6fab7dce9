"""Settlements: the write of the outcomes of leased attempts, and the updates that it sends.

Each update is guarded by the id of the task and the token of the lease. An outcome is one update, or a few updates;
then exactly one of them can match.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, assert_never

from bson import ObjectId
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from tidemill import indexes
from tidemill.documents import attempt_document, decode, error_document, schedule
from tidemill.errors import RefusedError
from tidemill.model import (
    Attempt,
    Cancelled,
    Failed,
    Failure,
    Malformed,
    Outcome,
    Retried,
    Run,
    Snoozed,
    Succeeded,
    Task,
)
from tidemill.policy.failures import MAX_MESSAGE_CHARS, truncate_text
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.writes import find_refused_writes

MAX_LOG_LINES = 20
"""Lines of an execution log: the first and the newest 19."""

Statement = tuple[dict[str, Any], dict[str, Any]]
"""Filter and update of one write."""

MIN_BULK_SUCCESSES: Final = 5
"""Fewest successes for one statement. Fewer are written singly, because the driver itself repeats single writes."""

MAX_BULK_SUCCESSES: Final = 100
"""Most successes for one statement: that many results of the maximum size still fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """End of a leased attempt.

    Attributes:
        task: The task.
        outcome: The outcome of the attempt.
        run: The run of the function. ``None`` if it never started: the attempt is refunded, the log does not change.
        lost: The worker was lost. It counts as a crash, and the duration of the run is unknown.
        crashed: The isolated process of the run died. It counts as a crash.
        without_details: Leave out result, message and log, which may not fit into a document near 16 MiB.
        reclaimer: The run of reclaim that settles the attempt.
    """

    task: Task | Malformed
    outcome: Outcome
    run: Run | None = None
    lost: bool = False
    crashed: bool = False
    without_details: bool = False
    reclaimer: str | None = None

    @property
    def is_crash(self) -> bool:
        """True if the function may have killed its process."""
        return self.lost or self.crashed

    @property
    def is_plain_success(self) -> bool:
        """True for a successful run under a lease, of a task with an id that Tidemill made."""
        is_leased = isinstance(self.task, Task) and type(self.task.id) is ObjectId and self.task.lease is not None
        is_plain = self.run is not None and not (self.without_details or self.is_crash or self.reclaimer)
        return is_leased and is_plain and isinstance(self.outcome, Succeeded)

    @property
    def signature(self) -> str | None:
        """Value of ``settled_by`` after the write: the token of the lease, or the name of the reclaimer.

        A reclaimed task never gets the token. The late worker would find its own token and count the task as settled.
        """
        if self.reclaimer is not None:
            return self.reclaimer
        return self.task.lease.token if self.task.lease is not None else None


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


_Write: TypeAlias = tuple[UpdateOne | UpdateMany, Sequence[Settlement]]
"""Write, and its settlements."""


def settle(
    tasks: Tasks, settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None = None
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


def _build_writes(settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None) -> list[_Write]:
    """Return the writes of *settlements*. Successes under the same lease share a write."""
    by_token: defaultdict[str | None, list[Settlement]] = defaultdict(list)
    single: list[Settlement] = []
    for settlement in settlements:
        is_groupable = settlement.is_plain_success and expired_before is None
        (by_token[settlement.signature] if is_groupable else single).append(settlement)
    writes: list[_Write] = []
    for successes in by_token.values():
        for start in range(0, len(successes), MAX_BULK_SUCCESSES):
            group = successes[start : start + MAX_BULK_SUCCESSES]
            if len(group) < MIN_BULK_SUCCESSES:
                single += group
            else:
                writes.append((UpdateMany(*_build_bulk_success(group, now=now), hint=indexes.BY_ID), group))
    return writes + _build_single_writes(single, now=now, expired_before=expired_before)


def _build_single_writes(
    settlements: Sequence[Settlement], *, now: datetime, expired_before: datetime | None
) -> list[_Write]:
    return [
        (UpdateOne(where, update, hint=indexes.BY_ID), [settlement])
        for settlement in settlements
        for where, update in outcome_updates(settlement, now=now, expired_before=expired_before)
    ]


def _write(tasks: Tasks, writes: Sequence[_Write]) -> tuple[list[Settlement], int]:
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


def outcome_updates(
    settlement: Settlement, *, now: datetime, expired_before: datetime | None = None
) -> list[Statement]:
    """Return the filter and update of each statement. Exactly one of them matches while the lease is valid.

    A cancel request wins over every outcome except success. Only the server knows of the latest requests, hence more
    than one statement. With *expired_before* the lease must also have expired before that time.
    """
    guard = _build_guard(settlement.task, expired_before=expired_before)
    outcomes: list[tuple[dict[str, Any], Outcome]] = [(guard, settlement.outcome)]
    if not isinstance(settlement.outcome, Succeeded | Cancelled):
        outcomes = [
            (guard | {"cancel_requested_at": None}, settlement.outcome),
            (guard | {"cancel_requested_at": {"$ne": None}}, Cancelled()),
        ]
    return [
        statement for where, outcome in outcomes for statement in _build_statements(settlement, outcome, where, now=now)
    ]


def _build_bulk_success(
    settlements: Sequence[Settlement], *, now: datetime
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return one statement that settles many successes under one lease as `outcome_updates` settles each of them.

    It takes the server half the time, because it parses the filter and the update once. Values that differ from task
    to task are arrays, in the order of the ids.
    """
    token = settlements[0].signature
    ids = [settlement.task.id for settlement in settlements]
    rows = [_build_update(settlement, settlement.outcome, now=now)["$set"] for settlement in settlements]
    position = {"$indexOfArray": [{"$literal": ids}, "$_id"]}
    different = {
        name: {"$arrayElemAt": [{"$literal": [row[name] for row in rows]}, position]}
        for name in ("attempt_log", "result")
        if any(row[name] is not None for row in rows)
    }
    common = {name: {"$literal": value} for name, value in rows[0].items()}
    guard = {"_id": {"$in": ids}, "status": "processing", "lease.token": token}
    return guard, [{"$set": common | different}, {"$unset": "lease"}]


def _build_guard(task: Task | Malformed, *, expired_before: datetime | None) -> dict[str, Any]:
    if task.lease is None:  # written by hand: no lease can prove a claim
        return {"_id": task.id, "status": "processing", "lease.expires_at": {"$not": {"$type": "date"}}}
    guard: dict[str, Any] = {"_id": task.id, "status": "processing", "lease.token": task.lease.token}
    return guard if expired_before is None else guard | {"lease.expires_at": {"$lt": expired_before}}


def _build_statements(
    settlement: Settlement, outcome: Outcome, where: dict[str, Any], *, now: datetime
) -> list[Statement]:
    """Return the statement, or two for a refund: the count of a document edited by hand may be too low to lower."""
    update = _build_update(settlement, outcome, now=now)
    if not _is_refunded(settlement, outcome):
        return [(where, update)]
    return [
        (where | {"attempts": {"$gt": 0}}, update | {"$inc": {"attempts": -1}}),
        (where | {"attempts": {"$not": {"$gt": 0}}}, update),
    ]


def _build_update(settlement: Settlement, outcome: Outcome, *, now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {"updated_at": now, "settled_by": settlement.signature}
    values |= _build_values(outcome, now=now)
    if settlement.run is not None and (settlement.lost or not isinstance(outcome, Snoozed)):
        values["attempt_log"] = _extend_log(settlement.task, settlement.run, refunded=isinstance(outcome, Snoozed))
    if settlement.without_details:
        values |= _shrink_values(values)
    update: dict[str, Any] = {"$set": values, "$unset": {"lease": ""}}
    if settlement.is_crash and isinstance(settlement.task, Task):
        values["crashes"] = settlement.task.crashes + 1  # not $inc: a value written by hand may be no number
    if not settlement.is_crash and settlement.run is not None and _has_function_outcome(outcome):
        values["crashes"] = 0
    if isinstance(outcome, Cancelled):
        update["$rename"] = {"idempotency_key": "released_key"}
    return update


def _build_values(outcome: Outcome, *, now: datetime) -> dict[str, Any]:
    finished: dict[str, Any] = {"finished_at": now, "next_retry_at": None}
    match outcome:
        case Succeeded(result=result):
            return {"status": "done", "result": result, **finished, "retain_from": now}
        case Retried(failure=failure, next_retry_at=at):
            return {"status": "pending", "lane": "retry", **schedule(at, now=now), **_build_error_field(failure, now)}
        case Failed(failure=failure, reason=reason):
            return {"status": "failed", "reason": reason, **finished, **_build_error_field(failure, now)}
        case Snoozed(until=until):
            return {"status": "pending", **schedule(until, now=now)}
        case Cancelled():
            return {"status": "cancelled", **finished, "retain_from": now}
        case _:
            assert_never(outcome)


def _shrink_values(values: dict[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {"attempt_log": []}
    if "result" in values:
        small["result"] = {"not_stored": "result", "reason": "the document is full"}
    if "error" in values:
        small["error"] = values["error"] | {"message": "the document is full"}
    return small


def _is_refunded(settlement: Settlement, outcome: Outcome) -> bool:
    if isinstance(settlement.task, Malformed) or isinstance(outcome, Succeeded):
        return False  # the counters of a malformed document may be no numbers
    return settlement.run is None or isinstance(outcome, Snoozed)


def _has_function_outcome(outcome: Outcome) -> bool:
    """Return True if the function itself gave the outcome.

    A snooze does not count. Otherwise a function that kills its worker between snoozes would never reach the limit.
    """
    match outcome:
        case Retried(failure=failure) | Failed(failure=failure):
            return failure.by_function
        case Snoozed():
            return False
        case Succeeded() | Cancelled():
            return True
        case _:
            assert_never(outcome)


def _build_error_field(failure: Failure, now: datetime) -> dict[str, Any]:
    return {"error": error_document(message=failure.message, code=failure.code, at=now)}


def _extend_log(task: Task | Malformed, run: Run, *, refunded: bool) -> list[dict[str, Any]]:
    """Return the execution log with *run* added. It keeps the first attempt and the newest attempts."""
    attempts = task.attempts if isinstance(task, Task) else 1
    line = Attempt(
        attempt=max(attempts, 1),
        status=run.status,
        started_at=run.started_at,
        duration_ms=run.duration // timedelta(milliseconds=1),
        note=f"{run.note}; not counted" if refunded else run.note,
    )
    lines = [*task.attempt_log, line]
    lines = [*lines[:1], *lines[1:][-(MAX_LOG_LINES - 1) :]]
    # Notes written by hand are cut, too: the statement of such a task could be too large for its whole batch.
    return [attempt_document(replace(line, note=truncate_text(line.note, MAX_MESSAGE_CHARS))) for line in lines]
