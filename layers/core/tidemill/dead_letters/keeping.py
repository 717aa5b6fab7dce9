"""Which dead letters may ever be removed: exported ones, and all others only where the deployment says so."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated

LIMIT: Final = 1000
"""So many are marked at once."""


def let_unexported_expire(dead: Tasks, *, now: datetime) -> int:
    """Let letters expire that are not exported, counted from *now*; return how many, `LIMIT` at most."""
    return _change(dead, {"archived_at": None, "retain_from": None}, {"$set": {"retain_from": now}})


def keep_unexported(dead: Tasks) -> int:
    """Keep letters that are not exported and would expire; return how many, `LIMIT` at most."""
    return _change(dead, {"archived_at": None, "retain_from": {"$type": "date"}}, {"$unset": {"retain_from": ""}})


def _change(dead: Tasks, where: dict[str, Any], update: dict[str, Any]) -> int:
    with translated(DEAD_LETTERS):
        found = dead.find(where, {"_id": 1}, hint=indexes.EXPORT).limit(LIMIT).batch_size(LIMIT + 1)
        ids = [opened(raw)["_id"] for raw in found]
        return dead.update_many({"_id": {"$in": ids}} | where, update, hint=indexes.BY_ID).matched_count if ids else 0
