"""Living tasks: format and parse ids, find, cancel and retry a task, list tasks; the times of the next due tasks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson import Binary, MinKey, ObjectId, json_util
from bson.binary import UUID_SUBTYPE
from bson.codec_options import DatetimeConversion
from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.documents import decode, decode_shallow, read_task, schedule
from tidemill.errors import RefusedError
from tidemill.model import Malformed, Status, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.store.connection import Tasks, is_name_refusal, translate_errors
from tidemill.store.counts import COUNT_LIMIT
from tidemill.store.paging import (
    Page,
    Position,
    Walk,
    build_cursor_error,
    cut_page,
    decode_cursor,
    encode_cursor,
    read_page,
)
from tidemill.store.writes import find_and_modify

_JSON_OPTIONS: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_UUID_BYTES: Final = 16
_PASTED_ID: Final = re.compile(
    r"""\s*(?:ObjectId\(|\{\s*"\$oid"\s*:)?\s*["']?([0-9a-fA-F]{24})["']?\s*[)}]?\s*""", re.ASCII | re.IGNORECASE
)


def get(tasks: Tasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the living task with this id, or ``None``. With *source* the task must come from it."""
    with translate_errors():
        raw = tasks.find_one({"_id": {"$eq": task_id}} | source_filter(source))
    return None if raw is None else read_task(raw)


def is_unfinished(tasks: Tasks, task_id: TaskId) -> bool:
    """Return whether a task with this id is pending or processing. Its payload is not read."""
    with translate_errors():
        raw = tasks.find_one({"_id": {"$eq": task_id}}, {"status": 1})
    return raw is not None and decode(raw).get("status") in {"pending", "processing"}


def cancel(tasks: Tasks, task_id: TaskId, *, now: datetime, force: bool = False) -> Task | Malformed | None:
    """Cancel a pending task, or request the cancellation of a processing task, and return the changed task.

    With *force* a processing task loses its lease and is cancelled at once; later writes of its worker are refused.
    ``None``: no task with this id is pending or processing.
    """
    where: dict[str, Any] = {"_id": {"$eq": task_id}, "status": {"$in": ["pending", "processing"]}}
    is_final = True if force else {"$eq": ["$status", "pending"]}
    try:
        with translate_errors():
            raw = find_and_modify(tasks, where, [_build_cancellation(is_final, now=now)])
    except RefusedError as error:
        if not is_name_refusal(error):
            raise
        raw = _cancel_plainly(tasks, where, now=now, force=force)
    return None if raw is None else read_task(raw)


def retry_now(tasks: Tasks, task_id: TaskId, *, now: datetime) -> Task | Malformed | None:
    """Make a delayed or retrying task due now and return the changed task. Nothing else of it changes.

    ``None``: no pending task with this id is due later.
    """
    where = {"_id": {"$eq": task_id}, "status": "pending", "due_at": {"$gt": now}}
    change = {"$set": {**schedule(None, now=now), "updated_at": now}}
    with translate_errors():
        raw = find_and_modify(tasks, where, change)
    return None if raw is None else read_task(raw)


def find_stored_ids(tasks: Tasks, ids: Sequence[TaskId]) -> list[TaskId]:
    """Return the ids of *ids* that living tasks have."""
    with translate_errors():
        raws = list(tasks.find({"$or": [{"_id": {"$eq": task_id}} for task_id in ids]}, {"_id": 1}))
    return [decode(raw)["_id"] for raw in raws]


def source_filter(source: str | None) -> dict[str, Any]:
    """Return the filter of the tasks that came from *source*; ``None`` matches all tasks."""
    return {} if source is None else {"trace.source": {"$eq": source}}


def find_cancel_requested(tasks: Tasks, owner: str) -> list[TaskId]:
    """Return the ids of the tasks of *owner* with a cancel request."""
    where = {"status": "processing", "lease.owner": owner, "cancel_requested_at": {"$type": "date"}}
    with translate_errors():
        return [decode(raw)["_id"] for raw in tasks.find(where, {"_id": 1}, hint=indexes.OWNERS)]


def find_next_due(tasks: Tasks, *, now: datetime, until: datetime, limit: int) -> list[tuple[datetime, str, str]]:
    """Return due time, queue and lane of delayed tasks that become due after *now*, up to *until*, in order."""
    where = {"status": "pending", "next_retry_at": {"$type": "date", "$gt": now, "$lte": until}}
    with translate_errors():
        found = tasks.find(where, {"_id": 0, "next_retry_at": 1, "queue": 1, "lane": 1}, hint=indexes.DELAYED)
        keys = [decode(raw) for raw in found.sort("next_retry_at").limit(limit)]
    return [(key["next_retry_at"], str(key.get("queue")), str(key.get("lane"))) for key in keys]


def format_id(task_id: TaskId) -> str:
    """Return an ObjectId and text as they are, and any other id as Extended JSON."""
    if type(task_id) is str or isinstance(task_id, ObjectId):  # bson's Code is a subclass of str
        return str(task_id)
    if isinstance(task_id, Binary) and task_id.subtype == UUID_SUBTYPE and len(task_id) == _UUID_BYTES:
        return json.dumps({"$uuid": str(task_id.as_uuid())})
    return json_util.dumps(task_id, json_options=_JSON_OPTIONS)


def parse_id(text: str) -> tuple[TaskId, ...]:
    """Return every id that *text* can mean: the text itself, and the ObjectId or number that it spells.

    An ObjectId may be spelt as shells and JSON show it: quoted, in ``ObjectId(...)``, or as ``{"$oid": ...}``.
    """
    if is_object_id(text):
        return text, ObjectId(text)
    if pasted := _PASTED_ID.fullmatch(text):
        return text, pasted[1], ObjectId(pasted[1])
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if type(value) is float or (type(value) is int and -(2**63) <= value < 2**63):
            return text, value
    return (text,)


def is_object_id(text: str) -> bool:
    """Return whether *text* spells an ObjectId."""
    return re.fullmatch("[0-9a-fA-F]{24}", text) is not None


def _cancel_plainly(tasks: Tasks, where: dict[str, Any], *, now: datetime, force: bool) -> RawBSONDocument | None:
    fields = {"status": "cancelled", "updated_at": now, "finished_at": now, "retain_from": now, "next_retry_at": None}
    change = {
        "$set": fields,
        "$min": {"cancel_requested_at": now},
        "$unset": {"lease": ""},
        "$rename": {"idempotency_key": "released_key"},
    }
    with translate_errors():
        raw = find_and_modify(tasks, where if force else where | {"status": "pending"}, change)
        return raw or find_and_modify(tasks, where, {"$min": {"cancel_requested_at": now}})


def _build_cancellation(is_final: Any, *, now: datetime) -> dict[str, Any]:  # noqa: ANN401 - an aggregation expression
    """Return the stage that cancels the task if *is_final* is true, else requests the cancellation."""

    def either(cancelled: Any, requested: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"$cond": [is_final, cancelled, requested]}

    remove = "$$REMOVE"
    return {
        "$set": {
            "status": either("cancelled", "$status"),
            "updated_at": either(now, "$updated_at"),  # of a processing task: the time of its claim
            "cancel_requested_at": {"$ifNull": ["$cancel_requested_at", now]},
            "finished_at": either(now, "$finished_at"),
            "retain_from": either(now, remove),
            "next_retry_at": either(None, "$next_retry_at"),
            "lease": either(remove, "$lease"),
            "released_key": either({"$ifNull": ["$idempotency_key", remove]}, remove),
            "idempotency_key": either(remove, {"$ifNull": ["$idempotency_key", remove]}),
        }
    }


MAX_FIELD_BYTES: Final = 2 * 1024
MAX_ERROR_BYTES: Final = 16 * 1024
"""Bytes of a field, and of the error, of a listed task. A larger value was written by hand; a list shows ``None``."""

MAX_MESSAGE_CHARS: Final = 500
"""Characters of an error message in a list. A read of the task itself returns the whole message."""

TASKS_PER_WALK: Final = 10_000
"""Tasks examined by one walk, used where no index leads to the matching tasks."""

MAX_TASKS_PER_PAGE: Final = 50_000
PAGE_BUDGET_SEC: Final = 0.3
"""Tasks and seconds after which a page ends, even if it has found nothing: the caller waits for its answer."""

_BY_STATUS: Final = {"pending": indexes.CLAIM, "processing": indexes.LEASES, "failed": indexes.FAILED}

_LISTED_FIELDS: Final = (
    "name", "queue", "status", "lane", "priority", "due_at", "next_retry_at", "attempts", "max_retries",
    "backoff_policy", "timeout_sec", "expires_at", "created_at", "updated_at", "finished_at", "lease", "settled_by",
    "cancel_requested_at", "reason", "crashes", "redrives", "idempotency_key", "trace",
)  # fmt: skip
_IS_OBJECT: Final = {"$eq": [{"$type": "$payload"}, "object"]}
_IS_MISSING: Final = {"$eq": [{"$type": "$payload"}, "missing"]}

WITHOUT_PAYLOAD: Final[dict[str, Any]] = {
    "$set": {
        "payload": {
            "$switch": {
                "branches": [{"case": _IS_OBJECT, "then": {"$literal": {}}}, {"case": _IS_MISSING, "then": "$$REMOVE"}],
                "default": None,
            }
        },
        "result": None,
    }
}
"""Last stage of a read without payloads and results.

An object becomes ``{}``, a payload of another type becomes ``null``, and a missing payload stays missing. So a
malformed task is still malformed. Five hundred documents of the maximum size exceed the memory of a function.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Maximum numbers of tasks behind one page.

    Attributes:
        max_sorted: Tasks of a status that the server may sort for a page; of more, a page walks along the ids.
        max_per_walk: Tasks that one walk examines.
        max_per_page: Tasks that the walks of a page examine, even if they have found nothing.
    """

    max_sorted: int = COUNT_LIMIT
    max_per_walk: int = TASKS_PER_WALK
    max_per_page: int = MAX_TASKS_PER_PAGE


DEFAULT_LIMITS: Final = PageLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Page of tasks, without payloads, results and execution logs.

    Attributes:
        tasks: The tasks. A page may have fewer tasks than its limit, or none, even if `next` is set.
        next: The cursor of the next page; ``None`` on the last page.
    """

    tasks: tuple[Task | Malformed, ...]
    next: str | None


def list_tasks(
    tasks: Tasks,
    *,
    status: Status | None = None,
    queue: str | None = None,
    name: str | None = None,
    limit: int,
    after: str | None = None,
    limits: PageLimits = DEFAULT_LIMITS,
    monotonic: Callable[[], float] = time.monotonic,
) -> TaskPage:
    """Return up to *limit* matching tasks behind the cursor *after*, in descending order of their ids.

    If few tasks have the status, the server reads them by an index of the status and sorts them. Otherwise the page
    walks along the ids. Both plans yield the same order, so the plan may change from page to page.

    A task that exists all the time is on exactly one page. A task that is enqueued between two pages is on neither.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    bound = None if after is None else decode_cursor(after, "_id")
    if bound == {"_id": MinKey()}:  # no id is lower
        raise build_cursor_error()
    criteria = {"status": status, "queue": queue, "name": name}
    where = {field: {"$eq": value} for field, value in criteria.items() if value is not None}
    if status in _BY_STATUS and _has_few(tasks, status, queue=queue, most=limits.max_sorted):
        page = _sort_by_id(tasks, where, _BY_STATUS[status], limit=limit, bound=bound)
    else:
        walk = Walk(
            index=indexes.BY_ID,
            keys=("_id",),
            position_keys=("_id",),
            where=where,
            shown={"_id": 1},
            highest=bound,
            newest_first=True,
            max_examined=limits.max_per_walk if where else None,
        )
        page = read_page(
            tasks,
            walk,
            limit=limit,
            max_walks=limits.max_per_page // limits.max_per_walk,
            until=monotonic() + PAGE_BUDGET_SEC,
            monotonic=monotonic,
        )
    found = _read_listed(tasks, [decode_shallow(raw)["_id"] for raw in page.found], where)
    return TaskPage(tasks=found, next=None if page.behind is None else encode_cursor(page.behind))


def _has_few(tasks: Tasks, status: Status, *, queue: str | None, most: int) -> bool:
    where: dict[str, Any] = {"status": status}
    if status == "pending" and queue is not None:
        where["queue"] = {"$eq": queue}
    with translate_errors():
        return tasks.count_documents(where, hint=_BY_STATUS[status], limit=most + 1) <= most


def _sort_by_id(tasks: Tasks, where: dict[str, Any], index: str, *, limit: int, bound: Position | None) -> Page:
    # An expression compares ids of all types; {"$lt": id} matches only ids of the same type.
    below = {} if bound is None else {"$expr": {"$lt": ["$_id", {"$literal": bound["_id"]}]}}
    stages: list[dict[str, Any]] = [
        {"$match": where | below},
        {"$project": {"_id": 1}},
        {"$sort": {"_id": -1}},
        {"$limit": limit + 1},
    ]
    with translate_errors():
        found = list(tasks.aggregate(stages, hint=index, batchSize=limit + 2, allowDiskUse=True))
    return cut_page(found, "_id", limit=limit, newest_first=True)


def _read_listed(tasks: Tasks, ids: Sequence[Any], where: dict[str, Any]) -> tuple[Task | Malformed, ...]:
    """Return the tasks of *ids* that still match, without their large fields."""
    if not ids:
        return ()
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": {"$in": list(ids)}} | where},
        {"$sort": {"_id": -1}},
        *build_list_stages(),
    ]
    with translate_errors():
        return tuple(
            shorten_error(read_task(raw)) for raw in tasks.aggregate(stages, hint=indexes.BY_ID, batchSize=len(ids) + 1)
        )


def build_list_stages(*more: str) -> tuple[dict[str, Any], ...]:
    """Return the last stages of a read of tasks for a list, without execution logs. *more* are additional fields."""
    small = {field: _null_if_larger(field, MAX_FIELD_BYTES) for field in (*_LISTED_FIELDS, *more)}
    return WITHOUT_PAYLOAD, {"$project": {"payload": 1, "error": _null_if_larger("error", MAX_ERROR_BYTES), **small}}


def _null_if_larger(field: str, limit: int) -> dict[str, Any]:
    is_small = {"$lte": [{"$bsonSize": {"of": f"${field}"}}, limit]}
    return {"$cond": [is_small, f"${field}", None]}


def shorten_error(task: Task | Malformed) -> Task | Malformed:
    """Return *task* with its error message cut to `MAX_MESSAGE_CHARS` characters."""
    if isinstance(task, Malformed) or task.error is None:
        return task
    return replace(task, error=replace(task.error, message=truncate_text(task.error.message, MAX_MESSAGE_CHARS)))
