"""`Queue.get` and `Queue.cancel`: one task by its id, alive or dead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import document
from tests.fixtures import T0, ManualClock
from tests.handlers.blocking import MakeQueue
from tidemill import Malformed, Queue, Task, TaskNotFoundError

MINUTE = timedelta(minutes=1)


@pytest.fixture
def queue(db: Database[Any], clock: ManualClock, make_queue: MakeQueue) -> Queue:
    return make_queue(db, clock=clock)


def only(db: Database[Any]) -> dict[str, Any]:
    [task] = db.tasks.find()
    found: dict[str, Any] = task
    return found


def test_a_task_is_found_among_the_living_and_the_dead(queue: Queue, db: Database[Any]) -> None:
    living = queue.enqueue("send", {})
    letter = document(T0, status="failed", error={"message": "m", "code": "c", "at": T0})
    db.tasks_dlq.insert_many(
        [letter | {"_id": {"task": letter["_id"], "redrives": n}, "redrives": n} for n in (0, 2, 1)]
    )

    found, dead = queue.get(living), queue.get(letter["_id"])

    assert isinstance(found, Task)
    assert isinstance(dead, Task)
    assert (found.id, found.status) == (living, "pending")
    assert (dead.id, dead.status, dead.redrives) == (letter["_id"], "failed", 2)


def test_a_malformed_document_is_told_of_not_raised(queue: Queue, db: Database[Any]) -> None:
    task_id = db.tasks.insert_one({"status": "pending", "payload": "text"}).inserted_id

    assert isinstance(queue.get(task_id), Malformed)
    assert isinstance(queue.cancel(task_id), Malformed)
    assert only(db)["status"] == "cancelled"


@pytest.mark.parametrize(
    "task_id",
    [
        *(ObjectId(), "0" * 24, None, 7, {"a": 1}, {"$gt": ""}),
        *(operator for operator in ({"$ne": None}, {"$exists": True})),
    ],
)
def test_an_unknown_id_finds_and_cancels_nothing(queue: Queue, db: Database[Any], task_id: Any) -> None:
    queue.enqueue("send", {})

    for look in (queue.get, queue.cancel):
        with pytest.raises(TaskNotFoundError):
            look(task_id)

    assert only(db)["status"] == "pending"


@pytest.mark.parametrize(
    ("status", "options", "expected"),
    [
        ("pending", {}, "cancelled"),
        ("pending", {"force": True}, "cancelled"),
        ("processing", {}, "processing"),
        ("processing", {"force": True}, "cancelled"),
        ("done", {}, "done"),
        *((status, {"force": True}, status) for status in ("done", "failed", "cancelled")),
    ],
)
def test_a_cancel_returns_the_task_as_it_then_is(
    queue: Queue,
    db: Database[Any],
    status: str,
    options: dict[str, bool],
    expected: str,
) -> None:
    lease = {"lease": {"token": "t", "owner": "o", "expires_at": T0 + MINUTE}} if status == "processing" else {}
    task_id = db.tasks.insert_one(document(T0, status=status, **lease)).inserted_id

    task = queue.cancel(task_id, **options)

    assert isinstance(task, Task)
    assert (task.status, only(db)["status"]) == (expected, expected)
    assert (task.lease is None) == (expected != "processing")
