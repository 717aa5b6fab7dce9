"""Writes of the archive: insert dead letters first, delete their tasks last.

Also the retention of dead letters that are not exported, and the back-off of failed attempts to move or export.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, DeleteOne, UpdateOne

from tidemill import indexes
from tidemill.dead_letters.documents import MARK_FIELDS, MAX_REDRIVES, REDRIVE_MARK_FIELDS, read_key, read_redrives
from tidemill.dead_letters.queries import match_task
from tidemill.documents import DEAD_LETTERS, decode_shallow, encode_fields
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.paging import byte_batches
from tidemill.store.writes import DUPLICATE_KEY_CODE, insert_each, write_each

FIRST_RETRY_WAIT: Final = timedelta(minutes=10)
MAX_RETRY_WAIT: Final = timedelta(days=1)
RETENTION_BATCH_SIZE: Final = 1000
"""Maximum number of dead letters in one update of the retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertResult:
    """Outcomes of an insert of dead letters, by their index.

    An index in no attribute must be tried again: the document that took its id has disappeared.

    Attributes:
        new: Inserted now.
        there: Inserted earlier.
        taken: Another failure of a task with the same id has the id. The value is the next free number of redrives.
        refused: Refused by MongoDB, with the message.
    """

    new: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    taken: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)


def find_failed(
    tasks: Tasks, *, limit: int, now: datetime, newest_first: bool = False
) -> Iterator[list[RawBSONDocument]]:
    """Yield failed tasks in lists of up to *limit*, the earliest failure first, without the fields of dead letters.

    Tasks that could not be moved are left out until their next attempt is due.
    """
    where: dict[str, Any] = {"status": "failed", "archive_retry_at": {"$not": {"$gt": now}}}
    with translate_errors():
        found = tasks.find(where, dict.fromkeys([*MARK_FIELDS, *_ATTEMPT_FIELDS], 0), hint=indexes.FAILED)
        order = DESCENDING if newest_first else ASCENDING
        yield from byte_batches(found.sort("finished_at", order).batch_size(limit), most=limit)


def insert_dead_letters(dead: Tasks, letters: Sequence[RawBSONDocument]) -> InsertResult:
    """Insert *letters*, except those that exist already."""
    if not letters:
        return InsertResult()
    codes = insert_each(dead, letters, collection=DEAD_LETTERS)
    repeated = {index: letters[index] for index, code in codes.items() if code == DUPLICATE_KEY_CODE}
    return replace(
        find_duplicates(dead, repeated),
        new=tuple(index for index in range(len(letters)) if index not in codes),
        refused={index: f"MongoDB refuses it (code {code})" for index, code in codes.items() if index not in repeated},
    )


def close_earlier(dead: Tasks, letters: Sequence[RawBSONDocument], *, now: datetime) -> None:
    """Close the earlier dead letters of the tasks in *letters* whose redrive was interrupted.

    `complete` recognises such a redrive by the later dead letter. It could not do this once *letters* are purged.
    """
    redriven = [fields for fields in map(decode_shallow, letters) if fields["_id"]["redrives"]]
    write_each(
        dead,
        [
            UpdateOne(
                {
                    "_id": {"$eq": {"task": fields["_id"]["task"], "redrives": fields["_id"]["redrives"] - 1}},
                    "created_at": {"$eq": fields.get("created_at")},
                    "redrive_started_at": {"$type": "date"},
                    "redriven_at": None,
                },
                {"$set": {"redriven_at": now}, "$unset": dict.fromkeys(REDRIVE_MARK_FIELDS, "")},
                hint=indexes.BY_ID,
            )
            for fields in redriven
        ],
    )


def delete_tasks(tasks: Tasks, moved: Sequence[RawBSONDocument]) -> int:
    """Delete the tasks in *moved*, except tasks that were redriven or failed again since the read. Return the count."""
    if not moved:
        return 0
    deletions = [DeleteOne(_match_unchanged(raw), hint=indexes.BY_ID) for raw in moved]
    with translate_errors():
        return tasks.bulk_write(deletions, ordered=False).deleted_count


def postpone_move(tasks: Tasks, stuck: Sequence[tuple[RawBSONDocument, str]], *, now: datetime) -> None:
    """Record on failed tasks why they cannot be moved, and when to try again: later each time."""
    updates = [
        UpdateOne(_match_unchanged(raw), record_failed_attempt("archive", why=why, now=now), hint=indexes.BY_ID)
        for raw, why in stuck
    ]
    write_each(tasks, updates)


_GUARDED_FIELDS: Final = ("created_at", "updated_at", "finished_at", "redrives")
_COMPARABLE_TYPES: Final = (datetime, DatetimeMS, int, float)
_ATTEMPT_FIELDS: Final = ("archive_attempts", "archive_error", "archive_retry_at")


def _match_unchanged(raw: RawBSONDocument) -> dict[str, Any]:
    task = decode_shallow(raw)
    values = {name: task.get(name) for name in _GUARDED_FIELDS}
    # A filter on a value of another type may not find its own document again.
    guard = {
        name: {"$eq": value} for name, value in values.items() if value is None or isinstance(value, _COMPARABLE_TYPES)
    }
    return {"_id": {"$eq": task["_id"]}, "status": "failed"} | guard


_MAX_COUNTED_ATTEMPTS: Final = 1000
_FIRST_WAIT_MS: Final = FIRST_RETRY_WAIT // timedelta(milliseconds=1)
_MAX_WAIT_MS: Final = MAX_RETRY_WAIT // timedelta(milliseconds=1)


def record_failed_attempt(what: str, *, why: str, now: datetime) -> list[dict[str, Any]]:
    """Return the update that records a failed attempt. The wait doubles with each attempt, up to a day.

    The fields are ``<what>_attempts``, ``<what>_error`` and ``<what>_retry_at``.
    """
    before = {"$min": [{"$max": [{"$ifNull": [f"${what}_attempts", 0]}, 0]}, _MAX_COUNTED_ATTEMPTS]}
    wait = {"$min": [{"$multiply": [_FIRST_WAIT_MS, {"$pow": [2, before]}]}, _MAX_WAIT_MS]}
    fields = {
        f"{what}_attempts": {"$add": [before, 1]},
        f"{what}_error": {"$literal": why},
        f"{what}_retry_at": {"$add": [now, {"$toLong": wait}]},
    }
    return [{"$set": fields}]


def update_retention(
    dead: Tasks, *, expire_unexported: bool, now: datetime, excluded_ids: Sequence[Any] = ()
) -> tuple[Sequence[Any], int]:
    """Keep dead letters that are not exported; with *expire_unexported* let them expire, counted from *now*.

    One call changes at most `RETENTION_BATCH_SIZE`, and none of *excluded_ids*. Return the ids that were found, and how
    many of them changed: MongoDB may refuse some updates.
    """
    where: dict[str, Any] = {"archived_at": None, "retain_from": None if expire_unexported else {"$type": "date"}}
    update = {"$set": {"retain_from": now}} if expire_unexported else {"$unset": {"retain_from": ""}}
    excluded = {"_id": {"$nin": list(excluded_ids)}} if excluded_ids else {}
    with translate_errors(DEAD_LETTERS):
        found = dead.find(where | excluded, {"_id": 1}, hint=indexes.EXPORT).limit(RETENTION_BATCH_SIZE)
        ids = [decode_shallow(raw)["_id"] for raw in found.batch_size(RETENTION_BATCH_SIZE + 1)]
    changes = [UpdateOne({"_id": {"$eq": letter_id}} | where, update, hint=indexes.BY_ID) for letter_id in ids]
    return ids, write_each(dead, changes).changed


_LIFE_FIELDS: Final = ("created_at", "finished_at")
_PROJECTION: Final = (*_LIFE_FIELDS, "redrives", "redriven_at", "settled_by")


def find_duplicates(dead: Tasks, letters: Mapping[int, RawBSONDocument]) -> InsertResult:
    """Compare *letters*, whose ids are taken, with the stored dead letters of their tasks."""
    dated = [letter for letter in letters.values() if _is_dated(letter)]
    stored = _find_by_ids(dead, dated) if dated else {}
    there, taken = list[int](), dict[int, int]()
    for index, letter in letters.items():
        same_id = stored.get(read_key(letter))
        found = [same_id] if same_id is not None and _is_same(letter, same_id) else _find_of_task(dead, letter)
        if any(_is_same(letter, other_letter) for other_letter in found):
            there.append(index)
        elif found:
            taken[index] = max(map(_read_redrives, found)) + 1
    return InsertResult(there=tuple(there), taken=taken)


def _find_by_ids(dead: Tasks, letters: Sequence[RawBSONDocument]) -> dict[bytes, RawBSONDocument]:
    same_ids = [{"_id": {"$eq": decode_shallow(letter)["_id"]}} for letter in letters]
    with translate_errors(DEAD_LETTERS):
        found = dead.find({"$or": same_ids}, dict.fromkeys(_PROJECTION, 1), hint=indexes.BY_ID)
        return {read_key(raw): raw for raw in found}


def _find_of_task(dead: Tasks, letter: RawBSONDocument) -> list[RawBSONDocument]:
    where = {"_id": match_task(decode_shallow(letter)["_id"]["task"])}
    projection = dict.fromkeys(_PROJECTION if _is_dated(letter) else (*_PROJECTION, "payload"), 1)
    with translate_errors(DEAD_LETTERS):
        return list(dead.find(where, projection, hint=indexes.BY_ID))


def _is_dated(letter: RawBSONDocument) -> bool:
    fields = decode_shallow(letter)
    return any(fields.get(name) is not None for name in _LIFE_FIELDS)


def _is_same(letter: RawBSONDocument, stored: RawBSONDocument) -> bool:
    """Return whether *stored* records the same failure as *letter*.

    ``settled_by`` tells two failures in one millisecond apart. A redriven dead letter also needs the same number of
    redrives, because a document that was written by hand has no ``settled_by``.
    """
    fields, stored_fields = decode_shallow(letter), decode_shallow(stored)
    is_open = stored_fields.get("redriven_at") is None
    is_same_attempt = fields.get("settled_by") == stored_fields.get("settled_by")
    is_same_life = is_same_attempt and _read_life(letter) == _read_life(stored)
    return is_same_life and (is_open or read_redrives(fields) == read_redrives(stored_fields))


def _read_life(letter: RawBSONDocument) -> list[bytes]:
    """Return the values that tell this life of a task from its other lives.

    They are its times, or its payload if the document was written by hand without times.
    """
    fields = decode_shallow(letter)
    return [encode_fields({name: fields.get(name)}) for name in (_LIFE_FIELDS if _is_dated(letter) else ("payload",))]


def _read_redrives(letter: RawBSONDocument) -> int:
    """Return the number of redrives in the id; 0 if it is no number or too large to count on from."""
    value = decode_shallow(letter)["_id"].get("redrives")
    is_number = isinstance(value, int | float) and 0 <= value < MAX_REDRIVES
    return int(value) if is_number else 0
