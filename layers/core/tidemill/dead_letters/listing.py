"""Pages of dead letters, the newest death first, at a bounded cost and in a bounded size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.dead_letters import pages
from tidemill.dead_letters.brief import BRIEF, brief_letter
from tidemill.dead_letters.places import place_in, place_of, sealed, unsealed
from tidemill.dead_letters.values import Letter, id_bytes
from tidemill.dead_letters.which import Which
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated

LONG_SEC: Final = 0.5
LONG_WALK: Final = 10
"""A page that has found nothing yet goes on for so long, or so many walks: somebody waits for its answer."""

_PLACE: Final = {"dead_lettered_at": 1}
_HAS_GONE_BACK: Final[dict[bool | None, dict[str, Any]]] = {
    False: {"redriven_at": None},
    True: {"redriven_at": {"$ne": None}},
    None: {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterPage:
    """A part of a listing: payloads, results and execution logs are left out.

    Attributes:
        letters: May be fewer than were asked for, or none, although `next` says that there are more.
        next: The cursor of the page that follows; ``None`` after the last.
    """

    letters: tuple[Letter, ...]
    next: str | None


def listing(
    dead: Tasks,
    which: Which,
    *,
    redriven: bool | None = False,
    limit: int,
    after: str | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> LetterPage:
    """Return up to *limit* of the letters that are meant, from the cursor *after* on.

    Those that are open; or *redriven*, those that have gone back; or ``None``, both. What dies between two pages is
    on neither; what is there all the time is on exactly one.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    until = monotonic() + LONG_SEC
    behind = None if after is None else place_in(unsealed(after))
    found: tuple[RawBSONDocument, ...] = ()
    for _ in range(LONG_WALK):
        page = pages.page(
            dead, which, limit=limit, shown=_PLACE, after=behind, only=_HAS_GONE_BACK[redriven], newest_first=True
        )
        found, behind = page.letters, page.behind
        if found or behind is None or monotonic() >= until:
            break
    following = None if behind is None else sealed(behind.document())
    return LetterPage(letters=_shown(dead, found), next=following)


def _shown(dead: Tasks, found: Sequence[RawBSONDocument]) -> tuple[Letter, ...]:
    """Return those of *found* that are still there, in the same order."""
    if not found:
        return ()
    ids = [place_of(raw).id for raw in found]
    stages: list[dict[str, Any]] = [{"$match": {"_id": {"$in": ids}}}, *BRIEF]
    with translated(DEAD_LETTERS):
        read = {_key(raw): raw for raw in dead.aggregate(stages, hint=indexes.BY_ID, batchSize=len(ids) + 1)}
    return tuple(brief_letter(read[key]) for key in map(_key, found) if key in read)


def _key(raw: RawBSONDocument) -> bytes:
    return id_bytes(opened(raw)["_id"])
