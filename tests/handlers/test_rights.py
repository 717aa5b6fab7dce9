"""What a user of MongoDB may be held to: rights on our collections, and none on the application's beside them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.handlers.conftest import Deployed
from tests.handlers.test_guest import APPLICATION, live
from tests.locked import Locked, locked_mongod
from tidemill import Queue
from tidemill.documents import COLLECTIONS
from tidemill.errors import RefusedError

# docs/operate/your-own-database.md tells of both.
FUNCTIONS = ["find", "insert", "update", "remove", "listIndexes", "createIndex", "dropIndex", "collStats", "collMod"]
APPLICATION_RIGHTS = {
    "tasks": ["find", "insert", "update"],
    "tasks_dlq": ["find"],
    "queues": ["find"],
    "task_types": ["find"],
    "control": ["find", "insert", "update"],
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    with locked_mongod(tmp_path_factory.mktemp("locked")) as server:
        yield server


@pytest.fixture
def app(locked: Locked) -> Database[dict[str, Any]]:
    """The application's own database, with its own collections."""
    db = locked.admin[f"app_{uuid.uuid4().hex}"]
    for name, documents in APPLICATION.items():
        db[name].insert_many([dict(document) for document in documents])
    return db


def user_with(locked: Locked, db: Database[Any], rights: dict[str, list[str]]) -> str:
    """A user whose role has nothing but *rights* on collections of *db*; the URI for it."""
    name = f"role_{uuid.uuid4().hex}"
    privileges = [
        {"resource": {"db": db.name, "collection": collection}, "actions": actions}
        for collection, actions in rights.items()
    ]
    locked.admin.admin.command("createRole", name, privileges=privileges, roles=[])
    return locked.add(name, "S3cr3t", roles=[name])


def test_the_functions_need_rights_on_their_own_collections_only(
    bare: Deployed, locked: Locked, app: Database[Any]
) -> None:
    uri = user_with(locked, app, {f"tm_{name}": FUNCTIONS for name in COLLECTIONS})
    bare.set(MONGODB_URI=uri, MONGODB_DATABASE=app.name, TIDEMILL_PREFIX="tm_", LINGER_SEC="0")

    live(bare, Queue(app, prefix="tm_"))

    assert app.tm_tasks.count_documents({"status": "done"}) == 3
    assert [letter["reason"] for letter in app.tm_tasks_dlq.find()] == ["unknown_task"]
    bare.set(RETENTION_DAYS="3")
    assert bare.invoke("reclaim")["missing_indexes"] == []
    assert app.tm_tasks.index_information()["retention"]["expireAfterSeconds"] == 3 * 86400


def test_an_application_that_enqueues_needs_less(locked: Locked, app: Database[Any]) -> None:
    uri = user_with(locked, app, {f"tm_{name}": rights for name, rights in APPLICATION_RIGHTS.items()})
    Queue(app, prefix="tm_").enqueue("noop", {})  # once, with more rights: it makes the collections

    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        queue = Queue(client[app.name], prefix="tm_")
        task_id = queue.enqueue("noop", {})
        queue.enqueue_many([{"name": "noop", "payload": {}}] * 2)
        assert queue.get(task_id).id == task_id
        queue.cancel(task_id)
        with pytest.raises(OperationFailure, match="not authorized"):
            client[app.name].orders.find_one()
        with pytest.raises(RefusedError, match=f"its user may not find in the database {app.name}; give it the role"):
            Queue(client[app.name]).enqueue("noop", {})  # N25

    assert app.tm_tasks.count_documents({}) == 4
