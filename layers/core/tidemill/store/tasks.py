"""Single tasks by id: format and parse ids, find, cancel and retry a task; and the times of the next due tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import bson
from bson import Binary, ObjectId, json_util
from bson.binary import UUID_SUBTYPE
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.documents import decode, read_task, schedule
from tidemill.errors import RefusedError
from tidemill.model import Malformed, Task, TaskId
from tidemill.store.connection import Tasks, is_name_refusal, translate_errors
from tidemill.store.writes import find_and_modify

_JSON_OPTIONS: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_UUID_BYTES: Final = 16
_MAX_LEVELS: Final = 100
"""Nesting levels of an id. MongoDB may refuse more."""


def get(tasks: Tasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the living task with this id, or ``None``. With *source* the task must come from it."""
    with translate_errors():
        raw = tasks.find_one({"_id": {"$eq": task_id}} | source_filter(source))
    return None if raw is None else read_task(raw)


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
    # Not $in: it matches a regular expression as a pattern.
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
    """Return *task_id* as text for people; `parse_id` parses it."""
    if type(task_id) is str or isinstance(task_id, ObjectId):  # bson's Code is a subclass of str
        return str(task_id)
    return id_as_json(task_id)


def id_as_json(task_id: TaskId) -> str:
    """Return *task_id* as JSON, which is unambiguous."""
    if type(task_id) is str:
        return json.dumps(task_id, ensure_ascii=False)
    if isinstance(task_id, Binary) and task_id.subtype == UUID_SUBTYPE and len(task_id) == _UUID_BYTES:
        return json.dumps({"$uuid": str(task_id.as_uuid())})
    return json_util.dumps(task_id, json_options=_JSON_OPTIONS)


def parse_id(text: str) -> tuple[TaskId, ...]:
    """Return every id that *text* can mean: the text itself, an ObjectId, and its value as JSON."""
    ids: list[TaskId] = [text]
    if re.fullmatch("[0-9a-fA-F]{24}", text):
        ids.append(ObjectId(text))
    if text.count("{") + text.count("[") > _MAX_LEVELS:
        return tuple(ids)
    try:
        value = json_util.loads(text, json_options=_JSON_OPTIONS)
        _require_storable(value)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, BSONError, RecursionError):
        return tuple(ids)  # the text is no JSON, or its value cannot be stored
    return (*ids, value)


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


def _require_storable(value: Any) -> None:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        raise TypeError("no id is an array")
    bson.encode({"_id": value})
