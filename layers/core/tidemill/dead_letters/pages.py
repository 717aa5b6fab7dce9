"""Pages of dead letters in the order of their deaths, at a bounded cost.

A page is a walk along an index from one place to another, over no more than so many keys, however few of the dead
letters there are meant. Those that are asked for by their ids come in the order of the ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from bson import MaxKey, MinKey
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING
from pymongo.cursor import Cursor
from pymongo.errors import OperationFailure

from tidemill import indexes
from tidemill.dead_letters.places import Place, place_of
from tidemill.dead_letters.which import Which
from tidemill.documents import DEAD_LETTERS
from tidemill.store import Tasks, translated

WALK: Final = 5_000
"""So many dead letters are examined at a time."""

_PLACE: Final = {"dead_lettered_at": 1, "_id": 1}
_NOTHING_BETWEEN: Final = 51175
"""The server's code for bounds that hold nothing between them."""

_Bound: TypeAlias = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of the dead letters.

    Attributes:
        letters: May be fewer than were asked for, or none, although there are more.
        behind: What the next page comes after; ``None`` where this is the last one.
    """

    letters: tuple[RawBSONDocument, ...]
    behind: Place | None


def page(
    dead: Tasks,
    which: Which,
    *,
    limit: int,
    shown: Mapping[str, Any],
    after: Place | None = None,
    up_to: datetime | None = None,
    only: Mapping[str, Any] | None = None,
    newest_first: bool = False,
) -> Page:
    """Return up to *limit* of the dead letters that are meant.

    *shown* is a projection that keeps ``_id`` and ``dead_lettered_at``, *after* the ``behind`` of the page before,
    *only* a filter that has to match besides. What was moved later than *up_to* is left out, unless it is asked for
    by its id. What is moved between two pages may be on neither; what is there all the time is on exactly one.
    """
    where = which.where() | dict(only or {})
    if which.ids:
        return _named(dead, where, limit=limit, shown=shown, after=after, newest_first=newest_first)
    walk = _Walk(which=which, after=after, up_to=up_to, newest_first=newest_first)
    with translated(DEAD_LETTERS):
        try:
            end = walk.end(dead)
            found = list(walk.along(dead, where, shown, end=end).limit(limit + 1).batch_size(limit + 2))
        except OperationFailure as error:
            if error.code != _NOTHING_BETWEEN:
                raise
            return Page(letters=(), behind=None)
    return _cut(found, limit=limit, newest_first=newest_first, end=end)


def _named(
    dead: Tasks,
    where: Mapping[str, Any],
    *,
    limit: int,
    shown: Mapping[str, Any],
    after: Place | None,
    newest_first: bool,
) -> Page:
    direction, bound = (DESCENDING, "$lt") if newest_first else (ASCENDING, "$gte")
    ids = dict(where["_id"]) if after is None else {**where["_id"], bound: after.id}
    with translated(DEAD_LETTERS):
        found = dead.find({**where, "_id": ids}, shown, hint=indexes.BY_ID).sort("_id", direction)
        letters = list(found.limit(limit + 1).batch_size(limit + 2))
    return _cut(letters, limit=limit, newest_first=newest_first, end=None)


def _cut(found: Sequence[RawBSONDocument], *, limit: int, newest_first: bool, end: Place | None) -> Page:
    if len(found) <= limit:
        return Page(letters=tuple(found), behind=end)
    return Page(letters=tuple(found[:limit]), behind=place_of(found[limit - 1 if newest_first else limit]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """A way along an index, whose bounds compare values of all types; a filter sees only those of its own.

    The lower bound is part of the way and the upper one is not, so *after* is where an ascending walk begins, and
    what a descending one leaves behind.
    """

    which: Which
    after: Place | None
    up_to: datetime | None
    newest_first: bool

    def end(self, dead: Tasks) -> Place | None:
        """Return where the walk ends for now, or ``None`` where it comes to its goal: one index key a step."""
        steps = WALK - 1 if self.newest_first else WALK
        found = next(iter(self.along(dead, {}, _PLACE, end=None).skip(steps).limit(1)), None)
        return None if found is None else place_of(found)

    def along(
        self, dead: Tasks, where: Mapping[str, Any], shown: Mapping[str, Any], *, end: Place | None
    ) -> Cursor[RawBSONDocument]:
        first = self._lowest() if self.after is None or self.newest_first else self._at(self.after)
        last = self._highest() if self.after is None or not self.newest_first else self._at(self.after)
        if end is not None and self.newest_first:
            first = self._at(end)
        elif end is not None:
            last = self._at(end)
        order = [(name, DESCENDING if self.newest_first else ASCENDING) for name, _ in first]
        found: Cursor[RawBSONDocument] = dead.find(where, shown, hint=self.which.hint())
        return found.sort(order).min(first).max(last)

    def _lowest(self) -> _Bound:
        return self._bound(MinKey() if self.which.since is None else self.which.since, MinKey())

    def _highest(self) -> _Bound:
        until, up_to = self.which.until, self.up_to
        if until is not None and (up_to is None or until <= up_to):
            return self._bound(until, MinKey())
        return self._bound(MaxKey() if up_to is None else up_to, MaxKey())

    def _at(self, place: Place) -> _Bound:
        return self._bound(place.dead_lettered_at, place.id)

    def _bound(self, moved_at: Any, letter_id: Any) -> _Bound:  # noqa: ANN401 - of any type
        times = [("dead_lettered_at", moved_at), ("_id", letter_id)]
        if self.which.hint() == indexes.RECENT:
            return times
        rest = MaxKey() if isinstance(letter_id, MaxKey) else MinKey()
        return [("fingerprint", self.which.fingerprint), *times, ("redriven_at", rest)]
