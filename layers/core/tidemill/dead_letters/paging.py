"""Pages of dead letters in the order of their moves, at a bounded cost.

A page reads an index from one position to another. It examines a bounded number of keys, even if few of them match.
Dead letters that are requested by their ids come in the order of the ids.

Also the criteria that select dead letters, the text form of cursors, and batches bounded in bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import bson
from bson import MaxKey, MinKey
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING
from pymongo.cursor import Cursor
from pymongo.errors import OperationFailure

from tidemill import indexes
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.documents import DEAD_LETTERS, decode_shallow
from tidemill.errors import InvalidRequestError, Problem
from tidemill.store.connection import Tasks, translate_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a dead letter in the order: the time of its move, and its id, as they are stored."""

    dead_lettered_at: Any
    id: Any

    def document(self) -> dict[str, Any]:
        """Return the position as a cursor holds it."""
        return {"dead_lettered_at": self.dead_lettered_at, "_id": self.id}


def read_position(raw: RawBSONDocument) -> Position:
    """Return the position of a dead letter. *raw* needs no more fields than these two."""
    letter = decode_shallow(raw)
    at = letter.get("dead_lettered_at")
    # An index holds the elements of an array. A bound that is a whole array would repeat every key, or none.
    return Position(dead_lettered_at=at[-1] if isinstance(at, list) and at else at, id=letter["_id"])


def encode_cursor(state: Mapping[str, Any]) -> str:
    """Return *state* as the text of a cursor."""
    return base64.urlsafe_b64encode(bson.encode(state)).decode().rstrip("=")


def decode_cursor(cursor: str) -> RawBSONDocument:
    """Return the state that *cursor* holds.

    Raises:
        InvalidRequestError: *cursor* is not the text of a cursor.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        state = decode_shallow(RawBSONDocument(raw))
        list(state)
    except (BSONError, ValueError, IndexError):
        raise build_cursor_error() from None
    return state


def decode_position(state: RawBSONDocument) -> Position:
    """Return the position in the *state* of a cursor.

    Raises:
        InvalidRequestError: The state has no position.
    """
    if not {"dead_lettered_at", "_id"} <= state.keys():
        raise build_cursor_error()
    return Position(dead_lettered_at=state["dead_lettered_at"], id=state["_id"])


def build_cursor_error() -> InvalidRequestError:
    """Return the error for an invalid cursor."""
    return InvalidRequestError([Problem("cursor", "invalid; pass the `next` value of the previous page")])


MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the documents held in memory at once. A single document may have as many bytes."""


def byte_batches(found: Iterable[RawBSONDocument], *, most: int) -> Iterator[list[RawBSONDocument]]:
    """Yield documents in lists of *most*, or of fewer if they are large."""
    batch: list[RawBSONDocument] = []
    size = 0
    for raw in found:
        batch.append(raw)
        size += len(raw.raw)
        if len(batch) == most or size >= MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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

    def hint(self) -> str:
        """Return the index that serves the criteria."""
        if self.ids:
            return indexes.BY_ID
        return indexes.RECENT if self.fingerprint is None else indexes.GROUPS


MAX_EXAMINED_KEYS: Final = 5_000
"""Maximum number of dead letters that one page examines."""

_POSITION_FIELDS: Final = {"dead_lettered_at": 1, "_id": 1}
_EMPTY_BOUNDS_CODE: Final = 51175
"""Error code of the server for bounds with nothing between them."""

_Bound: TypeAlias = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Page of dead letters.

    Attributes:
        letters: Fewer than requested, or none, even if more dead letters follow.
        behind: Start of the next page; ``None`` after the last one.
    """

    letters: tuple[RawBSONDocument, ...]
    behind: Position | None


def read_page(
    dead: Tasks,
    criteria: DeadLetterFilter,
    *,
    limit: int,
    shown: Mapping[str, Any],
    after: Position | None = None,
    up_to: datetime | None = None,
    only: Mapping[str, Any] | None = None,
    newest_first: bool = False,
    max_examined: int = MAX_EXAMINED_KEYS,
) -> Page:
    """Return up to *limit* of the dead letters that match *criteria*.

    A dead letter that is inserted between two pages may be on neither. A dead letter that exists throughout is on
    exactly one.

    Args:
        dead: The dead letters.
        criteria: Selects the dead letters.
        limit: Maximum number of dead letters on the page.
        shown: Projection that keeps ``_id`` and ``dead_lettered_at``.
        after: ``behind`` of the page before.
        up_to: Dead letters moved later are left out, unless *criteria* has their ids.
        only: Filter that must match, too.
        newest_first: Descending order.
        max_examined: Maximum number of dead letters to examine, unless *criteria* has their ids.
    """
    where = criteria.where() | dict(only or {})
    if criteria.ids:
        return _read_page_of_ids(dead, where, limit=limit, shown=shown, after=after, newest_first=newest_first)
    walk = _Walk(criteria=criteria, after=after, up_to=up_to, newest_first=newest_first, max_examined=max_examined)
    with translate_errors(DEAD_LETTERS):
        try:
            end = walk.find_end(dead)
            found = list(walk.find_along(dead, where, shown, end=end).limit(limit + 1).batch_size(limit + 2))
        except OperationFailure as error:
            if error.code != _EMPTY_BOUNDS_CODE:
                raise
            return Page(letters=(), behind=None)
    return _limit_page(found, limit=limit, newest_first=newest_first, end=end)


def _read_page_of_ids(
    dead: Tasks,
    where: Mapping[str, Any],
    *,
    limit: int,
    shown: Mapping[str, Any],
    after: Position | None,
    newest_first: bool,
) -> Page:
    direction, bound = (DESCENDING, "$lt") if newest_first else (ASCENDING, "$gte")
    ids = dict(where["_id"]) if after is None else {**where["_id"], bound: after.id}
    with translate_errors(DEAD_LETTERS):
        found = dead.find({**where, "_id": ids}, shown, hint=indexes.BY_ID).sort("_id", direction)
        letters = list(found.limit(limit + 1).batch_size(limit + 2))
    return _limit_page(letters, limit=limit, newest_first=newest_first, end=None)


def _limit_page(found: Sequence[RawBSONDocument], *, limit: int, newest_first: bool, end: Position | None) -> Page:
    if len(found) <= limit:
        return Page(letters=tuple(found), behind=end)
    return Page(letters=tuple(found[:limit]), behind=read_position(found[limit - 1 if newest_first else limit]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """Read of one stretch of an index.

    Its bounds compare values of all types, while a filter compares only values of equal types. The lower bound is
    inclusive and the upper bound is exclusive: an ascending walk starts at *after*, and a descending one below it.
    """

    criteria: DeadLetterFilter
    after: Position | None
    up_to: datetime | None
    newest_first: bool
    max_examined: int

    def find_end(self, dead: Tasks) -> Position | None:
        """Return the position where the walk must stop, or ``None`` if it can reach the last bound.

        The cost is one index key a step.
        """
        steps = self.max_examined - 1 if self.newest_first else self.max_examined
        found = next(iter(self.find_along(dead, {}, _POSITION_FIELDS, end=None).skip(steps).limit(1)), None)
        return None if found is None else read_position(found)

    def find_along(
        self, dead: Tasks, where: Mapping[str, Any], shown: Mapping[str, Any], *, end: Position | None
    ) -> Cursor[RawBSONDocument]:
        first = (
            self._build_lowest_bound() if self.after is None or self.newest_first else self._build_bound_at(self.after)
        )
        last = (
            self._build_highest_bound()
            if self.after is None or not self.newest_first
            else self._build_bound_at(self.after)
        )
        if end is not None and self.newest_first:
            first = self._build_bound_at(end)
        elif end is not None:
            last = self._build_bound_at(end)
        order = [(name, DESCENDING if self.newest_first else ASCENDING) for name, _ in first]
        found: Cursor[RawBSONDocument] = dead.find(where, shown, hint=self.criteria.hint())
        return found.sort(order).min(first).max(last)

    def _build_lowest_bound(self) -> _Bound:
        return self._build_bound(MinKey() if self.criteria.since is None else self.criteria.since, MinKey())

    def _build_highest_bound(self) -> _Bound:
        until, up_to = self.criteria.until, self.up_to
        if until is not None and (up_to is None or until <= up_to):
            return self._build_bound(until, MinKey())
        return self._build_bound(MaxKey() if up_to is None else up_to, MaxKey())

    def _build_bound_at(self, position: Position) -> _Bound:
        return self._build_bound(position.dead_lettered_at, position.id)

    def _build_bound(self, moved_at: Any, letter_id: Any) -> _Bound:  # noqa: ANN401 - of any type
        times = [("dead_lettered_at", moved_at), ("_id", letter_id)]
        if self.criteria.hint() == indexes.RECENT:
            return times
        rest = MaxKey() if isinstance(letter_id, MaxKey) else MinKey()
        return [("fingerprint", self.criteria.fingerprint), *times, ("redriven_at", rest)]
