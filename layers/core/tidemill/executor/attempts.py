"""What is said of one attempt: ids, names and codes, and the caller's own ids; never what it worked on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from tidemill.model import OUTCOME_NAMES, Failed, Retried, Snoozed, Task
from tidemill.settlement import Settlement

_MS: Final = timedelta(milliseconds=1)


def is_failure(settlement: Settlement) -> bool:
    """Tell whether the attempt failed, for now or for good, or vanished with its worker."""
    return settlement.lost or isinstance(settlement.outcome, Retried | Failed)


def is_told(settlement: Settlement) -> bool:
    """Tell whether the attempt is worth a line of its own: it failed, or its task came with an id to look for.

    All that come over HTTP or by a direct invocation do; those that an application enqueues with `Queue` do not.
    """
    task = settlement.task
    return is_failure(settlement) or (isinstance(task, Task) and (task.correlation_id or task.traceparent) is not None)


def line(settlement: Settlement) -> dict[str, Any]:
    """Return what is said of the attempt."""
    task, outcome, run = settlement.task, settlement.outcome, settlement.run
    said: dict[str, Any] = {"task_id": str(task.id), "outcome": _name(settlement)}
    if isinstance(task, Task):
        said |= {"task_name": task.name, "queue": task.queue, "attempt": task.attempts}
        said |= _ids(task)
    if isinstance(outcome, Retried | Failed):
        said["code"] = outcome.failure.code
    if isinstance(outcome, Failed):
        said["reason"] = outcome.reason
    if run is not None:
        said["duration_ms"] = run.duration // _MS
    return said


def _name(settlement: Settlement) -> str:
    is_refunded = settlement.lost and isinstance(settlement.outcome, Snoozed)
    return "reclaimed" if is_refunded else OUTCOME_NAMES[type(settlement.outcome)]


def _ids(task: Task) -> dict[str, str]:
    ids = {"correlation_id": task.correlation_id, "traceparent": task.traceparent}
    return {name: value for name, value in ids.items() if value is not None}
