"""Reads and writes of a redrive: one function for each MongoDB operation.

A dead letter whose redrive is in progress bears marks. The marks have a token, and every write that relies on them
names the token in its filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne

from tidemill import indexes
from tidemill.dead_letters.documents import (
    ARCHIVE_ATTEMPT_FIELDS,
    MARK_FIELDS,
    REDRIVE_MARK_FIELDS,
    read_key,
    read_redrives,
)
from tidemill.dead_letters.redrive_checks import (
    INTERRUPTED_AFTER,
    Candidate,
    ExistingTask,
    LiveState,
    Redrivable,
    read_life,
)
from tidemill.documents import DEAD_LETTERS, decode, decode_shallow, id_key, is_text
from tidemill.model import TaskId
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.paging import byte_batches
from tidemill.store.writes import WriteCounts, write_each

_UNSET_MARKS: Final = dict.fromkeys(REDRIVE_MARK_FIELDS, "")

CANDIDATE_PROJECTION: Final[dict[str, Any]] = {
    **dict.fromkeys(("dead_lettered_at", "created_at", *REDRIVE_MARK_FIELDS), 1),
    "size": {"$bsonSize": "$$ROOT"},
}
"""Projection of a dead letter before its body is read with `read_bodies`."""

RESET_FIELDS: Final = (
    "status", "lane", "due_at", "next_retry_at", "attempts", "updated_at", "finished_at", "error", "attempt_log",
    "redrives", "result",
)  # fmt: skip
"""Fields of a redriven task that get new values."""

_DROPPED_FIELDS: Final = (
    *MARK_FIELDS, "reason", "lease", "settled_by", "cancel_requested_at", "released_key", *ARCHIVE_ATTEMPT_FIELDS,
)  # fmt: skip


def find_interrupted(dead: Tasks, *, now: datetime, limit: int) -> Iterator[list[RawBSONDocument]]:
    """Yield dead letters whose redrive was interrupted, in lists of up to *limit*, the earliest start first.

    A start after *now* was recorded by a clock that has been set back since.
    """
    times = ({"$lte": now - INTERRUPTED_AFTER}, {"$gte": now + INTERRUPTED_AFTER})
    where = {"$or": [{"redrive_started_at": {"$type": "date"} | time} for time in times], "redriven_at": None}
    with translate_errors(DEAD_LETTERS):
        found = dead.find(where, CANDIDATE_PROJECTION, hint=indexes.REDRIVES).sort("redrive_started_at")
        yield from byte_batches(found.batch_size(limit), most=limit)


def read_bodies(
    dead: Tasks, letters: Sequence[Candidate], *, without: Iterable[str] = ()
) -> dict[bytes, RawBSONDocument]:
    """Return the parts of *letters* that their tasks keep, byte for byte, by key; without the fields in *without*."""
    projection = dict.fromkeys([*RESET_FIELDS, *_DROPPED_FIELDS, *without], 0)
    where = {"_id": {"$in": [letter.raw_id for letter in letters]}}
    with translate_errors(DEAD_LETTERS):
        found = dead.find(where, projection, hint=indexes.BY_ID).batch_size(len(letters) + 1)
        return {read_key(raw): raw for raw in found}


def read_live_state(
    tasks: Tasks, dead: Tasks, letters: Sequence[Candidate], bodies: Iterable[RawBSONDocument], *, known: LiveState
) -> LiveState:
    """Return *known* with the present state that concerns *letters*."""
    usable = [letter for letter in letters if letter.can_be_redriven()]
    interrupted = [(letter.task_id, letter.id.redrives) for letter in usable if letter.is_started]
    keys = [key for key in (decode_shallow(body).get("idempotency_key") for body in bodies) if is_text(key) and key]
    return replace(
        known,
        tasks={**known.tasks, **find_existing(tasks, [letter.task_id for letter in usable])},
        key_owners={**known.key_owners, **find_key_owners(tasks, keys)},
        later_failures=known.later_failures | find_later_failures(dead, interrupted),
    )


def find_existing(tasks: Tasks, ids: Sequence[TaskId]) -> dict[bytes, ExistingTask]:
    """Return the tasks among *ids* that exist, by id. No id may be a regular expression."""
    projection = {"redrives": 1, "status": 1, "created_at": 1}
    with translate_errors():
        found = list(tasks.find({"_id": {"$in": list(ids)}}, projection, hint=indexes.BY_ID, batch_size=len(ids) + 1))
    return {read_key(raw): _read_existing(raw) for raw in found}


def _read_existing(raw: RawBSONDocument) -> ExistingTask:
    task = decode(raw)
    status = str(task.get("status"))
    return ExistingTask(id=task["_id"], life=read_life(raw), redrives=read_redrives(task), status=status)


def find_key_owners(tasks: Tasks, keys: Sequence[str]) -> dict[str, TaskId]:
    """Return the task that has each of the idempotency *keys*, without keys that no task has."""
    if not keys:
        return {}
    where = {"idempotency_key": {"$gt": "", "$in": list(keys)}}
    with translate_errors():
        found = tasks.find(where, {"idempotency_key": 1}, hint=indexes.KEY, batch_size=len(keys) + 1)
        return {task["idempotency_key"]: task["_id"] for task in map(decode, found)}


def find_later_failures(dead: Tasks, letters: Sequence[tuple[TaskId, int]]) -> set[tuple[bytes, bytes]]:
    """Return ids and lives of the tasks in *letters* that failed again, with a higher number of redrives."""
    if not letters:
        return set()
    ranges = [
        {"_id": {"$gt": {"task": task, "redrives": redrives}, "$lte": {"task": task, "redrives": MaxKey()}}}
        for task, redrives in letters
    ]
    with translate_errors(DEAD_LETTERS):
        found = dead.find({"$or": ranges}, {"created_at": 1}, hint=indexes.BY_ID)
        return {(id_key(decode_shallow(decode_shallow(raw)["_id"])["task"]), read_life(raw)) for raw in found}


def mark(dead: Tasks, redrivable: Sequence[Redrivable], *, token: str, now: datetime) -> WriteCounts:
    """Mark open dead letters that still bear the token they were read with."""
    updates = [
        {
            "$set": {
                "redrive_started_at": now,
                "redrive_due_at": ready.task.due_at,
                "redrive_token": token,
                "redrive_drops_expiry": ready.drops_expiry,
            }
        }
        for ready in redrivable
    ]
    return _write_guarded(dead, [ready.letter for ready in redrivable], updates)


def find_open_tokens(dead: Tasks, letters: Sequence[Candidate]) -> dict[bytes, object]:
    """Return the tokens that those of *letters* have now that are open, by key."""
    where = {"_id": {"$in": [letter.raw_id for letter in letters]}, "redriven_at": None}
    with translate_errors(DEAD_LETTERS):
        found = dead.find(where, {"redrive_token": 1}, hint=indexes.BY_ID, batch_size=len(letters) + 1)
        return {read_key(raw): decode(raw).get("redrive_token") for raw in found}


def close(dead: Tasks, letters: Sequence[Candidate], *, now: datetime) -> int:
    """Record that the tasks of marked dead letters exist again, and return the count."""
    update = {"$set": {"redriven_at": now}, "$unset": _UNSET_MARKS}
    return _write_guarded(dead, letters, [update] * len(letters)).changed


def remove_marks(dead: Tasks, letters: Sequence[Candidate]) -> None:
    """Remove the marks of dead letters."""
    _write_guarded(dead, letters, [{"$unset": _UNSET_MARKS}] * len(letters))


def _write_guarded(dead: Tasks, letters: Sequence[Candidate], updates: Sequence[Mapping[str, Any]]) -> WriteCounts:
    """Write to each of *letters* its update, if it is open and bears the token that its candidate has."""
    writes = []
    for letter, update in zip(letters, updates, strict=True):
        where = {"_id": {"$eq": letter.raw_id}, "redriven_at": None, "redrive_token": {"$eq": letter.token}}
        writes.append(UpdateOne(where, update, hint=indexes.BY_ID))
    return write_each(dead, writes)
