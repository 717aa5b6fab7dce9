"""What executors declare: the task types that exist, and what holds for tasks of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from typing import Any, Final

from pymongo import UpdateOne
from pymongo.database import Database

from tidemill import indexes
from tidemill.control.directory import Directory
from tidemill.control.reading import by_name, forgiving
from tidemill.documents import TASK_TYPES, backoff_document, is_text
from tidemill.model import Task
from tidemill.policies import Backoff, RetryPolicy
from tidemill.registry import TaskType
from tidemill.retry import resolved
from tidemill.store import translated

_MISSING: Final = object()


def declare_types(db: Database[Any], types: Iterable[TaskType], *, package: str, release: str, now: datetime) -> int:
    """Write what differs from what is stored; return how many types were written. Safe to repeat.

    What *package* has declared before and declares no more is retired: new tasks of the name are still taken in,
    since a deployment may be rolled back, but no dead letter comes back for it.
    """
    collection = forgiving(db)[TASK_TYPES]
    declared = [_type_document(one) for one in types]
    with translated(TASK_TYPES):
        stored = by_name(collection)
        retired = _dropped(stored, {one["_id"] for one in declared}, package=package)
        changed = [one for one in declared if not _is_declared(stored.get(one["_id"]), one)]
        writes = [_declaration(one | {"package": package, "release": release, "updated_at": now}) for one in changed]
        writes += [UpdateOne({"_id": name, "package": package}, {"$set": {"retired_at": now}}) for name in retired]
        if writes:
            collection.bulk_write(writes, ordered=False)
    return len(writes)


def registered_names(db: Database[Any]) -> frozenset[str]:
    """Return the names that executors have registered, as they are now, without the retired ones."""
    with translated(TASK_TYPES):
        found = forgiving(db)[TASK_TYPES].find({"retired_at": None}, {"_id": 1}, hint=indexes.BY_ID)
        return frozenset(one["_id"] for one in found if is_text(one["_id"]))


def policy_of(task: Task, directory: Directory, *, deployment: RetryPolicy) -> RetryPolicy:
    """Return how *task* is retried, by what its executor declared; no task code is imported."""
    declared = directory.lately(task.name) or {}
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


def _is_declared(stored: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> bool:
    if stored is None or stored.get("package") is None or stored.get("retired_at") is not None:
        return False
    return all(stored.get(name, _MISSING) == value for name, value in fields.items())


def _declaration(fields: Mapping[str, Any]) -> UpdateOne:
    return UpdateOne({"_id": fields["_id"]}, {"$set": fields, "$unset": {"retired_at": ""}}, upsert=True)


def _dropped(stored: Mapping[str, Mapping[str, Any]], declared: Set[str], *, package: str) -> list[str]:
    ours = {name for name, one in stored.items() if one.get("package") == package and one.get("retired_at") is None}
    return sorted(ours - declared)
