"""Which dead letters may ever be removed: exported ones, and all others only where the deployment says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pymongo import UpdateOne

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated
from tidemill.store.writes import write_each

LIMIT: Final = 1000
"""So many are marked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a change of many letters came to: their *ids*, and how many changed; what the server refuses did not."""

    ids: Sequence[Any] = ()
    changed: int = 0


def let_unexported_expire(dead: Tasks, *, now: datetime, but: Sequence[Any] = ()) -> Kept:
    """Let letters expire that are not exported, counted from *now*: `LIMIT` at most, without *but*."""
    return _change(dead, {"archived_at": None, "retain_from": None}, {"$set": {"retain_from": now}}, but)


def keep_unexported(dead: Tasks, *, but: Sequence[Any] = ()) -> Kept:
    """Keep letters that are not exported and would expire: `LIMIT` at most, without *but*."""
    return _change(dead, {"archived_at": None, "retain_from": {"$type": "date"}}, {"$unset": {"retain_from": ""}}, but)


def _change(dead: Tasks, where: dict[str, Any], update: dict[str, Any], but: Sequence[Any]) -> Kept:
    others = {"_id": {"$nin": list(but)}} if but else {}
    with translated(DEAD_LETTERS):
        found = dead.find(where | others, {"_id": 1}, hint=indexes.EXPORT).limit(LIMIT).batch_size(LIMIT + 1)
        ids = [opened(raw)["_id"] for raw in found]
    changes = [UpdateOne({"_id": {"$eq": one}} | where, update, hint=indexes.BY_ID) for one in ids]
    return Kept(ids=ids, changed=write_each(dead, changes).changed)
