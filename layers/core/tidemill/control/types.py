"""What executors declare: the task types that exist, and what holds for tasks of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from pymongo import UpdateOne
from pymongo.database import Database

from tidemill.control.directory import Directory
from tidemill.control.reading import by_name, forgiving
from tidemill.documents import TASK_TYPES, backoff_document
from tidemill.model import Task
from tidemill.policies import Backoff, RetryPolicy
from tidemill.registry import TaskType
from tidemill.retry import resolved
from tidemill.store import translated

_MISSING: Final = object()


def declare_types(db: Database[Any], types: Iterable[TaskType], *, release: str, now: datetime) -> int:
    """Write what differs from what is stored; return how many types were written. Safe to repeat."""
    collection = forgiving(db)[TASK_TYPES]
    with translated(TASK_TYPES):
        stored = by_name(collection)
        changed = [fields for fields in map(_type_document, types) if not _holds(stored.get(fields["_id"]), fields)]
        if changed:
            writes = [
                UpdateOne({"_id": one["_id"]}, {"$set": one | {"release": release, "updated_at": now}}, upsert=True)
                for one in changed
            ]
            collection.bulk_write(writes, ordered=False)
    return len(changed)


def type_names(db: Database[Any]) -> frozenset[str]:
    """Return the names that executors have registered, as they are now."""
    with translated(TASK_TYPES):
        found = forgiving(db)[TASK_TYPES].find({}, {"_id": 1}, hint="_id_")
        return frozenset(one["_id"] for one in found if isinstance(one["_id"], str))


def policy_of(task: Task, directory: Directory, *, deployment: RetryPolicy) -> RetryPolicy:
    """Return how *task* is retried, by what its executor declared; no task code is imported."""
    declared = directory.task_type(task.name) or {}
    return resolved(task, registered=_declared_policy(declared, deployment), deployment=deployment)


def _declared_policy(declared: Mapping[str, Any], deployment: RetryPolicy) -> RetryPolicy:
    retries, backoff = declared.get("max_retries"), declared.get("backoff_policy")
    try:
        return RetryPolicy(
            max_retries=deployment.max_retries if retries is None else int(retries),
            backoff=deployment.backoff if backoff is None else Backoff(**backoff),
        )
    except (TypeError, ValueError, OverflowError):  # edited by hand, or written by a later release
        return deployment


def _type_document(one: TaskType) -> dict[str, Any]:
    return {
        "_id": one.name,
        "http": one.http,
        "timeout_sec": None if one.timeout is None else one.timeout.total_seconds(),
        "max_retries": None if one.retry is None else one.retry.max_retries,
        "backoff_policy": None if one.retry is None else backoff_document(one.retry.backoff),
    }


def _holds(stored: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> bool:
    return stored is not None and all(stored.get(name, _MISSING) == value for name, value in fields.items())
