"""The steps of a redrive, one function per MongoDB operation. A letter that is on its way back bears marks.

Who set the marks knows their token, and every write that rests on them names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from tidemill import indexes
from tidemill.dead_letters.letters import redrives_of
from tidemill.dead_letters.portions import portions
from tidemill.dead_letters.values import MARKS, REDRIVE_MARKS, id_bytes
from tidemill.documents import DEAD_LETTERS, decode, opened
from tidemill.model import TaskId
from tidemill.store import Tasks, translated
from tidemill.store.writes import Written, refused_in, write_each

_UNMARKED: Final = dict.fromkeys(REDRIVE_MARKS, "")

SHOWN: Final[dict[str, Any]] = {
    **dict.fromkeys(("dead_lettered_at", "created_at", *REDRIVE_MARKS), 1),
    "size": {"$bsonSize": "$$ROOT"},
}
"""The projection of a letter that `bodies` leads from to the rest."""

ANEW: Final = (
    "status", "lane", "due_at", "next_retry_at", "attempts", "updated_at", "finished_at", "error", "attempt_log",
    "redrives", "result",
)  # fmt: skip
"""The fields that a redriven task has values of its own in."""

_GONE: Final = (
    *MARKS, "reason", "lease", "settled_by", "cancel_requested_at", "released_key", "archive_attempts",
    "archive_error", "archive_retry_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A letter that is to go on its way back, and the token that it bears so far."""

    id: Any
    due_at: datetime
    drops_expiry: bool
    former: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """A task that is there; *life* is as `life_of` tells it."""

    id: TaskId
    life: bytes
    redrives: int
    status: str


def cut_short(dead: Tasks, *, before: datetime, after: datetime, limit: int) -> Iterator[list[RawBSONDocument]]:
    """Yield letters, up to *limit* at a time, the first one first, that did not set out between these times.

    One that says *after* or later bears the time of a clock that has been set back since.
    """
    times = ({"$lte": before}, {"$gte": after})
    where = {"$or": [{"redrive_started_at": {"$type": "date"} | time} for time in times], "redriven_at": None}
    with translated(DEAD_LETTERS):
        found = dead.find(where, SHOWN, hint=indexes.REDRIVES).sort("redrive_started_at")
        yield from portions(found.batch_size(limit), most=limit)


def bodies(dead: Tasks, ids: Sequence[Any], *, without: Iterable[str] = ()) -> dict[bytes, RawBSONDocument]:
    """Return by their ids what of letters becomes that of tasks, byte for byte, except the fields in *without*."""
    left_out = dict.fromkeys([*ANEW, *_GONE, *without], 0)
    with translated(DEAD_LETTERS):
        found = dead.find({"_id": {"$in": list(ids)}}, left_out, hint=indexes.BY_ID).batch_size(len(ids) + 1)
        return {id_bytes(opened(raw)["_id"]): raw for raw in found}


def alive(tasks: Tasks, ids: Sequence[TaskId]) -> dict[bytes, Alive]:
    """Return which of these tasks are there, by their ids. None of *ids* may be a regular expression."""
    shown = {"redrives": 1, "status": 1, "created_at": 1}
    with translated():
        found = list(tasks.find({"_id": {"$in": list(ids)}}, shown, hint=indexes.BY_ID, batch_size=len(ids) + 1))
    there = [(decode(raw), life_of(raw)) for raw in found]
    return {
        id_bytes(one["_id"]): Alive(id=one["_id"], life=life, redrives=redrives_of(one), status=str(one.get("status")))
        for one, life in there
    }


def holders(tasks: Tasks, keys: Sequence[str]) -> dict[str, TaskId]:
    """Return which of the idempotency *keys* are held, and by which task each."""
    if not keys:
        return {}
    where = {"idempotency_key": {"$gt": "", "$in": list(keys)}}
    with translated():
        found = tasks.find(where, {"idempotency_key": 1}, hint=indexes.KEY, batch_size=len(keys) + 1)
        return {one["idempotency_key"]: one["_id"] for one in map(decode, found)}


def died_since(dead: Tasks, letters: Sequence[tuple[TaskId, int]]) -> set[tuple[bytes, bytes]]:
    """Return the ids and lives of those tasks that have died once more, after so many redrives."""
    if not letters:
        return set()
    later = [
        {"_id": {"$gt": {"task": task, "redrives": redrives}, "$lte": {"task": task, "redrives": MaxKey()}}}
        for task, redrives in letters
    ]
    with translated(DEAD_LETTERS):
        found = dead.find({"$or": later}, {"created_at": 1}, hint=indexes.BY_ID)
        return {(id_bytes(opened(opened(raw)["_id"])["task"]), life_of(raw)) for raw in found}


def mark(dead: Tasks, marks: Sequence[Mark], *, token: str, now: datetime) -> Written:
    """Set out with letters that are open and bear the token they were read with."""
    return _write(
        dead,
        [(one.id, one.former) for one in marks],
        [
            {
                "$set": {
                    "redrive_started_at": now,
                    "redrive_due_at": one.due_at,
                    "redrive_token": token,
                    "redrive_drops_expiry": one.drops_expiry,
                }
            }
            for one in marks
        ],
    )


def standing(dead: Tasks, ids: Sequence[Any]) -> dict[bytes, object]:
    """Return the tokens of those of these letters that are open, by their ids."""
    where = {"_id": {"$in": list(ids)}, "redriven_at": None}
    with translated(DEAD_LETTERS):
        found = dead.find(where, {"redrive_token": 1}, hint=indexes.BY_ID, batch_size=len(ids) + 1)
        return {id_bytes(opened(raw)["_id"]): decode(raw).get("redrive_token") for raw in found}


def insert(tasks: Tasks, documents: Sequence[RawBSONDocument]) -> dict[int, int]:
    """Insert what can be inserted; return the server's code for what cannot, by its place."""
    wrong: list[dict[str, Any]] = []
    with translated():
        try:
            tasks.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            wrong = refused_in(error)
    return {one["index"]: one["code"] for one in wrong}


def close(dead: Tasks, letters: Sequence[tuple[Any, object]], *, now: datetime) -> int:
    """Note that the tasks of marked letters are back, each given with its token; return of how many."""
    update = {"$set": {"redriven_at": now}, "$unset": _UNMARKED}
    return _write(dead, letters, [update] * len(letters)).changed


def take_back(dead: Tasks, letters: Sequence[tuple[Any, object]]) -> int:
    """Leave marked letters, each given with its token, as they were before; return how many."""
    return _write(dead, letters, [{"$unset": _UNMARKED}] * len(letters)).changed


def life_of(raw: RawBSONDocument) -> bytes:
    """Return what tells a life of a task from others under the same id: when it was enqueued, which a redrive keeps."""
    return id_bytes(opened(raw).get("created_at"))


def _write(dead: Tasks, letters: Sequence[tuple[Any, object]], updates: Sequence[Mapping[str, Any]]) -> Written:
    return write_each(
        dead,
        [
            UpdateOne(
                {"_id": {"$eq": letter_id}, "redriven_at": None, "redrive_token": {"$eq": token}},
                update,
                hint=indexes.BY_ID,
            )
            for (letter_id, token), update in zip(letters, updates, strict=True)
        ],
    )
