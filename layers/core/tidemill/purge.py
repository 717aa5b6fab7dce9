"""Delete dead letters page by page, the oldest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tidemill import indexes
from tidemill.dead_letters import pages
from tidemill.dead_letters.places import Place, no_cursor, place_in, sealed, unsealed
from tidemill.dead_letters.which import Which
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated

BATCH: Final = 1_000
_SHOWN: Final = {"dead_lettered_at": 1, "archived_at": 1, "redrive_started_at": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What became of the dead letters that were looked at, or would have become of them.

    Attributes:
        unexported: How many of the purged ones had not been exported.
        under_way: How many were kept, for they are on their way back.
        next: The cursor to go on with; ``None`` where nothing is left.
    """

    looked_at: int = 0
    purged: int = 0
    unexported: int = 0
    under_way: int = 0
    next: str | None = None


def purge(
    dead: Tasks,
    which: Which,
    *,
    limit: int,
    dry_run: bool,
    after: str | None = None,
    now: datetime,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> Purged:
    """Delete letters, redriven ones too, until *limit* are gone, or *until* (monotonic) is past, or none is left.

    What dies after *now* of the first call is not met. One that is on its way back is the only copy and is kept.
    Safe to stop anywhere. With *dry_run* nothing is deleted, and what would have become of them is returned.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    place, up_to = (None, now) if after is None else _read(after)
    looked_at = purged = unexported = under_way = 0
    while purged < limit:
        page = pages.page(dead, which, limit=min(limit - purged, BATCH), shown=_SHOWN, after=place, up_to=up_to)
        letters = [opened(raw) for raw in page.letters]
        free = [one for one in letters if one.get("redrive_started_at") is None]
        gone = len(free) if dry_run else _delete(dead, [one["_id"] for one in free])
        looked_at, purged = looked_at + len(letters), purged + gone
        under_way += len(letters) - len(free)
        unexported += sum(one.get("archived_at") is None for one in free)
        place = page.behind
        if place is None or monotonic() >= until:
            break
    return Purged(
        looked_at=looked_at,
        purged=purged,
        unexported=unexported,
        under_way=under_way,
        next=None if place is None else sealed(place.document() | {"up_to": up_to}),
    )


def _delete(dead: Tasks, ids: Sequence[Any]) -> int:
    if not ids:
        return 0
    with translated(DEAD_LETTERS):
        return dead.delete_many(
            {"_id": {"$in": list(ids)}, "redrive_started_at": None}, hint=indexes.BY_ID
        ).deleted_count


def _read(cursor: str) -> tuple[Place, datetime]:
    state = unsealed(cursor)
    up_to = state.get("up_to")
    if not isinstance(up_to, datetime):
        raise no_cursor()
    return place_in(state), up_to
