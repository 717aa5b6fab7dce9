"""How attempts end, and what is stored of it, by DESIGN 5: pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, assert_never
from unittest.mock import ANY

from tidemill.model import Cancelled, Failed, Outcome, Retried, Snoozed, Succeeded, Task
from tidemill.store.settle import Settlement
from tools.chaos.model.world import Document, changed, error, logged, scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended.

    ``status`` is what the log says of it; ``None``: it never started. ``note`` is the note of its function there;
    ``None``: it is not known. ``read`` is the document as it was read before, as far as it tells
    ``attempts``, ``crashes`` and ``attempt_log``; ``None``: it was none of a task.
    """

    outcome: Outcome
    read: Document | None
    status: str | None = None
    lost: bool = False
    crashed: bool = False
    note: str | None = None

    @property
    def is_refunded(self) -> bool:
        """Whether the attempt is not counted."""
        return self.read is not None and (self.status is None or isinstance(self.outcome, Snoozed))


def ending_of(settlement: Settlement) -> Ending:
    task, run = settlement.task, settlement.run
    read = None
    if isinstance(task, Task):
        read = {"attempts": task.attempts, "crashes": task.crashes, "attempt_log": [*map(asdict, task.attempt_log)]}
    status = None if run is None else run.status
    return Ending(
        outcome=settlement.outcome, read=read, status=status, lost=settlement.lost, crashed=settlement.crashed
    )


def ended(document: Document, ending: Ending, *, by: Any, now: datetime) -> Document:
    """Return a leased *document* as it is after an attempt at it; *by* whom is what ``settled_by`` says."""
    if document.get("cancel_requested_at") is not None and not isinstance(ending.outcome, Succeeded):
        ending = replace(ending, outcome=Cancelled())
    outcome, read, is_crash = ending.outcome, ending.read, ending.lost or ending.crashed
    fields = _outcome(outcome, now=now) | {"updated_at": now, "settled_by": by}
    if read is not None and ending.status is not None and (ending.lost or not isinstance(outcome, Snoozed)):
        fields["attempt_log"] = logged(read, ending.status, note=ANY if ending.note is None else ending.note)
    if ending.is_refunded:
        fields["attempts"] = refunded(document.get("attempts"))
    if read is not None and is_crash:
        fields["crashes"] = (read.get("crashes") or 0) + 1
    if ending.status is not None and not is_crash and _is_of_the_function(outcome):
        fields["crashes"] = 0
    gone = ["lease"]
    if isinstance(outcome, Cancelled) and "idempotency_key" in document:
        gone.append("idempotency_key")
        fields["released_key"] = document["idempotency_key"]
    return changed(document, gone=gone, **fields)


def refunded(attempts: Any) -> Any:
    """Return *attempts* with one taken off, where there is one to take off."""
    return attempts - 1 if isinstance(attempts, int) and attempts > 0 else attempts


def _outcome(outcome: Outcome, *, now: datetime) -> dict[str, Any]:
    final = {"finished_at": now, "next_retry_at": None}
    match outcome:
        case Succeeded(result=result):
            return {"status": "done", "result": result, "retain_from": now} | final
        case Retried(failure=failure, next_retry_at=at):
            return {"status": "pending", "lane": "retry", "error": error(failure.code, now=now)} | scheduled(
                at, now=now
            )
        case Failed(failure=failure, reason=reason):
            return {"status": "failed", "reason": reason, "error": error(failure.code, now=now)} | final
        case Snoozed(until=until):
            return {"status": "pending"} | scheduled(until, now=now)
        case Cancelled():
            return {"status": "cancelled", "retain_from": now} | final
        case _:
            assert_never(outcome)


def _is_of_the_function(outcome: Outcome) -> bool:
    if isinstance(outcome, Retried | Failed):
        return outcome.failure.by_function
    return not isinstance(outcome, Snoozed)
