"""What a failed task becomes. The bytes of its fields survive the move."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.grafting import grafted
from tidemill.dead_letters.values import MAX_REDRIVES
from tidemill.documents import opened
from tidemill.fingerprint import fingerprint

MAX_DOCUMENT: Final = 16 * 1024 * 1024
ROOM: Final = 1024
"""Is kept free for the fields that exports and redrives add, where that can be."""

_FULL: Final = "the document is full"
_SPARE: Final = ("attempt_log", "result", "trace", "settled_by", "updated_at")
"""What makes room where there is none: neither what was asked for, nor how it ended."""


def dead_letter(raw: RawBSONDocument, *, now: datetime, redrives: int | None = None) -> RawBSONDocument:
    """Return the dead letter of a failed task: its own fields byte for byte behind ours.

    It is stored under the task's id and its *redrives*, unless these are given. Where there is no room for our
    fields, those go that nobody needs to run the task again.

    Raises:
        ValueError: The document cannot be taken apart, or there is no room in it even so.
    """
    task = opened(raw)
    own = redrives_of(task) if redrives is None else redrives
    letter = _marked(bytes(raw.raw), task, now=now, redrives=own)
    if len(letter) > MAX_DOCUMENT - ROOM:
        letter = _marked(_slim(task), task, now=now, redrives=own)
    if len(letter) > MAX_DOCUMENT:
        raise ValueError("there is no room for the marks of a dead letter")
    return RawBSONDocument(letter)


def redrives_of(task: Mapping[str, Any]) -> int:
    """Return how often *task* says that it came back from the dead letters."""
    value = task.get("redrives")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REDRIVES else 0


def _marked(theirs: bytes, task: Mapping[str, Any], *, now: datetime, redrives: int) -> bytes:
    error = task.get("error")
    told = error if isinstance(error, Mapping) else {}
    code, message = str(told.get("code", "malformed")), str(told.get("message", ""))
    ours = {
        "_id": {"task": task["_id"], "redrives": redrives},
        "dead_lettered_at": now,
        "fingerprint": fingerprint(name=str(task.get("name")), code=code, message=message),
    }
    if "reason" not in task:  # failed by hand, or by nothing that is known
        ours["reason"] = "not_retryable"
    return grafted(ours, theirs, their_id={"_id": task["_id"]})


def _slim(task: Mapping[str, Any]) -> bytes:
    kept = {name: value for name, value in task.items() if value is not None and name not in _SPARE}
    if isinstance(kept.get("error"), Mapping):
        kept["error"] = {**kept["error"], "message": _FULL}
    return bson.encode(kept)
