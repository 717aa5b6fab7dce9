"""Where a dead letter stands in the order of the deaths, and the cursors that say it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from tidemill.documents import opened
from tidemill.errors import InvalidRequestError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """When a dead letter was moved, and its id, as they are stored."""

    dead_lettered_at: Any
    id: Any

    def document(self) -> dict[str, Any]:
        """Return it as a cursor holds it."""
        return {"dead_lettered_at": self.dead_lettered_at, "_id": self.id}


def place_of(raw: RawBSONDocument) -> Place:
    """Return the place of a dead letter, of which no more than this has to have been read."""
    letter = opened(raw)
    at = letter.get("dead_lettered_at")
    # An index holds an array by its elements: behind a key that is an array all, or nothing, would come again.
    return Place(dead_lettered_at=at[-1] if isinstance(at, list) and at else at, id=letter["_id"])


def sealed(state: Mapping[str, Any]) -> str:
    """Return *state* as the text of a cursor."""
    return base64.urlsafe_b64encode(bson.encode(state)).decode().rstrip("=")


def unsealed(cursor: str) -> RawBSONDocument:
    """Return the state that *cursor* holds.

    Raises:
        InvalidRequestError: It is none that was sealed.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        state = opened(RawBSONDocument(raw))
        list(state)
    except (BSONError, ValueError, IndexError):
        raise no_cursor() from None
    return state


def place_in(state: RawBSONDocument) -> Place:
    """Return the place in the *state* of a cursor.

    Raises:
        InvalidRequestError: There is none.
    """
    if not {"dead_lettered_at", "_id"} <= state.keys():
        raise no_cursor()
    return Place(dead_lettered_at=state["dead_lettered_at"], id=state["_id"])


def no_cursor() -> InvalidRequestError:
    """Return what is raised for a cursor that is none."""
    return InvalidRequestError([Problem("cursor", "is none that a page has named")])
