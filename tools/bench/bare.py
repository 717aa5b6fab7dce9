"""The floor: the same documents moved by the bare driver, with nothing checked, decided, or left for others to read.

Its filters take the same indexes in the same order as ours do, so the server examines the same keys.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any, Final

from bson.codec_options import CodecOptions
from pymongo import UpdateOne, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database

from tidemill import indexes
from tidemill.documents import TASKS
from tidemill.store.scan import CLAIM_ORDER, Scan, advance_scan, due_filter

LEASE: Final = timedelta(minutes=2)
RUN_MS: Final = 3
"""How long each task is said to have taken."""

HEAD: Final = Scan(queue="default", lanes=("fresh",))

Document = dict[str, Any]


def open_plain(db: Database[Any]) -> Collection[Document]:
    """Return the tasks of *db* as plain documents, with writes that a majority confirms."""
    options: CodecOptions[Document] = CodecOptions(tz_aware=True)
    return db.get_collection(TASKS, codec_options=options, write_concern=WriteConcern("majority"))


class Mover:
    """Moves what is due, from the head of the queue on."""

    def __init__(self, tasks: Collection[Document], *, now: datetime) -> None:
        self._tasks = tasks
        self._now = now
        self._scan = HEAD

    def claim(self, limit: int) -> list[Document]:
        """Stamp the next *limit* tasks and return them."""
        keys = self._tasks.find(
            due_filter([self._scan], now=self._now), {"_id": 1, "priority": 1, "due_at": 1}, hint=indexes.CLAIM
        )
        found = list(keys.sort(CLAIM_ORDER).limit(limit))
        if not found:
            return []
        self._scan = advance_scan(self._scan, found)
        ids, token = [key["_id"] for key in found], uuid.uuid4().hex
        self._tasks.update_many({"_id": {"$in": ids}, "status": "pending"}, _stamp(token, self._now))
        return list(self._tasks.find({"_id": {"$in": ids}, "lease.token": token}))

    def settle(self, claimed: list[Document]) -> None:
        """Write that all of *claimed* are done, in one bulk."""
        writes = [UpdateOne(_held(task), _done(task, self._now)) for task in claimed]
        self._tasks.bulk_write(writes, ordered=False)


def drain_one_by_one(tasks: Collection[Document], *, now: datetime, most: int) -> int:
    """Take up to *most* tasks, each by a findAndModify of its own and finished by an update; return how many.

    This is what other queues on MongoDB do, at their best: on a covering index, and with nothing else to do.
    """
    where = {"status": "pending", "queue": "default", "lane": "fresh", "due_at": {"$lte": now}}
    for count in range(most):
        stamp = _stamp(uuid.uuid4().hex, now)
        task = tasks.find_one_and_update(where, stamp, sort=CLAIM_ORDER, hint=indexes.CLAIM, return_document=True)
        if task is None:
            return count
        tasks.update_one(_held(task), _done(task, now))
    return most


def _stamp(token: str, now: datetime) -> Document:
    lease = {"token": token, "owner": "A", "expires_at": now + LEASE}
    return {"$set": {"status": "processing", "lease": lease, "updated_at": now}, "$inc": {"attempts": 1}}


def _held(task: Document) -> Document:
    return {"_id": task["_id"], "lease.token": task["lease"]["token"]}


def _done(task: Document, now: datetime) -> Document:
    run = {"attempt": 1, "status": "succeeded", "started_at": now, "duration_ms": RUN_MS, "note": ""}
    values = {
        "status": "done",
        "result": None,
        "updated_at": now,
        "finished_at": now,
        "next_retry_at": None,
        "retain_from": now,
        "settled_by": task["lease"]["token"],
        "attempt_log": [run],
        "crashes": 0,
    }
    return {"$set": values, "$unset": {"lease": ""}}
