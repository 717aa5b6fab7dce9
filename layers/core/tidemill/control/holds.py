"""Holds: so many of something at once, across all executors, exactly; one document each, healed by time.

A document of ``control`` keeps ``holds: [{owner, n, until}]``. Every change is one pipeline update that drops what has
expired and sets the owner's number as it should be in all, so that a repeat changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pymongo import ReturnDocument
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from tidemill.control.reading import forgiving
from tidemill.documents import CONTROL
from tidemill.errors import UnavailableError
from tidemill.store import majority, translated


def hold(
    db: Database[Any], name: str, *, owner: str, held: int, wanted: int, limit: int, until: datetime, now: datetime
) -> int:
    """Hold *wanted* more of *name* beside the *held* ones, as far as *limit* allows; return how many were granted.

    *wanted* of 0 gives back what is held above *held*. The hold of an owner ends at *until* of its last call.

    Raises:
        UnavailableError: Nothing is known of the effect; the next call sets it right.
    """
    change = _change(owner=owner, held=held, wanted=wanted, limit=limit, until=until, now=now)
    collection = forgiving(db)[CONTROL]
    with translated(CONTROL):
        try:
            after = _changed(collection, name, change)
        except DuplicateKeyError:  # two first holds in the same instant
            after = _changed(collection, name, change)
    mine = sum(one["n"] for one in after["holds"] if one["owner"] == owner)
    return max(int(mine) - held, 0)


def let_go(db: Database[Any], owner: str) -> None:
    """Drop whatever *owner* holds, who is known to be dead."""
    with translated(CONTROL):
        majority(db)[CONTROL].update_many({"holds.owner": owner}, {"$pull": {"holds": {"owner": owner}}})


def _changed(collection: Collection[Any], name: str, change: list[dict[str, Any]]) -> dict[str, Any]:
    after: dict[str, Any] | None = collection.find_one_and_update(
        {"_id": name}, change, upsert=True, return_document=ReturnDocument.AFTER
    )
    if after is None:
        raise UnavailableError("MongoDB did not acknowledge the hold")
    return after


def _change(*, owner: str, held: int, wanted: int, limit: int, until: datetime, now: datetime) -> list[dict[str, Any]]:
    stored = {"$cond": [{"$isArray": "$holds"}, "$holds", []]}
    name = {"$literal": owner}
    live = {"$filter": {"input": stored, "as": "one", "cond": {"$gt": ["$$one.until", now]}}}
    others = {"$filter": {"input": live, "as": "one", "cond": {"$ne": ["$$one.owner", name]}}}
    room = {"$subtract": [limit, {"$sum": "$$others.n"}]}
    mine = {"$max": [held, {"$min": [held + wanted, room]}]}
    hold_of_mine = {"$cond": [{"$gt": ["$$mine", 0]}, [{"owner": name, "n": "$$mine", "until": until}], []]}
    joined = {"$let": {"vars": {"mine": mine}, "in": {"$concatArrays": ["$$others", hold_of_mine]}}}
    return [{"$set": {"holds": {"$let": {"vars": {"others": others}, "in": joined}}}}]
