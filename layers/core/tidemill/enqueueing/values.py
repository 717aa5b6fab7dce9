"""What a request becomes: a new document, and the word that it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bson import ObjectId

from tidemill.documents import backoff_document, schedule
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import TaskId
from tidemill.requests import NewTask, foremost


class Accepted(NamedTuple):
    """A request that was taken in: as a new task, or as one that is there already.

    *status* is that task's; ``None`` where it was not looked at. A named tuple, since they are made by the thousand:
    a frozen dataclass takes twice as long.
    """

    id: TaskId
    status: str | None = "pending"
    is_new: bool = True


def new_document(
    request: NewTask, *, now: datetime, trace: Mapping[str, str] | None = None, task_id: ObjectId | None = None
) -> dict[str, Any]:
    """Return the document of a new task."""
    key = request.idempotency_key
    keyed = {} if key is None else {"idempotency_key": key, "request_hash": request.hash()}
    return {
        "_id": task_id or ObjectId(),
        "name": request.name,
        "queue": request.queue,
        "payload": request.payload,
        "status": "pending",
        "lane": "fresh",
        "priority": request.priority,
        **schedule(request.starts_at(now), now=now),
        "attempts": 0,
        "max_retries": request.retries(),
        "backoff_policy": None if request.retry is None else backoff_document(request.retry.backoff()),
        "timeout_sec": request.timeout_sec,
        "expires_at": request.expires_at,
        "created_at": now,
        "updated_at": now,
        "finished_at": None,
        "error": None,
        "attempt_log": [],
        "crashes": 0,
        "redrives": 0,
        "result": None,
        **keyed,
        "trace": dict(trace or {}),
    }


def refuse_expired(requests: Sequence[NewTask], *, now: datetime, is_one: bool = False) -> None:
    """Refuse tasks that would expire before they may start.

    Raises:
        InvalidRequestError: Naming the index of each of them, unless there was to be one only.
    """
    problems = [
        Problem("expires_at" if is_one else f"{index}.expires_at", "must be later than the task's start")
        for index, one in enumerate(requests)
        if one.expires_at is not None and one.expires_at <= (one.starts_at(now) or now)
    ]
    if problems:
        raise InvalidRequestError(foremost(problems))
