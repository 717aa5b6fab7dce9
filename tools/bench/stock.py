"""Tasks by the million: made and taken by the server, which is quicker than sending them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from bson import ObjectId
from pymongo.database import Database

from tests.builders import document
from tidemill.documents import TASKS
from tools.bench.bare import LEASE, open_plain
from tools.bench.drains import payload

FIRST: Final = 10_000_000
"""The number of the first: all have eight digits, so that their ids are in order."""

AT_ONCE: Final = 1000
MADE_AT_ONCE: Final = 100_000

_MADE: Final = "6a00000000000000"
"""What the ids begin with. The digits of the number are those of a hexadecimal one, too."""


def add(db: Database[Any], start: int, stop: int, *, now: datetime, **fields: Any) -> None:
    """Make the tasks numbered from *start* up to *stop*, due yesterday, a millisecond after each other.

    *fields* are the same in all; a ``due_at`` among them is the first one's.
    """
    for first in range(start, stop, MADE_AT_ONCE):
        _add(db, first, min(first + MADE_AT_ONCE, stop), document(now, payload=payload(0)) | fields, now=now)


def claim(db: Database[Any], start: int, stop: int, *, now: datetime) -> None:
    """Have those numbered from *start* up to *stop* claimed by somebody, in their order."""
    for first in range(start, stop, AT_ONCE):
        last = min(first + AT_ONCE, stop)
        lease = {"token": f"{first}", "owner": "B", "expires_at": now + LEASE}
        stamp = {"$set": {"status": "processing", "lease": lease, "updated_at": now}, "$inc": {"attempts": 1}}
        open_plain(db).update_many({"_id": {"$gte": _id(first), "$lt": _id(last)}, "status": "pending"}, stamp)


def _add(db: Database[Any], start: int, stop: int, task: Mapping[str, Any], *, now: datetime) -> None:
    first = task["due_at"] if task["due_at"] != now else now - timedelta(days=1)
    number = {"$range": [FIRST + start, FIRST + stop]}
    due_at = {"$add": [first - timedelta(milliseconds=FIRST), "$number"]}
    made = {"$toObjectId": {"$concat": [_MADE, {"$toString": "$number"}]}}
    db.aggregate(
        [
            {"$documents": [dict(task)]},
            {"$set": {"number": number}},
            {"$unwind": "$number"},
            {"$set": {"_id": made, "due_at": due_at}},
            {"$unset": "number"},
            {"$merge": {"into": TASKS, "whenMatched": "fail"}},
        ]
    )


def _id(number: int) -> ObjectId:
    return ObjectId(f"{_MADE}{FIRST + number}")
