"""Rights of API keys, which an operator grants: stored in one document, and cached for the HTTP API.

The document is ``control {_id: "callers", <id of an API key>: [right, ...]}``. A key without a field has no right.
Rights are for what concerns the tasks of all callers; no right is needed for a caller's own tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from pymongo import ReturnDocument
from pymongo.database import Database

from tidemill.documents import CONTROL
from tidemill.store.connection import translate_errors, with_lenient_decoding
from tidemill.store.mark import CALLERS_ID

Right: TypeAlias = Literal["queues.read"]
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)

CALLERS_CACHE_SEC: Final = 60.0
"""Seconds after which a change of rights applies to the HTTP API, at the latest."""

KEY_ID_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9_-]{0,18}$"
"""Ids of API keys. The value of a key, which is a secret, has 20 characters or more."""


class CallerRights:
    """The rights of all API keys, read at most once a minute."""

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._monotonic = monotonic
        self._rights: Mapping[str, tuple[Right, ...]] = {}
        self._read_at: float | None = None

    def has_right(self, key_id: str, right: Right) -> bool:
        """Return whether the API key has *right*.

        Raises:
            UnavailableError: MongoDB did not answer.
        """
        if self._read_at is None or self._monotonic() - self._read_at > CALLERS_CACHE_SEC:
            self._rights = load_rights(self._db)
            self._read_at = self._monotonic()
        return right in self._rights.get(key_id, ())


def load_rights(db: Database[Any]) -> dict[str, tuple[Right, ...]]:
    """Return the rights of each API key that has any, by the id of the key."""
    with translate_errors(CONTROL):
        document = with_lenient_decoding(db)[CONTROL].find_one({"_id": CALLERS_ID}) or {}
    found = {key_id: _read_rights(document, key_id) for key_id in sorted(document)}
    return {key_id: rights for key_id, rights in found.items() if rights}


def grant_right(db: Database[Any], key_id: str, right: Right) -> tuple[Right, ...]:
    """Give *right* to an API key, and return all rights of the key. Safe to repeat."""
    return _change_rights(db, key_id, {"$setUnion": [_find_stored(key_id), [right]]})


def revoke_right(db: Database[Any], key_id: str, right: Right) -> tuple[Right, ...]:
    """Take *right* from an API key, and return the rights that the key has left. Safe to repeat."""
    return _change_rights(db, key_id, {"$setDifference": [_find_stored(key_id), [right]]})


def _change_rights(db: Database[Any], key_id: str, rights: dict[str, Any]) -> tuple[Right, ...]:
    left = {"$let": {"vars": {"rights": rights}, "in": {"$cond": [{"$eq": ["$$rights", []]}, "$$REMOVE", "$$rights"]}}}
    with translate_errors(CONTROL):
        document: dict[str, Any] | None = with_lenient_decoding(db)[CONTROL].find_one_and_update(
            {"_id": CALLERS_ID}, [{"$set": {key_id: left}}], upsert=True, return_document=ReturnDocument.AFTER
        )
    return _read_rights(document or {}, key_id)


def _find_stored(key_id: str) -> dict[str, Any]:
    """Return the expression of the stored rights; none if the field is no array, after an edit by hand."""
    return {"$cond": [{"$isArray": f"${key_id}"}, f"${key_id}", []]}


def _read_rights(document: Mapping[str, Any], key_id: str) -> tuple[Right, ...]:
    stored = document.get(key_id)
    return tuple(right for right in RIGHTS if isinstance(stored, list) and right in stored)
