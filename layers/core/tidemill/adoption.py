"""Documents that other programs or people put among the tasks: completed where their meaning is plain, pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode, read, schedule
from tidemill.model import Malformed


def missing_fields(raw: RawBSONDocument, *, now: datetime, adopt_as: str | None) -> dict[str, Any] | Malformed:
    """Return the fields that make a task of *raw*, or why none can be made of it.

    A document of the shape ``{payload, status, attempts, next_retry_at}`` is complete but for defaults; *adopt_as*
    is the function it is run by. Only what is absent or null is added: a field that is there and wrong says that
    somebody meant something else.
    """
    document = decode(raw)
    fields = {name: value for name, value in _defaults(document, now, adopt_as).items() if document.get(name) is None}
    task = read(RawBSONDocument(bson.encode(document | fields)))
    return task if isinstance(task, Malformed) else fields


def _defaults(document: dict[str, Any], now: datetime, adopt_as: str | None) -> dict[str, Any]:
    retry_at = document.get("next_retry_at")
    attempts = document.get("attempts")
    has_failed = isinstance(attempts, int | float) and attempts > 0
    defaults: dict[str, Any] = {
        "queue": "default",
        "lane": "retry" if has_failed else "fresh",
        "priority": 0,
        "created_at": now,
        "updated_at": now,
        "crashes": 0,
        "redrives": 0,
        "attempt_log": [],
        "due_at": schedule(retry_at, now=now)["due_at"],
    }
    return defaults | ({"name": adopt_as} if adopt_as else {})
