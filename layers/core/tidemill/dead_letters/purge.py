"""Purge: delete dead letters page by page, the oldest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tidemill import indexes
from tidemill.dead_letters.queries import POSITION_KEYS, DeadLetterFilter, build_walk
from tidemill.documents import DEAD_LETTERS, decode_shallow
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.paging import Position, build_cursor_error, decode_cursor, encode_cursor, read_page

BATCH_SIZE: Final = 1_000
_PROJECTION: Final = {"dead_lettered_at": 1, "archived_at": 1, "redrive_started_at": 1}


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
    position, up_to = (None, now) if after is None else _read_cursor(after)
    examined = purged = unexported = in_progress = 0
    while purged < limit:
        walk = build_walk(criteria, shown=_PROJECTION, after=position, up_to=up_to)
        page = read_page(dead, walk, limit=min(limit - purged, BATCH_SIZE))
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
        next=None if position is None else encode_cursor({**position, "up_to": up_to}),
    )


def _delete(dead: Tasks, ids: Sequence[Any]) -> int:
    if not ids:
        return 0
    with translate_errors(DEAD_LETTERS):
        return dead.delete_many(
            {"_id": {"$in": list(ids)}, "redrive_started_at": None}, hint=indexes.BY_ID
        ).deleted_count


def _read_cursor(cursor: str) -> tuple[Position, datetime]:
    state = decode_cursor(cursor, *POSITION_KEYS, "up_to")
    up_to = state.pop("up_to")
    if not isinstance(up_to, datetime):
        raise build_cursor_error()
    return state, up_to
