"""A guest in the application's database: with collections of its own under our names, nothing of them is touched."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.database import Database

from tests.handlers.conftest import Deployed
from tests.handlers.test_enqueue_recurring import event as occurrence
from tidemill import Queue
from tidemill.documents import COLLECTIONS
from tidemill.errors import ForeignCollectionError
from tidemill.testing import Mongod

LATELY = datetime.now(UTC) - timedelta(hours=1)
APPLICATION: dict[str, list[dict[str, Any]]] = {
    "tasks": [{"title": f"task {n}", "status": status} for n, status in enumerate(("pending", "failed", "processing"))],
    "queues": [{"_id": "default", "paused": True}],
    "task_types": [{"_id": "chore", "label": "Chore"}],
    "orders": [{"_id": 1, "total": 12}],
}
FUNCTIONS = ("enqueue", "execute", "reclaim", "archive", "operate")


@pytest.fixture
def guest(bare: Deployed, mongod: Mongod, client: MongoClient[Any]) -> tuple[Deployed, Database[Any]]:
    """The functions on a database that nobody was ever in."""
    db = client[f"guest_{uuid.uuid4().hex}"]
    bare.set(MONGODB_URI=mongod.uri, MONGODB_DATABASE=db.name, LINGER_SEC="0")
    return bare, db


def everything(db: Database[Any]) -> dict[str, tuple[list[bytes], Any]]:
    """Every document by its bytes, and every index."""
    raw = CodecOptions(document_class=RawBSONDocument)
    return {
        name: (
            [bytes(one.raw) for one in db.get_collection(name, codec_options=raw).find()],
            db[name].index_information(),
        )
        for name in sorted(db.list_collection_names())
    }


def moved_in(db: Database[Any]) -> dict[str, Any]:
    for name, documents in APPLICATION.items():
        db[name].insert_many([dict(document) for document in documents])
    return everything(db)


def call(deployed: Deployed, function: str) -> Any:
    events: dict[str, Any] = {
        "enqueue": {"name": "noop", "payload": {}},
        "operate": {"op": "queue.pause", "queue": "default"},
    }
    return deployed.invoke(function, events.get(function, {}))


def test_ticks_leave_an_application_as_it_was_byte_for_byte(guest: tuple[Deployed, Database[Any]]) -> None:  # N27
    deployed, db = guest
    before = moved_in(db)

    for _ in range(3):
        for function in ("execute", "reclaim", "archive"):
            with pytest.raises(ForeignCollectionError, match="the collection tasks of database"):
                deployed.invoke(function)
        deployed.cool_down()

    assert everything(db) == before


@pytest.mark.parametrize("name", ["tasks", "queues", "task_types"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_function_says_which_collection_is_in_the_way(
    guest: tuple[Deployed, Database[Any]], function: str, name: str
) -> None:
    deployed, db = guest
    db[name].insert_many(APPLICATION[name])
    before = everything(db)

    if function == "operate":
        error = call(deployed, function)["error"]
        assert error["code"] == "misconfigured"
        message = error["message"]
    else:
        with pytest.raises(ForeignCollectionError) as raised:
            call(deployed, function)
        message = str(raised.value)

    assert message.startswith(f"the collection {name} of database {db.name} holds documents that are not Tidemill")
    assert "TIDEMILL_PREFIX=tm_" in message
    assert everything(db) == before


def test_a_caller_over_http_is_told_that_the_queue_is_not_set_up(guest: tuple[Deployed, Database[Any]]) -> None:
    deployed, db = guest
    before = moved_in(db)

    answer = deployed.post({"name": "noop", "payload": {}})

    assert (answer.status, answer.code) == (503, "misconfigured")
    assert "tasks" not in answer.body["error"]["message"]  # for the operator, in the log
    assert "the collection tasks" in str(deployed.log()[-1])
    assert everything(db) == before


WRITES: dict[str, Callable[[Queue, Any], object]] = {
    "enqueue": lambda queue, _: queue.enqueue("noop", {}),
    "enqueue_many": lambda queue, _: queue.enqueue_many([{"name": "noop", "payload": {}}]),
    "cancel": lambda queue, task_id: queue.cancel(task_id),
    "retry_now": lambda queue, task_id: queue.retry_now(task_id),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_application_that_uses_the_queue_is_refused_before_the_first_write(
    client: MongoClient[Any], write: Callable[[Queue, Any], object]
) -> None:
    db = client[f"guest_{uuid.uuid4().hex}"]
    before = moved_in(db)

    with pytest.raises(ForeignCollectionError):
        write(Queue(db), db.tasks.distinct("_id")[0])

    assert everything(db) == before


def test_with_a_prefix_all_of_a_life_happens_beside_the_application(guest: tuple[Deployed, Database[Any]]) -> None:
    deployed, db = guest
    before = moved_in(db)
    deployed.set(TIDEMILL_PREFIX="tm_")

    live(deployed, Queue(db, prefix="tm_"))

    after = everything(db)
    assert {name: after.pop(name) for name in before} == before
    assert sorted(after) == sorted(f"tm_{name}" for name in COLLECTIONS)
    assert all(documents for documents, _ in after.values())
    assert [letter["task_name"] for letter in db.tm_tasks_dlq.find({}, {"task_name": "$name"})] == ["fails"]
    assert db.tm_tasks.count_documents({"status": "done"}) == 3


def test_documents_of_another_program_in_all_states_are_taken_over_with_the_mark(  # S02, N27
    guest: tuple[Deployed, Database[Any]],
) -> None:
    deployed, db = guest
    statuses = ("pending", "processing", "done", "failed", "cancelled")
    micro = {"payload": {}, "attempts": 20, "next_retry_at": None}
    db.tasks.insert_many([micro | {"_id": status, "status": status} for status in statuses])
    before = everything(db)
    with pytest.raises(ForeignCollectionError, match="set DEFAULT_TASK"):
        deployed.invoke("reclaim")
    assert everything(db) == before

    deployed.set(DEFAULT_TASK="noop")
    report = deployed.invoke("reclaim")
    moved = deployed.invoke("archive")["moved"]

    assert (report["adopted"], report["quarantined"], report["failed"], moved) == (5, 0, 0, 1)
    assert db.control.count_documents({"_id": "tidemill"}) == 1
    assert {one["_id"]: one["status"] for one in db.tasks.find()} == {one: one for one in statuses if one != "failed"}
    assert [(one["_id"]["task"], one["reason"], one["name"]) for one in db.tasks_dlq.find()] == [
        ("failed", "exhausted", "noop")
    ]


def test_what_we_have_written_before_there_were_marks_is_ours(guest: tuple[Deployed, Database[Any]]) -> None:
    deployed, db = guest
    live(deployed, Queue(db))
    assert set(db.list_collection_names()) == set(COLLECTIONS)
    db.control.delete_one({"_id": "tidemill"})
    deployed.cool_down()

    assert deployed.invoke("reclaim")["errors"] == 0

    assert db.control.count_documents({"_id": "tidemill"}) == 1


def live(deployed: Deployed, queue: Queue) -> None:
    """Use everything there is: what is declared, stored, run, failed, archived and counted."""
    assert deployed.invoke("reclaim")["missing_indexes"] == []
    deployed.invoke("execute")
    assert "error" not in deployed.invoke("operate", {"op": "queue.declare", "queue": "eu"})
    assert "error" not in deployed.invoke("operate", {"op": "queue.set", "queue": "default", "retry_share": 0.5})
    assert deployed.post({"name": "noop", "payload": {}}).status == 202
    deployed.invoke("enqueue", occurrence())
    # A function that nobody has; ten minutes later it is a dead letter.
    queue_tasks = queue.database[f"{queue.prefix}tasks"]
    task_id = queue.enqueue("noop", {}, queue="eu")
    queue_tasks.update_one({"_id": task_id}, {"$set": {"name": "fails", "created_at": LATELY, "due_at": LATELY}})
    deployed.invoke("execute")
    deployed.invoke("archive")
