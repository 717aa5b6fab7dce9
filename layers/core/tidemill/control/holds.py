"""Holds: so many of something at once, across all executors, exactly; one document each, healed by time.

A document of ``control`` keeps ``holds: [{owner, execution, n, until}]``: an owner may be invoked twice at once. Every
change is one pipeline update that drops what has expired, or makes no sense, and sets the execution's number as it
should be in all, so that a repeat changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds: one *execution* of an *owner*, which is what the platform reports the death of."""

    owner: str
    execution: str


def hold(
    db: Database[Any], name: str, holder: Holder, *, held: int, wanted: int, limit: int, until: datetime, now: datetime
) -> int:
    """Hold *wanted* more of *name* beside the *held* ones, as far as *limit* allows; return how many were granted.

    *wanted* of 0 gives back what is held above *held*. It ends at *until* of the last call.

    Raises:
        UnavailableError: Nothing is known of the effect; the next call sets it right.
    """
    stages = change(holder, held=held, wanted=wanted, limit=limit, until=until, now=now)
    return max(held_by(holder, after=changed(db, name, stages)) - held, 0)


def let_go(db: Database[Any], owner: str) -> None:
    """Drop whatever *owner* holds, who is known to be dead."""
    with translated(CONTROL):
        majority(db)[CONTROL].update_many(
            {"holds": {"$type": "array", "$elemMatch": {"owner": owner}}}, {"$pull": {"holds": {"owner": owner}}}
        )


def changed(db: Database[Any], name: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document *name* after the update by *stages*, made where it was missing."""
    collection = forgiving(db)[CONTROL]
    with translated(CONTROL):
        try:
            return _changed(collection, name, stages)
        except DuplicateKeyError:  # two first holds in the same instant
            return _changed(collection, name, stages)


def held_by(holder: Holder, *, after: dict[str, Any]) -> int:
    """Return how many *holder* holds in a document that has just been changed."""
    return int(sum(one["n"] for one in after["holds"] if one.get("execution") == holder.execution))


def change(
    holder: Holder,
    *,
    held: int,
    wanted: int,
    limit: int,
    until: datetime,
    now: datetime,
    note: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the update that sets what *holder* holds, as a list of stages to which others may be added.

    *note* is kept beside it, for others to read.
    """
    stored = {"$cond": [{"$isArray": "$holds"}, "$holds", []]}
    owner, execution = {"$literal": holder.owner}, {"$literal": holder.execution}
    is_live = {
        "$and": [
            {"$eq": [{"$type": "$$one.until"}, "date"]},
            {"$gt": ["$$one.until", now]},
            {"$in": [{"$type": "$$one.n"}, ["int", "long"]]},
            {"$gt": ["$$one.n", 0]},
            {"$ne": ["$$one.execution", execution]},
        ]
    }
    others = {"$filter": {"input": stored, "as": "one", "cond": is_live}}
    room = {"$subtract": [limit, {"$sum": "$$others.n"}]}
    mine = {"$max": [held, {"$min": [held + wanted, room]}]}
    mine_in_full = {"owner": owner, "execution": execution, "n": "$$mine", "until": until}
    noted = {name: {"$literal": value} for name, value in (note or {}).items()}
    hold_of_mine = {"$cond": [{"$gt": ["$$mine", 0]}, [mine_in_full | noted], []]}
    joined = {"$let": {"vars": {"mine": mine}, "in": {"$concatArrays": ["$$others", hold_of_mine]}}}
    return [{"$set": {"holds": {"$let": {"vars": {"others": others}, "in": joined}}}}]


def _changed(collection: Collection[Any], name: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
    after: dict[str, Any] | None = collection.find_one_and_update(
        {"_id": name}, stages, upsert=True, return_document=ReturnDocument.AFTER
    )
    if after is None:
        raise UnavailableError("MongoDB did not acknowledge the hold")
    return after
