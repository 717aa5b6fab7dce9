"""What an outcome writes: each as one guarded update, or a few of which exactly one can match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from bson import ObjectId

from tidemill.classify import MAX_MESSAGE, bounded
from tidemill.documents import attempt_document, error_document, schedule
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

LOG_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How the leased attempt at *task* ended.

    ``run`` is ``None`` where it never started: then the attempt is refunded and the log stays as it is.
    ``lost`` says that its worker vanished, ``crashed`` that the process it had for itself died: either is counted as a
    crash, and only the former leaves open how long it ran. ``bare`` leaves out what might not fit into a
    document near 16 MiB: result, message and log. ``reclaimer`` is the one run of reclaim that settles it.
    """

    task: Task | Malformed
    outcome: Outcome
    run: Run | None = None
    lost: bool = False
    crashed: bool = False
    bare: bool = False
    reclaimer: str | None = None

    @property
    def is_crash(self) -> bool:
        """Whether the function may have taken its process with it."""
        return self.lost or self.crashed

    @property
    def is_plain_success(self) -> bool:
        """Whether it is a run that succeeded under a lease, of a task whose id is ours."""
        is_ours = isinstance(self.task, Task) and type(self.task.id) is ObjectId and self.task.lease is not None
        is_plain = self.run is not None and not (self.bare or self.is_crash or self.reclaimer)
        return is_ours and is_plain and isinstance(self.outcome, Succeeded)

    @property
    def signature(self) -> str | None:
        """What ``settled_by`` says afterwards: the token of the lease, or who took it away.

        Never the token where it was taken away: the late worker would find its own and believe it had settled.
        """
        if self.reclaimer is not None:
            return self.reclaimer
        return self.task.lease.token if self.task.lease is not None else None


Statement = tuple[dict[str, Any], dict[str, Any]]


def statements(settlement: Settlement, *, now: datetime, expired_before: datetime | None = None) -> list[Statement]:
    """Return the filter and update of each statement; exactly one of them matches while the lease is held.

    A cancellation asked for in the meantime wins over every outcome but success, and only the server knows of
    it, hence more than one statement. With *expired_before* the lease must also have run out by then.
    """
    guard = _guard(settlement.task, expired_before=expired_before)
    ways: list[tuple[dict[str, Any], Outcome]] = [(guard, settlement.outcome)]
    if not isinstance(settlement.outcome, Succeeded | Cancelled):
        ways = [
            (guard | {"cancel_requested_at": None}, settlement.outcome),
            (guard | {"cancel_requested_at": {"$ne": None}}, Cancelled()),
        ]
    return [one for where, outcome in ways for one in _counting(settlement, outcome, where, now=now)]


def together(settlements: Sequence[Settlement], *, now: datetime) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return one statement, of many documents, that says of each success under one lease what `statements` says.

    The server needs half the time for it: the filter and the update are looked through once. What differs from task to
    task stands in arrays beside that of their ids.
    """
    token = settlements[0].signature
    ids = [one.task.id for one in settlements]
    each = [_update(one, one.outcome, now=now)["$set"] for one in settlements]
    place = {"$indexOfArray": [{"$literal": ids}, "$_id"]}
    differing = {
        name: {"$arrayElemAt": [{"$literal": [values[name] for values in each]}, place]}
        for name in ("attempt_log", "result")
        if any(values[name] is not None for values in each)
    }
    alike = {name: {"$literal": value} for name, value in each[0].items()}
    return {"_id": {"$in": ids}, "status": "processing", "lease.token": token}, [
        {"$set": alike | differing},
        {"$unset": "lease"},
    ]


def _guard(task: Task | Malformed, *, expired_before: datetime | None) -> dict[str, Any]:
    if task.lease is None:  # written by hand: nobody can prove a claim on it
        return {"_id": task.id, "status": "processing", "lease.expires_at": {"$not": {"$type": "date"}}}
    guard: dict[str, Any] = {"_id": task.id, "status": "processing", "lease.token": task.lease.token}
    return guard if expired_before is None else guard | {"lease.expires_at": {"$lt": expired_before}}


def _counting(settlement: Settlement, outcome: Outcome, where: dict[str, Any], *, now: datetime) -> list[Statement]:
    """Return the statement, or two where the attempt is refunded: a person may have left nothing to take one off."""
    update = _update(settlement, outcome, now=now)
    if not _is_refunded(settlement, outcome):
        return [(where, update)]
    return [
        (where | {"attempts": {"$gt": 0}}, update | {"$inc": {"attempts": -1}}),
        (where | {"attempts": {"$not": {"$gt": 0}}}, update),
    ]


def _update(settlement: Settlement, outcome: Outcome, *, now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {"updated_at": now, "settled_by": settlement.signature}
    values |= _values(outcome, now=now)
    if settlement.run is not None and (settlement.lost or not isinstance(outcome, Snoozed)):
        values["attempt_log"] = _log(settlement.task, settlement.run, refunded=isinstance(outcome, Snoozed))
    if settlement.bare:
        values |= _stripped(values)
    update: dict[str, Any] = {"$set": values, "$unset": {"lease": ""}}
    if settlement.is_crash and isinstance(settlement.task, Task):
        values["crashes"] = settlement.task.crashes + 1  # not $inc: what a person wrote there may be no number
    if not settlement.is_crash and settlement.run is not None and _given_by_function(outcome):
        values["crashes"] = 0
    if isinstance(outcome, Cancelled):
        update["$rename"] = {"idempotency_key": "released_key"}
    return update


def _values(outcome: Outcome, *, now: datetime) -> dict[str, Any]:
    match outcome:
        case Succeeded(result=result):
            return {"status": "done", "result": result} | _finished(now) | {"retain_from": now}
        case Retried(failure=failure, next_retry_at=at):
            return {"status": "pending", "lane": "retry", **schedule(at, now=now), **_error(failure, now)}
        case Failed(failure=failure, reason=reason):
            return {"status": "failed", "reason": reason, **_finished(now), **_error(failure, now)}
        case Snoozed(until=until):
            return {"status": "pending", **schedule(until, now=now)}
        case Cancelled():
            return {"status": "cancelled"} | _finished(now) | {"retain_from": now}
        case _:
            assert_never(outcome)


def _stripped(values: dict[str, Any]) -> dict[str, Any]:
    less: dict[str, Any] = {"attempt_log": []}
    if "result" in values:
        less["result"] = {"not_stored": "result", "reason": "the document is full"}
    if "error" in values:
        less["error"] = values["error"] | {"message": "the document is full"}
    return less


def _is_refunded(settlement: Settlement, outcome: Outcome) -> bool:
    if isinstance(settlement.task, Malformed) or isinstance(outcome, Succeeded):
        return False  # the counters of the former may be no numbers
    return settlement.run is None or isinstance(outcome, Snoozed)


def _given_by_function(outcome: Outcome) -> bool:
    """Tell whether the function came to an end of its own: a snooze is none, else it could be lost for ever."""
    match outcome:
        case Retried(failure=failure) | Failed(failure=failure):
            return failure.by_function
        case Snoozed():
            return False
        case Succeeded() | Cancelled():
            return True
        case _:
            assert_never(outcome)


def _finished(now: datetime) -> dict[str, Any]:
    return {"finished_at": now, "next_retry_at": None}


def _error(failure: Failure, now: datetime) -> dict[str, Any]:
    return {"error": error_document(message=failure.message, code=failure.code, at=now)}


def _log(task: Task | Malformed, run: Run, *, refunded: bool) -> list[dict[str, Any]]:
    """Return the execution log with *run* added: the first attempt and the newest are kept."""
    attempts = task.attempts if isinstance(task, Task) else 1
    line = Attempt(
        attempt=max(attempts - 1, 0),
        status=run.status,
        started_at=run.started_at,
        duration_ms=run.duration // timedelta(milliseconds=1),
        note=f"{run.note}; not counted" if refunded else run.note,
    )
    lines = [*task.attempt_log, line]
    kept = [*lines[:1], *lines[1:][-(LOG_LINES - 1) :]]
    # Of what people wrote there, too: the statement of one such task would be too large for all that go with it.
    return [attempt_document(replace(one, note=bounded(one.note, MAX_MESSAGE))) for one in kept]
