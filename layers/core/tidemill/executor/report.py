"""Counts of one execution, and the log fields of one attempt."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from tidemill.model import OUTCOME_NAMES, Failed, Outcome, Retried, Snoozed, Task
from tidemill.store.outcomes import Settlement

_MS: Final = timedelta(milliseconds=1)


def is_failure(settlement: Settlement) -> bool:
    """Return whether the attempt failed, with or without a retry, or was lost with its worker."""
    return settlement.lost or isinstance(settlement.outcome, Retried | Failed)


def should_log(settlement: Settlement) -> bool:
    """Return whether the attempt gets a log line: it failed, or its task has a correlation or trace id.

    Tasks that were enqueued over HTTP or by a direct invocation have one; tasks of `Queue` do not need one.
    """
    task = settlement.task
    return is_failure(settlement) or (isinstance(task, Task) and (task.correlation_id or task.traceparent) is not None)


def log_fields(settlement: Settlement) -> dict[str, Any]:
    """Return the log fields of the attempt."""
    task, outcome, run = settlement.task, settlement.outcome, settlement.run
    fields: dict[str, Any] = {"task_id": str(task.id), "outcome": _name_outcome(settlement)}
    if isinstance(task, Task):
        fields |= {"task_name": task.name, "queue": task.queue, "attempt": task.attempts}
        ids = {"correlation_id": task.correlation_id, "traceparent": task.traceparent}
        fields |= {name: value for name, value in ids.items() if value is not None}
    if isinstance(outcome, Retried | Failed):
        fields["code"] = outcome.failure.code
    if isinstance(outcome, Failed):
        fields["reason"] = outcome.reason
    if run is not None:
        fields["duration_ms"] = run.duration // _MS
    return fields


def _name_outcome(settlement: Settlement) -> str:
    is_refunded = settlement.lost and isinstance(settlement.outcome, Snoozed)
    return "reclaimed" if is_refunded else OUTCOME_NAMES[type(settlement.outcome)]


SkipReason: TypeAlias = Literal["executor_slots", "time"]

NAMES: Final = (
    "claimed",  # taken under a lease
    "done",
    "retried",
    "failed",
    "snoozed",
    "cancelled",
    "released",  # given back before they started
    "timed_out",  # attempts that exceeded their timeout; also counted as retried or failed
    "lost",  # settled too late: another process had taken the lease
    "unknown",  # run, but MongoDB did not confirm the outcome
    "write_rejected",  # outcomes that MongoDB rejects
    "quarantined",  # documents that no claim can take
    "contended_ids",  # ids that another executor claimed first
    "errors",  # operations that failed
    "leftovers",  # abandoned functions that were still running at the end
)


class Report(Counter[str]):
    """Counts by the names of `NAMES`. `as_dict` returns all of them, with zeros.

    Attributes:
        skipped: Reason for not claiming at all: ``executor_slots`` (none is free), ``time`` (not enough is left).
        backlog: Due tasks are left to other executors.
        spent: The process has no threads left, so another process must continue.
        not_started: Reason why the first function without a thread or process did not start; ``None`` without one.
    """

    def __init__(self, *, skipped: SkipReason | None = None) -> None:
        super().__init__()
        self.skipped = skipped
        self.backlog = False
        self.spent = False
        self.not_started: str | None = None

    def count_outcome(self, outcome: Outcome) -> None:
        """Count an outcome that was written."""
        self[OUTCOME_NAMES[type(outcome)]] += 1

    def as_dict(self) -> dict[str, int | str]:
        """Return every count by its name, and ``skipped`` if the execution was skipped."""
        counts: dict[str, int | str] = {name: self[name] for name in NAMES}
        return counts if self.skipped is None else {"skipped": self.skipped, **counts}
