"""Dead letters that match criteria: walk along them, list them page by page, purge them."""

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
from tidemill.dead_letters.documents import SUMMARY_STAGES, DeadLetter, DeadLetterId, read_key, read_summary
from tidemill.documents import DEAD_LETTERS, decode_shallow
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.paging import (
    Position,
    Walk,
    build_cursor_error,
    decode_cursor,
    encode_cursor,
    read_page,
)


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
    """Return the walk behind *after* along the dead letters that match *criteria* and the filter *only*.

    They come in the order of their moves, or of their ids if *criteria* has ids. Without ids, dead letters that were
    moved later than *up_to* are left out, and at most *max_examined* are examined. The projection *shown* keeps ``_id``
    and ``dead_lettered_at``.
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


def read_cursor(cursor: str, **types: type) -> tuple[Position, dict[str, Any]]:
    """Return the position that *cursor* holds, and its other values by name, each of the given type.

    Raises:
        InvalidRequestError: *cursor* is not a cursor with these values.
    """
    position = decode_cursor(cursor, *POSITION_KEYS, *types)
    values = {name: position.pop(name) for name in types}
    if not all(isinstance(values[name], kind) for name, kind in types.items()):
        raise build_cursor_error()
    return position, values


PURGE_BATCH_SIZE: Final = 1_000
_PURGE_PROJECTION: Final = {"dead_lettered_at": 1, "archived_at": 1, "redrive_started_at": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """Result of a purge, or of a dry run.

    Attributes:
        unexported: Purged dead letters that had not been exported.
        in_progress: Dead letters that were kept because their redrive is in progress.
        next: Cursor for the next call; ``None`` after the last dead letter.
    """

    examined: int = 0
    purged: int = 0
    unexported: int = 0
    in_progress: int = 0
    next: str | None = None


def purge(
    dead: Tasks,
    criteria: DeadLetterFilter,
    *,
    limit: int,
    dry_run: bool,
    after: str | None = None,
    now: datetime,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> PurgeResult:
    """Delete dead letters, redriven ones too, until *limit* are deleted, *until* (monotonic) is past, or none is left.

    Dead letters that are inserted after *now* of the first call are not deleted. A dead letter whose redrive is in
    progress may be the only copy of its task, and is kept. The purge is safe to stop anywhere. With *dry_run*
    nothing is deleted, and the expected counts are returned.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    position, progress = (None, {"up_to": now}) if after is None else read_cursor(after, up_to=datetime)
    examined = purged = unexported = in_progress = 0
    while purged < limit:
        walk = build_walk(criteria, shown=_PURGE_PROJECTION, after=position, up_to=progress["up_to"])
        page = read_page(dead, walk, limit=min(limit - purged, PURGE_BATCH_SIZE))
        letters = [decode_shallow(raw) for raw in page.found]
        free = [letter for letter in letters if letter.get("redrive_started_at") is None]
        gone = len(free) if dry_run else _delete(dead, [letter["_id"] for letter in free])
        examined, purged = examined + len(letters), purged + gone
        in_progress += len(letters) - len(free)
        unexported += sum(letter.get("archived_at") is None for letter in free)
        position = page.behind
        if position is None or monotonic() >= until:
            break
    return PurgeResult(
        examined=examined,
        purged=purged,
        unexported=unexported,
        in_progress=in_progress,
        next=None if position is None else encode_cursor({**position, **progress}),
    )


def _delete(dead: Tasks, ids: Sequence[Any]) -> int:
    if not ids:
        return 0
    with translate_errors(DEAD_LETTERS):
        return dead.delete_many(
            {"_id": {"$in": list(ids)}, "redrive_started_at": None}, hint=indexes.BY_ID
        ).deleted_count
