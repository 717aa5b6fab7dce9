"""Dead letters that are not in S3 yet: found, and marked once they are or cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import bson
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, UpdateOne

from tidemill import indexes
from tidemill.dead_letters.portions import portions
from tidemill.dead_letters.trying import tried_in_vain
from tidemill.dead_letters.values import CHANGING
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated
from tidemill.store.writes import Written, write_each

_UNEXPORTED: Final = {"archived_at": None}
_BY_AGE: Final = ("archived_at", "retain_from", "dead_lettered_at")
_READ: Final = ("_id", "dead_lettered_at")
_TRIES: Final = ("export_attempts", "export_error", "export_retry_at")


def unexported(
    dead: Tasks, *, limit: int, batch: int, now: datetime, newest_first: bool = False
) -> Iterator[list[RawBSONDocument]]:
    """Yield letters that are not exported, the oldest or newest first, without the fields that change: *limit* at most.

    The older has the earlier `retain_from`, or none (only what may expire unexported has one); among equals, it died
    sooner. They come up to *batch* at a time, and fewer where they are large. Those that could not be put are left out
    until they are to be tried again.
    """
    where = _UNEXPORTED | {"export_retry_at": {"$not": {"$gt": now}}}
    order = [(name, DESCENDING if newest_first else ASCENDING) for name in _BY_AGE]
    with translated(DEAD_LETTERS):
        found = dead.find(where, dict.fromkeys(CHANGING, 0), hint=indexes.EXPORT)
        yield from portions(found.sort(order).limit(limit).batch_size(batch), most=batch)


def count_unexported(dead: Tasks, *, limit: int) -> int:
    """Return how many letters are not exported, counted up to *limit*."""
    with translated(DEAD_LETTERS):
        return dead.count_documents(_UNEXPORTED, hint=indexes.EXPORT, limit=limit)


def mark_exported(dead: Tasks, letters: Sequence[RawBSONDocument], *, now: datetime) -> Written:
    """Note that *letters* are in S3; their retention counts from *now*.

    One that was marked before is left as it is, and is not among those that changed; nor is one that took the place of
    another after that was read.
    """
    change = {"$set": {"archived_at": now, "retain_from": now}, "$unset": dict.fromkeys(_TRIES, "")}
    return write_each(dead, [UpdateOne(_still_unexported(raw), change, hint=indexes.BY_ID) for raw in letters])


def put_off(dead: Tasks, refused: Sequence[tuple[RawBSONDocument, str]], *, now: datetime) -> Written:
    """Note of letters that they cannot be put and why, and when to try again: later each time."""
    return write_each(
        dead,
        [
            UpdateOne(_still_unexported(raw), tried_in_vain("export", why=why, now=now), hint=indexes.BY_ID)
            for raw, why in refused
        ],
    )


def as_read(raw: RawBSONDocument) -> RawBSONDocument:
    """Return the little of the letter *raw* that a mark needs."""
    document = opened(raw)
    return RawBSONDocument(bson.encode({name: document[name] for name in _READ if name in document}))


def _still_unexported(raw: RawBSONDocument) -> dict[str, Any]:
    document = opened(raw)
    died_at = document.get("dead_lettered_at")
    is_dated = isinstance(died_at, datetime | DatetimeMS)  # what else people write there is not always found again
    same = {"dead_lettered_at": died_at} if is_dated else {}
    return {"_id": {"$eq": document["_id"]}, **same, **_UNEXPORTED}
