"""From the failed tasks to the dead letters: insert there first, delete here last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, DeleteOne, UpdateOne
from pymongo.errors import BulkWriteError

from tidemill import indexes
from tidemill.dead_letters.comparing import compared
from tidemill.dead_letters.portions import portions
from tidemill.dead_letters.trying import tried_in_vain
from tidemill.dead_letters.values import MARKS, REDRIVE_MARKS
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated
from tidemill.store.intake import DUPLICATE_KEY
from tidemill.store.writes import refused_in, write_each

_AS_READ: Final = ("created_at", "updated_at", "finished_at", "redrives")
_FOUND_AGAIN: Final = (datetime, DatetimeMS, int, float)
_TRIES: Final = ("archive_attempts", "archive_error", "archive_retry_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buried:
    """What became of letters that were to be inserted, by their place among them.

    Attributes:
        new: Were inserted.
        there: Had been inserted before.
        taken: Their id belongs to another death of a task with the same id; with the next number that is free.
        refused: The server refuses them, with its word for why.

    One that is in none of these has to be looked at once more: what took its id is gone.
    """

    new: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    taken: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)


def failed(tasks: Tasks, *, limit: int, now: datetime, newest_first: bool = False) -> Iterator[list[RawBSONDocument]]:
    """Yield failed tasks, up to *limit* at a time, the longest failed first, without fields that we are to set.

    Those that could not be moved are left out until they are to be tried again.
    """
    where: dict[str, Any] = {"status": "failed", "archive_retry_at": {"$not": {"$gt": now}}}
    with translated():
        found = tasks.find(where, dict.fromkeys([*MARKS, *_TRIES], 0), hint=indexes.FAILED)
        order = DESCENDING if newest_first else ASCENDING
        yield from portions(found.sort("finished_at", order).batch_size(limit), most=limit)


def bury(dead: Tasks, letters: Sequence[RawBSONDocument]) -> Buried:
    """Insert *letters*, each unless it is there already."""
    if not letters:
        return Buried()
    wrong: list[dict[str, Any]] = []
    with translated(DEAD_LETTERS):
        try:
            dead.insert_many(letters, ordered=False)
        except BulkWriteError as error:
            wrong = refused_in(error)
    refused = {one["index"]: _word(one) for one in wrong if one["code"] != DUPLICATE_KEY}
    repeated = {one["index"]: letters[one["index"]] for one in wrong if one["code"] == DUPLICATE_KEY}
    known = compared(dead, repeated)
    return Buried(
        new=tuple(index for index in range(len(letters)) if index not in refused and index not in repeated),
        there=tuple(sorted(known.same)),
        taken=known.others,
        refused=refused,
    )


def close_earlier(dead: Tasks, letters: Sequence[RawBSONDocument], *, now: datetime) -> None:
    """Close the letters out of which the tasks of *letters* had come back, where their redrives were cut short.

    Else whoever completes those would have nothing left to see it by, once these letters are purged.
    """
    again = [opened(one) for one in letters if opened(one)["_id"]["redrives"]]
    write_each(
        dead,
        [
            UpdateOne(
                {
                    "_id": {"$eq": {"task": one["_id"]["task"], "redrives": one["_id"]["redrives"] - 1}},
                    "created_at": {"$eq": one.get("created_at")},
                    "redrive_started_at": {"$type": "date"},
                    "redriven_at": None,
                },
                {"$set": {"redriven_at": now}, "$unset": dict.fromkeys(REDRIVE_MARKS, "")},
                hint=indexes.BY_ID,
            )
            for one in again
        ],
    )


def remove(tasks: Tasks, moved: Sequence[RawBSONDocument]) -> int:
    """Delete what was *moved*, but what has come back or died once more since it was read; return how many."""
    if not moved:
        return 0
    deletions = [DeleteOne(_as_it_died(raw), hint=indexes.BY_ID) for raw in moved]
    with translated():
        return tasks.bulk_write(deletions, ordered=False).deleted_count


def put_off(tasks: Tasks, stuck: Sequence[tuple[RawBSONDocument, str]], *, now: datetime) -> None:
    """Note of failed tasks that they cannot be moved and why, and when to try again: later each time."""
    updates = [
        UpdateOne(_as_it_died(raw), tried_in_vain("archive", why=why, now=now), hint=indexes.BY_ID)
        for raw, why in stuck
    ]
    write_each(tasks, updates)


def _as_it_died(raw: RawBSONDocument) -> dict[str, Any]:
    task = opened(raw)
    read = {name: task.get(name) for name in _AS_READ}
    # What else people write there is not always found again.
    same = {name: {"$eq": value} for name, value in read.items() if value is None or isinstance(value, _FOUND_AGAIN)}
    return {"_id": {"$eq": task["_id"]}, "status": "failed"} | same


def _word(error: Mapping[str, Any]) -> str:
    return f"MongoDB refuses it (code {error['code']})"
