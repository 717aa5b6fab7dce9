"""Pages of tasks and of dead letters in the order of an index, at a bounded cost; their cursors; batches of documents.

A page walks along an index from one position to another. It examines a bounded number of keys, even if few of them
match. The cursor of a page holds the position behind it.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING
from pymongo.cursor import Cursor
from pymongo.errors import OperationFailure

from tidemill.documents import TASKS, decode_shallow, encode_fields
from tidemill.errors import InvalidRequestError, Problem
from tidemill.store.connection import Tasks, translate_errors

Position: TypeAlias = Mapping[str, Any]
"""Place of a document in the order of an index: the values of its keys, by name."""

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the documents held in memory at once. A single document may have as many bytes."""

_EMPTY_BOUNDS_CODE: Final = 51175
"""Error code of the server for bounds with nothing between them."""


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


def encode_cursor(state: Mapping[str, Any]) -> str:
    """Return *state*, a position and perhaps more, as the text of a cursor."""
    return base64.urlsafe_b64encode(bson.encode(state)).decode().rstrip("=")


def decode_cursor(cursor: str, *names: str) -> dict[str, Any]:
    """Return the state that *cursor* holds.

    Raises:
        InvalidRequestError: *cursor* is not the text of a state with exactly these *names*.
    """
    try:
        raw = RawBSONDocument(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True))
        state = dict(decode_shallow(raw))
    except (BSONError, ValueError, IndexError):
        raise build_cursor_error() from None
    if state.keys() != set(names):
        raise build_cursor_error()
    return state


def build_cursor_error() -> InvalidRequestError:
    """Return the error for an invalid cursor."""
    return InvalidRequestError([Problem("cursor", 'invalid; pass the "next" value of the previous page')])


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Stretch of an index that a page reads.

    Its bounds compare values of all types, while a filter compares only values of equal types. The lower bound is
    inclusive and the upper bound is exclusive: an ascending walk starts at a position, and a descending one below it.

    Attributes:
        keys: Fields of the index, in order.
        position_keys: Fields of a position.
        fixed: Values of the keys that no position has.
        collection: Name of the collection in error messages.
        where: Filter of the documents.
        shown: Projection that keeps the fields of a position.
        lowest: Lower bound; ``None``: the start of the index.
        highest: Upper bound; ``None``: the end of the index.
        max_examined: Maximum number of documents to examine; ``None``: all.
    """

    index: str
    keys: tuple[str, ...]
    position_keys: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    collection: str = TASKS
    where: Mapping[str, Any]
    shown: Mapping[str, Any]
    lowest: Position | None = None
    highest: Position | None = None
    newest_first: bool
    max_examined: int | None

    def start_behind(self, position: Position) -> Walk:
        """Return the rest of the walk behind a page that ended at *position*."""
        return replace(self, highest=position) if self.newest_first else replace(self, lowest=position)

    def stop_at(self, position: Position) -> Walk:
        """Return the walk up to *position*, which is the start of the next walk."""
        return replace(self, lowest=position) if self.newest_first else replace(self, highest=position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Page of raw documents.

    Attributes:
        found: Fewer than requested, or none, even if more documents follow.
        behind: Start of the next page; ``None`` after the last one.
    """

    found: tuple[RawBSONDocument, ...]
    behind: Position | None


def read_page(
    documents: Tasks,
    walk: Walk,
    *,
    limit: int,
    max_walks: int = 1,
    until: float = math.inf,
    monotonic: Callable[[], float] = time.monotonic,
) -> Page:
    """Return up to *limit* documents of *walk*.

    While nothing is found, the page continues with the next walk, up to *max_walks* or *until* (monotonic). A document
    that is inserted between two pages may be on neither. A document that exists throughout is on exactly one.
    """
    page = _read_walk(documents, walk, limit=limit)
    for _ in range(1, max_walks):
        if page.found or page.behind is None or monotonic() >= until:
            break
        page = _read_walk(documents, walk.start_behind(page.behind), limit=limit)
    return page


def _read_walk(documents: Tasks, walk: Walk, *, limit: int) -> Page:
    with translate_errors(walk.collection):
        try:
            end = _find_end(documents, walk)
            stretch = walk if end is None else walk.stop_at(end)
            found = list(_find_along(documents, stretch, walk.where, walk.shown).limit(limit + 1).batch_size(limit + 2))
        except OperationFailure as error:
            if error.code != _EMPTY_BOUNDS_CODE:
                raise
            return Page(found=(), behind=None)
    return cut_page(found, *walk.position_keys, limit=limit, newest_first=walk.newest_first, end=end)


def _find_end(documents: Tasks, walk: Walk) -> Position | None:
    """Return where the walk must stop, or ``None`` if it can reach its bound. The cost is one index key a step."""
    if walk.max_examined is None:
        return None
    steps = walk.max_examined - 1 if walk.newest_first else walk.max_examined
    found = _find_along(documents, walk, {}, dict.fromkeys(walk.position_keys, 1)).skip(steps).limit(1)
    return next((read_position(raw, *walk.position_keys) for raw in found), None)


def _find_along(
    documents: Tasks, walk: Walk, where: Mapping[str, Any], shown: Mapping[str, Any]
) -> Cursor[RawBSONDocument]:
    order = [(key, DESCENDING if walk.newest_first else ASCENDING) for key in walk.keys]
    found: Cursor[RawBSONDocument] = documents.find(where, shown, hint=walk.index).sort(order)
    if walk.lowest is not None:
        found = found.min(_build_bound(walk, walk.lowest))
    return found if walk.highest is None else found.max(_build_bound(walk, walk.highest))


def _build_bound(walk: Walk, position: Position) -> list[tuple[str, Any]]:
    values = {**walk.fixed, **position}
    return [(key, values[key]) for key in walk.keys]


def cut_page(
    found: Sequence[RawBSONDocument], *keys: str, limit: int, newest_first: bool, end: Position | None = None
) -> Page:
    """Return the page of *found*, which has one document more than *limit* if more follow; else they follow at *end*.

    *keys* are those of a position.
    """
    if len(found) <= limit:
        return Page(found=tuple(found), behind=end)
    return Page(found=tuple(found[:limit]), behind=read_position(found[limit - 1 if newest_first else limit], *keys))


def read_position(raw: RawBSONDocument, *keys: str) -> dict[str, Any]:
    """Return the position of a document by *keys*, which bounds a walk at this document."""
    document = decode_shallow(raw)
    return {key: _make_bound(document.get(key), key, raw) for key in keys}


def _make_bound(value: Any, key: str, raw: RawBSONDocument) -> Any:  # noqa: ANN401 - of any type
    if isinstance(value, list) and value:
        return value[-1]  # An index holds the elements: a bound that is an array would repeat every key, or none.
    if isinstance(value, str) and encode_fields({key: value}) not in bytes(raw.raw):
        # The text is not UTF-8: the nearest lower text that can be sent.
        return value.partition("\N{REPLACEMENT CHARACTER}")[0] + "\x7f"
    return value
