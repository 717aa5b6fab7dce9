"""One task by its id, looked up or cancelled; and when the next one is due."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.documents import decode, read, schedule
from tidemill.errors import RefusedError
from tidemill.model import Malformed, Task, TaskId
from tidemill.store.changes import changed
from tidemill.store.collections import Tasks, refuses_names, translated


def get(tasks: Tasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the task, or ``None`` where no living task has this id, or none that came from *source*."""
    with translated():
        raw = tasks.find_one({"_id": {"$eq": task_id}} | came_from(source))
    return None if raw is None else read(raw)


def came_from(source: str | None) -> dict[str, Any]:
    """Return the filter of what a caller enqueued; ``None`` filters nothing."""
    return {} if source is None else {"trace.source": {"$eq": source}}


def cancel(tasks: Tasks, task_id: TaskId, *, now: datetime, force: bool = False) -> Task | Malformed | None:
    """Cancel a pending task, ask a processing one to stop, and return it as it then is.

    With *force* a processing task loses its lease and is cancelled at once; what its worker still does is
    refused. ``None``: no such task is pending or processing.
    """
    where: dict[str, Any] = {"_id": {"$eq": task_id}, "status": {"$in": ["pending", "processing"]}}
    stops = True if force else {"$eq": ["$status", "pending"]}
    try:
        with translated():
            raw = changed(tasks, where, [_stopped(stops, now=now)])
    except RefusedError as error:
        if not refuses_names(error):
            raise
        raw = _stopped_plainly(tasks, where, now=now, force=force)
    return None if raw is None else read(raw)


def retry_now(tasks: Tasks, task_id: TaskId, *, now: datetime) -> Task | Malformed | None:
    """Make a pending task that is not due yet due now, and return it as it then is.

    Nothing else of it changes. ``None``: no such task waits for a time.
    """
    where = {"_id": {"$eq": task_id}, "status": "pending", "due_at": {"$gt": now}}
    change = {"$set": {**schedule(None, now=now), "updated_at": now}}
    with translated():
        raw = changed(tasks, where, change)
    return None if raw is None else read(raw)


def asked_to_stop(tasks: Tasks, owner: str) -> list[TaskId]:
    """Return the ids of what *owner* runs and somebody asked to stop."""
    where = {"status": "processing", "lease.owner": owner, "cancel_requested_at": {"$type": "date"}}
    with translated():
        return [decode(raw)["_id"] for raw in tasks.find(where, {"_id": 1}, hint=indexes.OWNERS)]


def next_due(tasks: Tasks, *, now: datetime, until: datetime, limit: int) -> list[tuple[datetime, str, str]]:
    """Return when delayed tasks become due after *now*, up to *until*, in order; each with its queue and lane."""
    where = {"status": "pending", "next_retry_at": {"$type": "date", "$gt": now, "$lte": until}}
    with translated():
        found = tasks.find(where, {"_id": 0, "next_retry_at": 1, "queue": 1, "lane": 1}, hint=indexes.DELAYED)
        keys = [decode(raw) for raw in found.sort("next_retry_at").limit(limit)]
    return [(key["next_retry_at"], str(key.get("queue")), str(key.get("lane"))) for key in keys]


def _stopped_plainly(tasks: Tasks, where: dict[str, Any], *, now: datetime, force: bool) -> RawBSONDocument | None:
    ended = {"status": "cancelled", "updated_at": now, "finished_at": now, "retain_from": now, "next_retry_at": None}
    stop = {
        "$set": ended,
        "$min": {"cancel_requested_at": now},
        "$unset": {"lease": ""},
        "$rename": {"idempotency_key": "released_key"},
    }
    with translated():
        raw = changed(tasks, where if force else where | {"status": "pending"}, stop)
        return raw or changed(tasks, where, {"$min": {"cancel_requested_at": now}})


def _stopped(stops: Any, *, now: datetime) -> dict[str, Any]:  # noqa: ANN401 - an aggregation expression
    def either(stopped: Any, asked: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"$cond": [stops, stopped, asked]}

    gone = "$$REMOVE"
    return {
        "$set": {
            "status": either("cancelled", "$status"),
            "updated_at": either(now, "$updated_at"),  # while it runs, that is when it was claimed
            "cancel_requested_at": {"$ifNull": ["$cancel_requested_at", now]},
            "finished_at": either(now, "$finished_at"),
            "retain_from": either(now, gone),
            "next_retry_at": either(None, "$next_retry_at"),
            "lease": either(gone, "$lease"),
            "released_key": either({"$ifNull": ["$idempotency_key", gone]}, gone),
            "idempotency_key": either(gone, {"$ifNull": ["$idempotency_key", gone]}),
        }
    }
