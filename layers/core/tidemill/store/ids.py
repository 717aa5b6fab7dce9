"""Ids as people read and type them: text stays what it is, an ObjectId is its 24 hex digits, all else is JSON.

Such JSON is MongoDB's Extended JSON: ``42``, ``{"$date": "2031-07-01T09:00:00Z"}``, ``{"$uuid": "..."}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import bson
from bson import Binary, ObjectId, json_util
from bson.binary import UUID_SUBTYPE
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError

from tidemill.documents import decode
from tidemill.model import TaskId
from tidemill.store.collections import Tasks, translated

_PLAIN: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_UUID_BYTES: Final = 16
_DEEPEST: Final = 100
"""More levels than that are none that MongoDB takes for sure."""


def shown(task_id: TaskId) -> str:
    """Return *task_id* as people are told it; `meant` leads back to it."""
    if type(task_id) is str or isinstance(task_id, ObjectId):  # JavaScript is an heir of str
        return str(task_id)
    return exactly(task_id)


def exactly(task_id: TaskId) -> str:
    """Return *task_id* as JSON, which can be taken for no other."""
    if type(task_id) is str:
        return json.dumps(task_id, ensure_ascii=False)
    if isinstance(task_id, Binary) and task_id.subtype == UUID_SUBTYPE and len(task_id) == _UUID_BYTES:
        return json.dumps({"$uuid": str(task_id.as_uuid())})
    return json_util.dumps(task_id, json_options=_PLAIN)


def meant(text: str) -> tuple[TaskId, ...]:
    """Return every id that *text* may stand for: the text itself, an ObjectId, and what it is as JSON."""
    read: list[TaskId] = [text]
    if re.fullmatch("[0-9a-fA-F]{24}", text):
        read.append(ObjectId(text))
    if text.count("{") + text.count("[") > _DEEPEST:
        return tuple(read)
    try:
        value = json_util.loads(text, json_options=_PLAIN)
        _storable(value)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, BSONError, RecursionError):
        return tuple(read)  # it is no JSON, or of nothing that can be stored
    return (*read, value)


def stored(tasks: Tasks, found: Sequence[TaskId]) -> list[TaskId]:
    """Return which of the ids *found* are those of living tasks."""
    # Not $in, which takes a regular expression for what it matches.
    with translated():
        raws = list(tasks.find({"$or": [{"_id": {"$eq": one}} for one in found]}, {"_id": 1}))
    return [decode(raw)["_id"] for raw in raws]


def _storable(value: Any) -> None:  # noqa: ANN401 - whatever JSON can say
    if isinstance(value, list):
        raise TypeError("no id is an array")
    bson.encode({"_id": value})
