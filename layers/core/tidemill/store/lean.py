"""Reading tasks that are looked after and not run: without what makes them large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidemill.classify import bounded
from tidemill.model import Malformed, Task

MAX_FIELD: Final = 2 * 1024
MAX_ERROR: Final = 16 * 1024
"""Bytes of a field of a listed task: a larger one was written by hand, and comes as if it were not there."""

MAX_MESSAGE: Final = 500
"""Characters of an error message in a list; a look at the task itself has all of it."""

_SHOWN: Final = (
    "name", "queue", "status", "lane", "priority", "due_at", "next_retry_at", "attempts", "max_retries",
    "backoff_policy", "timeout_sec", "expires_at", "created_at", "updated_at", "finished_at", "lease", "settled_by",
    "cancel_requested_at", "reason", "crashes", "redrives", "idempotency_key", "trace",
)  # fmt: skip
_IS_OBJECT: Final = {"$eq": [{"$type": "$payload"}, "object"]}
_IS_ABSENT: Final = {"$eq": [{"$type": "$payload"}, "missing"]}

LEAN: Final[dict[str, Any]] = {
    "$set": {
        "payload": {
            "$switch": {
                "branches": [
                    {"case": _IS_OBJECT, "then": {"$literal": {}}},
                    {"case": _IS_ABSENT, "then": "$$REMOVE"},
                ],
                "default": None,
            }
        },
        "result": None,
    }
}
"""The last stage of such a read. A payload of the right kind comes as ``{}``; one that is wrong, or none, still is so.

Five hundred whole documents, each as large as they may be, are more than a function has memory for.
"""


def listed(*others: str) -> tuple[dict[str, Any], ...]:
    """Return the last stages of a read of tasks for a list, without execution logs; with the fields *others*, too."""
    small = {field: _unless_larger(field, MAX_FIELD) for field in (*_SHOWN, *others)}
    return LEAN, {"$project": {"payload": 1, "error": _unless_larger("error", MAX_ERROR), **small}}


def brief(task: Task | Malformed) -> Task | Malformed:
    """Return *task* as a list has it: what it failed with in no more than `MAX_MESSAGE` characters."""
    if isinstance(task, Malformed) or task.error is None:
        return task
    return replace(task, error=replace(task.error, message=bounded(task.error.message, MAX_MESSAGE)))


def _unless_larger(field: str, limit: int) -> dict[str, Any]:
    is_small = {"$lte": [{"$bsonSize": {"of": f"${field}"}}, limit]}
    return {"$cond": [is_small, f"${field}", None]}
