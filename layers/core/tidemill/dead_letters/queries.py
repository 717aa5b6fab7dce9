"""Queries over dead letters: criteria, pages for a list, and the dead letters of one task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.dead_letters.documents import (
    SUMMARY_STAGES,
    DeadLetter,
    DeadLetterId,
    decode_id,
    read_dead_letter,
    read_key,
    read_summary,
    read_task_of,
)
from tidemill.documents import DEAD_LETTERS, decode, decode_shallow
from tidemill.model import Malformed, Task, TaskId
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.paging import Position, Walk, decode_cursor, encode_cursor, read_page
from tidemill.store.tasks import source_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Criteria that select dead letters. All given criteria must hold; without any, all dead letters match.

    Attributes:
        ids: The dead letter has one of these ids.
        since: It was moved at this time or later.
        until: It was moved before this time.
    """

    ids: tuple[DeadLetterId, ...] = ()
    fingerprint: str | None = None
    name: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def where(self) -> dict[str, Any]:
        """Return the filter that matches the criteria."""
        wanted = {"fingerprint": self.fingerprint, "name": self.name, "queue": self.queue}
        where: dict[str, Any] = {field: {"$eq": value} for field, value in wanted.items() if value is not None}
        bounds = {"$gte": self.since, "$lt": self.until}
        if times := {operator: value for operator, value in bounds.items() if value is not None}:
            where["dead_lettered_at"] = times
        if self.ids:
            where["_id"] = {"$in": [letter_id.document() for letter_id in self.ids]}
        return where


MAX_EXAMINED_KEYS: Final = 5_000
"""Maximum number of dead letters that one walk examines."""

POSITION_KEYS: Final = ("dead_lettered_at", "_id")
"""Fields of the position of a dead letter: the order of the moves."""


def build_walk(
    criteria: DeadLetterFilter,
    *,
    shown: Mapping[str, Any],
    after: Position | None = None,
    up_to: datetime | None = None,
    only: Mapping[str, Any] | None = None,
    newest_first: bool = False,
    max_examined: int = MAX_EXAMINED_KEYS,
) -> Walk:
    """Return the walk along the dead letters that match *criteria*, in the order of their moves.

    Dead letters that are requested by their ids come in the order of the ids.

    Args:
        criteria: Selects the dead letters.
        shown: Projection that keeps ``_id`` and ``dead_lettered_at``.
        after: End of the page before.
        up_to: Dead letters moved later are left out, unless *criteria* has their ids.
        only: Filter that must match, too.
        newest_first: Descending order.
        max_examined: Maximum number of dead letters to examine, unless *criteria* has their ids.
    """
    where = criteria.where() | dict(only or {})
    walk = Walk(
        index=indexes.RECENT,
        keys=POSITION_KEYS,
        position_keys=POSITION_KEYS,
        collection=DEAD_LETTERS,
        where=where,
        shown=shown,
        newest_first=newest_first,
        max_examined=max_examined,
    )
    if criteria.ids:
        bound = {} if after is None else {"$lt" if newest_first else "$gte": after["_id"]}
        by_id = where | {"_id": where["_id"] | bound}
        return replace(walk, index=indexes.BY_ID, keys=("_id",), where=by_id, max_examined=None)
    if criteria.fingerprint is not None:
        keys = ("fingerprint", *POSITION_KEYS, "redriven_at")
        fixed = {"fingerprint": criteria.fingerprint, "redriven_at": MinKey()}
        walk = replace(walk, index=indexes.GROUPS, keys=keys, fixed=fixed)
    lowest = {"dead_lettered_at": MinKey() if criteria.since is None else criteria.since, "_id": MinKey()}
    walk = replace(walk, lowest=lowest, highest=_build_highest(criteria.until, up_to))
    return walk if after is None else walk.start_behind(after)


def _build_highest(until: datetime | None, up_to: datetime | None) -> Position:
    if until is not None and (up_to is None or until <= up_to):
        return {"dead_lettered_at": until, "_id": MinKey()}
    return {"dead_lettered_at": MaxKey() if up_to is None else up_to, "_id": MaxKey(), "redriven_at": MaxKey()}


PAGE_TIMEOUT_SEC: Final = 0.5
"""Maximum time for one page that has found nothing yet: its caller waits."""

MAX_WALKS: Final = 10
"""Maximum number of walks for one page that has found nothing yet."""

_REDRIVEN_FILTERS: Final[dict[bool | None, dict[str, Any]]] = {
    False: {"redriven_at": None},
    True: {"redriven_at": {"$ne": None}},
    None: {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Page of a list, without payloads, results and execution logs.

    Attributes:
        letters: Fewer than requested, or none, even if `next` has a value.
        next: Cursor of the following page; ``None`` after the last page.
    """

    letters: tuple[DeadLetter, ...]
    next: str | None


def list_dead_letters(
    dead: Tasks,
    criteria: DeadLetterFilter,
    *,
    redriven: bool | None = False,
    limit: int,
    after: str | None = None,
    max_examined: int = MAX_EXAMINED_KEYS,
    monotonic: Callable[[], float] = time.monotonic,
) -> DeadLetterPage:
    """Return up to *limit* dead letters that match *criteria*, from the cursor *after* on, the newest first.

    *redriven* is ``False`` for open dead letters, ``True`` for redriven ones, ``None`` for both.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    walk = build_walk(
        criteria,
        shown={"dead_lettered_at": 1},
        after=None if after is None else decode_cursor(after, *POSITION_KEYS),
        only=_REDRIVEN_FILTERS[redriven],
        newest_first=True,
        max_examined=max_examined,
    )
    until = monotonic() + PAGE_TIMEOUT_SEC
    page = read_page(dead, walk, limit=limit, max_walks=MAX_WALKS, until=until, monotonic=monotonic)
    following = None if page.behind is None else encode_cursor(page.behind)
    return DeadLetterPage(letters=_read_letters(dead, page.found), next=following)


def _read_letters(dead: Tasks, found: Sequence[RawBSONDocument]) -> tuple[DeadLetter, ...]:
    """Return those of *found* that still exist, in the same order."""
    if not found:
        return ()
    ids = [decode_shallow(raw)["_id"] for raw in found]
    stages: list[dict[str, Any]] = [{"$match": {"_id": {"$in": ids}}}, *SUMMARY_STAGES]
    with translate_errors(DEAD_LETTERS):
        documents = {read_key(raw): raw for raw in dead.aggregate(stages, hint=indexes.BY_ID, batchSize=len(ids) + 1)}
    return tuple(read_summary(documents[key]) for key in map(read_key, found) if key in documents)


def find_latest(dead: Tasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the newest open dead letter of a task, under the task's own id; with *source*, only from that source.

    A redriven dead letter says nothing about its task: the task may be done and removed since.
    """
    with translate_errors(DEAD_LETTERS):
        where = {"_id": match_task(task_id), "redriven_at": None} | source_filter(source)
        raw = dead.find_one(where, sort=[("_id", -1)], hint=indexes.BY_ID)
    if raw is None:
        return None
    return read_task_of(decode(raw), task_id)


def match_task(task_id: TaskId) -> dict[str, Any]:
    """Return the range of ids of a task's dead letters."""
    return {"$gte": {"task": task_id, "redrives": MinKey()}, "$lte": {"task": task_id, "redrives": MaxKey()}}


def find_dead_letter(dead: Tasks, letter_id: DeadLetterId) -> DeadLetter | None:
    """Return the dead letter with this id, or ``None``."""
    with translate_errors(DEAD_LETTERS):
        raw = dead.find_one({"_id": {"$eq": letter_id.document()}}, hint=indexes.BY_ID)
    return None if raw is None else replace(read_dead_letter(raw), id=letter_id)


def find_by_redrives(dead: Tasks, task_id: TaskId, redrives: int) -> DeadLetter | None:
    """Return a task's dead letter by its number of redrives.

    The dead letter of number 0 may be stored under the bare id of its task.
    """
    found = find_dead_letter(dead, DeadLetterId(task=task_id, redrives=redrives))
    return found if found is not None or redrives else find_dead_letter(dead, decode_id(task_id))


def find_of_task(dead: Tasks, task_id: TaskId, *, limit: int) -> tuple[DeadLetter, ...]:
    """Return the newest *limit* dead letters of a task, as in a list."""
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": match_task(task_id)}}, {"$sort": {"_id": -1}}, {"$limit": limit}, *SUMMARY_STAGES,
    ]  # fmt: skip
    with translate_errors(DEAD_LETTERS):
        return tuple(read_summary(raw) for raw in dead.aggregate(stages, hint=indexes.BY_ID))


def find_newest_open(dead: Tasks, task_id: TaskId) -> DeadLetterId | None:
    """Return the id of the task's newest open dead letter, or of the open one stored under the bare task id."""
    where = {"_id": match_task(task_id), "redriven_at": None}
    bare = {"_id": {"$eq": task_id}, "redriven_at": None}
    with translate_errors(DEAD_LETTERS):
        raw = dead.find_one(where, {"_id": 1}, sort=[("_id", -1)], hint=indexes.BY_ID)
        if raw is not None:
            return decode_id(decode(raw)["_id"])
        return None if dead.find_one(bare, {"_id": 1}, hint=indexes.BY_ID) is None else decode_id(task_id)
