"""Who works: the processes of ``tidemill work`` that are alive, and what each of them serves.

Workers are kept in the document ``workers`` of ``control`` as ``holds: [{owner, until, queues, lanes, ...}]``, each
renewed by itself and dropped by the next one once its time is over. Invocations are known by their seats.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pymongo.database import Database

from tidemill.control.holds import changed
from tidemill.control.service import Service
from tidemill.documents import CONTROL
from tidemill.store import majority, translated

WORKERS: Final = "workers"


def be_present(db: Database[Any], owner: str, service: Service, *, until: datetime, now: datetime) -> None:
    """Let others know that the worker *owner* is alive, until a time, and what it serves.

    Raises:
        UnavailableError: Nothing is known of the effect; the next call sets it right.
    """
    stored = {"$cond": [{"$isArray": "$holds"}, "$holds", []]}
    is_other = {"$and": [{"$gt": ["$$one.until", now]}, {"$ne": ["$$one.owner", {"$literal": owner}]}]}
    others = {"$filter": {"input": stored, "as": "one", "cond": is_other}}
    mine = {"owner": owner, "until": until} | service.document()
    changed(db, WORKERS, [{"$set": {"holds": {"$concatArrays": [others, [{"$literal": mine}]]}}}])


def be_gone(db: Database[Any], owner: str) -> None:
    """Let others know that the worker *owner* has ended."""
    with translated(CONTROL):
        majority(db)[CONTROL].update_one(
            {"_id": WORKERS, "holds": {"$type": "array"}}, {"$pull": {"holds": {"owner": owner}}}
        )
