"""Documents and leases as tests want them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo.collection import Collection
from pymongo.database import Database

from tidemill.clock import Clock, ServerClock
from tidemill.control.task_types import Directory
from tidemill.documents import decode
from tidemill.enqueue.enqueue import EventService
from tidemill.model import Lane, Lease, Malformed, Task
from tidemill.requests.tasks import NewTask, check_tasks
from tidemill.store import claims
from tidemill.store.connection import Tasks, with_majority
from tidemill.store.scan import Scan

MINUTE = timedelta(minutes=1)


def document(now: datetime, **fields: Any) -> dict[str, Any]:
    """A pending task that is due at *now*, but for *fields*."""
    due_at = fields.get("due_at", now)
    return {
        "_id": ObjectId(),
        "name": "noop",
        "queue": "default",
        "payload": {},
        "status": "pending",
        "lane": "fresh",
        "priority": 0,
        "due_at": due_at,
        "next_retry_at": None,
        "attempts": 0,
        "max_retries": None,
        "backoff_policy": None,
        "timeout_sec": None,
        "expires_at": None,
        "created_at": now,
        "updated_at": now,
        "finished_at": None,
        "error": None,
        "attempt_log": [],
        "crashes": 0,
        "redrives": 0,
        "result": None,
        "trace": {},
    } | fields


def make_service(db: Database[Any], *, clock: Clock | None = None) -> EventService:
    """The way in of *db*, as the enqueue function has it."""
    db = with_majority(db)
    return EventService(db, clock=clock or ServerClock(db), directory=Directory(db))


def add(tasks: Tasks, documents: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Insert *documents* as they are and return their ids."""
    return list(tasks.insert_many(list(documents)).inserted_ids)


def fill(collection: Tasks | Collection[dict[str, Any]], count: int) -> None:
    """Leave *count* documents in *collection* that are only an id. The server makes 100,000 in half a second."""
    numbers: dict[str, Any] = {"$documents": [{"n": {"$range": [0, count]}}]}
    collection.database.aggregate([numbers, {"$unwind": "$n"}, {"$project": {"_id": "$n"}}, {"$out": collection.name}])


def lease(now: datetime, *, owner: str = "A", span: timedelta = MINUTE) -> Lease:
    """A lease with a token of its own."""
    return Lease(token=uuid.uuid4().hex, owner=owner, expires_at=now + span)


def claim(
    tasks: Tasks, now: datetime, *, limit: int = 100, lane: Lane = "fresh", queue: str = "default", owner: str = "A"
) -> claims.Claim:
    """Claim from the head of a lane."""
    scan = Scan(queue=queue, lanes=(lane,))
    held = lease(now, owner=owner)
    return claims.claim(tasks, scan, limit=limit, lease=held, now=now, rng=random.Random(1))


def claim_one(tasks: Tasks, now: datetime, **options: Any) -> Task:
    """Claim the one task at the head of a lane."""
    [task] = claim(tasks, now, limit=1, **options).tasks
    assert isinstance(task, Task)
    return task


def stored(tasks: Tasks, task_id: Any) -> dict[str, Any]:
    """The document as it is now, decoded."""
    found = tasks.find_one({"_id": task_id})
    assert found is not None, f"there is no document {task_id}"
    return decode(found)


def all_of(collection: Tasks) -> list[dict[str, Any]]:
    """The documents in the order of their ids, decoded."""
    return [decode(raw) for raw in collection.find({}).sort("_id")]


def whole(tasks: Iterable[Task | Malformed]) -> list[Task]:
    """Those that are tasks, which must be all."""
    held = list(tasks)
    assert all(isinstance(task, Task) for task in held)
    return [task for task in held if isinstance(task, Task)]


def new_tasks(requests: Iterable[dict[str, Any]]) -> list[NewTask]:
    """The requests for these tasks."""
    return check_tasks(requests).tasks
