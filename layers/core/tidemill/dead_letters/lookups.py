"""The dead letters of one task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.dead_letters.brief import BRIEF, brief_letter
from tidemill.dead_letters.values import Letter, LetterId, exact_id, id_of, read_letter
from tidemill.documents import DEAD_LETTERS, decode, read
from tidemill.model import Malformed, Task, TaskId
from tidemill.store import Tasks, translated
from tidemill.store.lookups import came_from


def latest(dead: Tasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the newest open dead letter of a task, under the task's own id; with *source*, of one from there.

    One that has gone back tells nothing of its task any more: that may have been done since, and be forgotten.
    """
    with translated(DEAD_LETTERS):
        where = {"_id": of_task(task_id), "redriven_at": None} | came_from(source)
        raw = dead.find_one(where, sort=[("_id", -1)], hint=indexes.BY_ID)
    if raw is None:
        return None
    return read(RawBSONDocument(bson.encode({**decode(raw), "_id": task_id})))


def of_task(task_id: TaskId) -> dict[str, Any]:
    """Return the range of ids that the dead letters of a task have."""
    return {"$gte": {"task": task_id, "redrives": MinKey()}, "$lte": {"task": task_id, "redrives": MaxKey()}}


def letter(dead: Tasks, letter_id: LetterId) -> Letter | None:
    """Return one letter, or ``None`` where there is none of this id."""
    with translated(DEAD_LETTERS):
        raw = dead.find_one({"_id": {"$eq": letter_id.document()}}, hint=indexes.BY_ID)
    return None if raw is None else replace(read_letter(raw), id=letter_id)


def numbered(dead: Tasks, task_id: TaskId, redrives: int) -> Letter | None:
    """Return the letter of a task that died after so many redrives; 0 is also one that is stored under its id alone."""
    found = letter(dead, LetterId(task=task_id, redrives=redrives))
    return found if found is not None or redrives else letter(dead, exact_id(task_id))


def deaths(dead: Tasks, task_id: TaskId, *, limit: int) -> tuple[Letter, ...]:
    """Return the newest *limit* letters of a task, as a list has them."""
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": of_task(task_id)}}, {"$sort": {"_id": -1}}, {"$limit": limit}, *BRIEF,
    ]  # fmt: skip
    with translated(DEAD_LETTERS):
        return tuple(brief_letter(raw) for raw in dead.aggregate(stages, hint=indexes.BY_ID))


def newest_open(dead: Tasks, task_id: TaskId) -> LetterId | None:
    """Return the id of the newest letter of a task that has not gone back, or that is stored under its id alone."""
    where = {"_id": of_task(task_id), "redriven_at": None}
    bare = {"_id": {"$eq": task_id}, "redriven_at": None}
    with translated(DEAD_LETTERS):
        raw = dead.find_one(where, {"_id": 1}, sort=[("_id", -1)], hint=indexes.BY_ID)
        if raw is not None:
            return id_of(decode(raw)["_id"])
        return None if dead.find_one(bare, {"_id": 1}, hint=indexes.BY_ID) is None else exact_id(task_id)


def has_fingerprint(dead: Tasks, fingerprint: str) -> bool:
    """Tell whether any letter has this fingerprint, gone back or not."""
    with translated(DEAD_LETTERS):
        return dead.count_documents({"fingerprint": {"$eq": fingerprint}}, hint=indexes.GROUPS, limit=1) > 0
