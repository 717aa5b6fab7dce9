"""Who works: the processes of ``tidemill work`` that are alive, and how executors have come and gone.

Workers are kept in the document ``workers`` of ``control`` as ``holds: [{owner, queues, lanes, until}]``, each renewed
by itself and dropped by the next one once its time is over. Invocations are known by their seats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pymongo.database import Database

from tidemill.control.holds import changed
from tidemill.documents import CONTROL
from tidemill.store import majority, translated

WORKERS: Final = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a worker says of itself: no *queues* are all of them."""

    owner: str
    queues: Sequence[str]
    lanes: Sequence[str]


def be_present(db: Database[Any], worker: Presence, *, until: datetime, now: datetime) -> None:
    """Let others know that *worker* is alive, until a time.

    Raises:
        UnavailableError: Nothing is known of the effect; the next call sets it right.
    """
    stored = {"$cond": [{"$isArray": "$holds"}, "$holds", []]}
    is_other = {"$and": [{"$gt": ["$$one.until", now]}, {"$ne": ["$$one.owner", {"$literal": worker.owner}]}]}
    others = {"$filter": {"input": stored, "as": "one", "cond": is_other}}
    mine = {"owner": worker.owner, "queues": list(worker.queues), "lanes": list(worker.lanes), "until": until}
    changed(db, WORKERS, [{"$set": {"holds": {"$concatArrays": [others, [{"$literal": mine}]]}}}])


def be_gone(db: Database[Any], owner: str) -> None:
    """Let others know that the worker *owner* has ended."""
    with translated(CONTROL):
        majority(db)[CONTROL].update_one(
            {"_id": WORKERS, "holds": {"$type": "array"}}, {"$pull": {"holds": {"owner": owner}}}
        )
