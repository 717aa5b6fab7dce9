"""The keys of exported letters: made of ids alone, safe in a URL and as the name of a file, and shared by no two ids.

An id that is purged and dies again on the same day has one key for both letters: the newer object takes the place of
the former, which a versioned bucket keeps as an old version (30 days in ours).
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Final
from urllib.parse import quote

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.values import LetterId, id_of
from tidemill.documents import decode, opened
from tidemill.model import TaskId
from tidemill.store import ids

LONGEST_NAME: Final = 200
"""Characters behind the date. S3 takes 1024 in all, but a file system that it is copied to 255."""

_SUFFIX: Final = ".json.gz"
_UNDATED: Final = "undated"


def object_key(letter_id: LetterId, dead_lettered_at: datetime | None) -> str:
    """Return the key of a letter: ``dlq/<yyyy/mm/dd>/<task>-<redrives>.json.gz``, with the day on which it died.

    The task's id is written as people read it, percent-encoded. Where that is too long, or may be taken for another,
    a digest of the id tells the key from all others.
    """
    text = _plain(letter_id.task)
    is_clear = letter_id.redrives >= 0 and _leads_to(text, letter_id.task)
    return _key(letter_id, dead_lettered_at, text=text, digested=None if is_clear else _encoded(letter_id))


def object_key_of(raw: RawBSONDocument) -> str:
    """Return the key of the letter *raw*, whatever people have made of it."""
    document = opened(raw)
    stored, died_at = document["_id"], document.get("dead_lettered_at")
    letter_id = id_of(decode(stored) if isinstance(stored, RawBSONDocument) else stored)
    day = died_at if isinstance(died_at, datetime) else None
    if bytes(raw.raw[4:]).startswith(_encoded(letter_id)[4:-1]):
        return object_key(letter_id, day)
    exact = stored.raw if isinstance(stored, RawBSONDocument) else raw.raw
    return _key(letter_id, day, text=_plain(letter_id.task), digested=bytes(exact))


def _key(letter_id: LetterId, day: datetime | None, *, text: str, digested: bytes | None) -> str:
    folder = _UNDATED if day is None else f"{day.year:04d}/{day.month:02d}/{day.day:02d}"
    safe = quote(text, safe="").replace("~", "%7E")
    end = f"-{letter_id.redrives}{_SUFFIX}"
    if digested is None and len(safe) + len(end) > LONGEST_NAME:
        digested = _encoded(letter_id)
    if digested is not None:
        end = f"~{hashlib.sha256(digested).hexdigest()}{end}"
        safe = re.sub("%.?$", "", safe[: LONGEST_NAME - len(end)])
    return f"dlq/{folder}/{safe}{end}"


def _plain(task_id: TaskId) -> str:
    if isinstance(task_id, ObjectId):
        return str(task_id)
    if type(task_id) is str and ids.meant(task_id) == (task_id,):
        return task_id
    return ids.exactly(task_id)


def _leads_to(text: str, task_id: TaskId) -> bool:
    if isinstance(task_id, int | ObjectId):  # MongoDB tells no 42 from another
        return True
    wanted = bson.encode({"_id": task_id})
    return any(bson.encode({"_id": one}) == wanted for one in ids.meant(text))


def _encoded(letter_id: LetterId) -> bytes:
    return bson.encode({"_id": letter_id.document()})
