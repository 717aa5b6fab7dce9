"""Failed tasks on their way to ``tasks_dlq``, and found again there. The bytes of a task survive the move."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, decode, read
from tidemill.fingerprint import fingerprint
from tidemill.model import Malformed, Task, TaskId
from tidemill.store import Tasks, translated

MAX_DOCUMENT: Final = 16 * 1024 * 1024
_DUPLICATE_KEY: Final = 11000


def failed(tasks: Tasks, *, limit: int, but: Sequence[TaskId] = ()) -> list[RawBSONDocument]:
    """Return failed tasks as they are stored, the longest failed first, without those of *but*."""
    where: dict[str, Any] = {"status": "failed", "_id": {"$nin": list(but)}}
    with translated():
        return list(tasks.find(where, hint=indexes.FAILED).sort("finished_at", 1).limit(limit))


def dead_letter(raw: RawBSONDocument, *, now: datetime) -> RawBSONDocument:
    """Return the dead letter of a failed task: its own fields byte for byte behind ours.

    Raises:
        ValueError: The document cannot be taken apart, or there is no room left in it.
    """
    task = decode(raw)
    stored = task.get("error")
    error = stored if isinstance(stored, dict) else {}
    code, message = str(error.get("code", "malformed")), str(error.get("message", ""))
    redrives = task.get("redrives")
    ours = {
        "_id": {"task": task["_id"], "redrives": redrives if isinstance(redrives, int) else 0},
        "dead_lettered_at": now,
        "fingerprint": fingerprint(name=str(task.get("name")), code=code, message=message),
    }
    if "reason" not in task:  # failed by hand, or by nothing that is known
        ours["reason"] = "not_retryable"
    letter = _grafted(ours, bytes(raw.raw), bson.encode({"_id": task["_id"]}))
    if len(letter) > MAX_DOCUMENT:
        raise ValueError("no room for the marks of a dead letter")
    return RawBSONDocument(letter)


def bury(dead: Tasks, letters: Sequence[RawBSONDocument]) -> list[TaskId]:
    """Insert *letters* and return the tasks whose letter is there now, also those that were there before."""
    ids: list[TaskId] = [letter["_id"]["task"] for letter in letters]
    with translated(DEAD_LETTERS):
        try:
            dead.insert_many(letters, ordered=False)
        except BulkWriteError as error:
            wrong = error.details["writeErrors"]
            if not wrong:
                raise
            refused = {one["index"] for one in wrong if one["code"] != _DUPLICATE_KEY}
            return [task_id for index, task_id in enumerate(ids) if index not in refused]
    return ids


def remove(tasks: Tasks, ids: Sequence[TaskId]) -> int:
    """Delete those of *ids* that are still failed; return how many."""
    with translated():
        return tasks.delete_many({"_id": {"$in": list(ids)}, "status": "failed"}).deleted_count


def latest(dead: Tasks, task_id: TaskId) -> Task | Malformed | None:
    """Return the newest dead letter of a task, under the task's own id."""
    of_task = {"$gte": {"task": task_id, "redrives": MinKey()}, "$lte": {"task": task_id, "redrives": MaxKey()}}
    with translated(DEAD_LETTERS):
        raw = dead.find_one({"_id": of_task}, sort=[("_id", -1)])
    if raw is None:
        return None
    return read(RawBSONDocument(bson.encode({**decode(raw), "_id": task_id})))


def _grafted(ours: dict[str, Any], theirs: bytes, their_id: bytes) -> bytes:
    id_element = their_id[4:-1]
    if theirs[4 : 4 + len(id_element)] != id_element:
        raise ValueError("the document does not begin with its id")
    body = bson.encode(ours)[4:-1] + theirs[4 + len(id_element) : -1] + b"\x00"
    return (len(body) + 4).to_bytes(4, "little") + body
