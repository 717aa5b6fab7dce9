"""The mark: a start in a database of somebody else's changes nothing, and ours are known by what they hold."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.at_once import at_once
from tests.commands import Commands
from tidemill import Queue, SettingsError, indexes
from tidemill.documents import COLLECTIONS
from tidemill.errors import ForeignCollectionError, NewerSchemaError
from tidemill.store.connection import with_prefix
from tidemill.store.mark import refuse_foreign, require_mark
from tidemill.testing import Mongod

NOW = datetime(2031, 7, 1, 9, 0, tzinfo=UTC)
MICRO = {"payload": {"n": 1}, "status": "pending", "attempts": 0, "next_retry_at": None}
FOREIGN: dict[str, list[dict[str, Any]]] = {
    "tasks": [
        {"title": "call Ada", "status": "pending"},
        {"status": "processing", "queue": "eu", "attempts": 1, "due_at": NOW},  # no lane of ours
        {"status": "open", "queue": "eu", "lane": "fresh", "attempts": 1, "due_at": NOW},
        MICRO | {"payload": "text"},
    ],
    "tasks_dlq": [{"title": "call Ada"}, {"_id": {"task": 1}, "dead_lettered_at": NOW}],
    "queues": [
        {"_id": "default", "paused": True},
        {"_id": "default", "paused": True, "updated_at": NOW, "owner": "Ada"},
        {"name": "default", "updated_at": NOW},
    ],
    "task_types": [{"_id": "chore"}, {"_id": "chore", "label": "Chore", "http": True}],
    "control": [{"_id": "executor_slots"}, {"_id": "tidemill"}, {"holds": []}],
    "queue_stats": [{"_id": {"queue": "eu"}}],
    "occurrences": [{"at": NOW}, {"_id": {"schedule": "daily"}}],
}


@pytest.fixture
def unmarked(client: MongoClient[dict[str, Any]]) -> Database[dict[str, Any]]:
    """A database that nobody was ever in."""
    return client[f"guest_{uuid.uuid4().hex}"]


def contents(db: Database[Any]) -> dict[str, list[dict[str, Any]]]:
    return {name: list(db[name].find()) for name in db.list_collection_names()}


def test_an_empty_database_is_marked_with_every_name_that_is_taken(unmarked: Database[Any]) -> None:
    require_mark(unmarked)

    assert contents(unmarked) == {"control": [{"_id": "tidemill", "schema": 1, "names": list(COLLECTIONS)}]}


def test_a_marked_database_costs_one_command(unmarked: Database[Any], mongod: Mongod) -> None:
    require_mark(unmarked)
    commands = Commands()

    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        require_mark(client[unmarked.name])

    assert [name for name in commands.names if name != "endSessions"] == ["find"]


@pytest.mark.parametrize(
    ("name", "document"), [(name, document) for name, documents in FOREIGN.items() for document in documents]
)
def test_documents_of_somebody_else_are_refused_by_the_name_of_their_collection(
    unmarked: Database[Any], name: str, document: dict[str, Any]
) -> None:
    unmarked[name].insert_one(dict(document))
    before = contents(unmarked)

    with pytest.raises(ForeignCollectionError, match=f"^the collection {name} of database {unmarked.name} holds"):
        require_mark(unmarked, adopts=True)

    assert contents(unmarked) == before


def test_one_foreign_document_among_the_first_hundred_is_enough(unmarked: Database[Any]) -> None:
    Queue(unmarked).enqueue_many({"name": "noop", "payload": {}} for _ in range(99))
    unmarked.control.delete_one({"_id": "tidemill"})
    unmarked.tasks.insert_one({"title": "call Ada", "status": "pending"})

    with pytest.raises(ForeignCollectionError):
        require_mark(unmarked)


def test_documents_of_another_program_are_taken_where_a_function_is_named_for_them(unmarked: Database[Any]) -> None:
    unmarked.tasks.insert_many([dict(MICRO), MICRO | {"status": "failed", "attempts": 3, "_id": "text"}])

    with pytest.raises(ForeignCollectionError, match="set DEFAULT_TASK to the function that is to run them, or"):
        require_mark(unmarked)
    require_mark(unmarked, adopts=True)

    assert unmarked.control.count_documents({"_id": "tidemill"}) == 1


def test_a_later_release_of_the_documents_is_refused(unmarked: Database[Any]) -> None:
    unmarked.control.insert_one({"_id": "tidemill", "schema": 2, "names": []})

    with pytest.raises(NewerSchemaError, match="upgrade this one"):
        require_mark(unmarked)


def test_twenty_first_starts_at_once_are_all_right(unmarked: Database[Any]) -> None:
    at_once([unmarked] * 20, require_mark)

    assert [document["_id"] for document in unmarked.control.find()] == ["tidemill"]


def test_looking_marks_nothing(unmarked: Database[Any]) -> None:
    assert not refuse_foreign(unmarked)

    assert contents(unmarked) == {}


def test_a_prefix_stands_before_every_name_and_nothing_else_is_touched(unmarked: Database[Any]) -> None:
    unmarked.tasks.insert_one({"_id": 1, "title": "call Ada", "status": "pending"})
    db = with_prefix(unmarked, "tm_")

    require_mark(db)
    indexes.create(db)
    Queue(unmarked, prefix="tm_").enqueue("noop", {})

    assert set(unmarked.list_collection_names()) == {"tasks", "tm_control"} | {
        f"tm_{name}" for name in indexes.COLLECTIONS
    }
    assert list(unmarked.tasks.find()) == [{"_id": 1, "title": "call Ada", "status": "pending"}]
    assert unmarked.tm_tasks.count_documents({}) == 1
    assert unmarked.tm_control.find_one()["names"] == [f"tm_{name}" for name in COLLECTIONS]  # type: ignore[index]


def test_options_of_the_driver_keep_the_prefix(unmarked: Database[Any]) -> None:
    db = with_prefix(unmarked, "jobs.")

    assert db.with_options().tasks.name == db["tasks"].name == db.get_collection("tasks").name == "jobs.tasks"
    assert db.list_collection_names() == []  # asks through a collection of the driver's own


@pytest.mark.parametrize("prefix", ["1", "$", "a$b", "a b", "system.", "é", "x" * 33, "-"])
def test_a_prefix_that_no_collection_can_have_is_refused(unmarked: Database[Any], prefix: str) -> None:
    with pytest.raises(SettingsError, match="the prefix of the collections must be 1 to 32 letters"):
        Queue(unmarked, prefix=prefix)
