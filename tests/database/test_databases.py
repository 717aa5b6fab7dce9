"""The databases that tests are lent: empty, and like new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.builders import add, document
from tests.databases import LARGE, Lender
from tests.fixtures import T0
from tests.waiting import eventually
from tidemill import indexes
from tidemill.documents import DEAD_LETTERS

CHANGES: dict[str, Callable[[Database[Any]], Any]] = {
    "an index is missing": lambda db: db["tasks"].drop_index("leases"),
    "one is new": lambda db: db["tasks"].create_index("payload.n"),
    "one is new elsewhere": lambda db: db["control"].create_index("n"),
    "another retention": lambda db: db.command(
        "collMod", "tasks", index={"name": "retention", "expireAfterSeconds": 60}
    ),
    "an index that held an array": lambda db: (
        add(db["tasks"], [document(T0, queue=["a", "b"])]),
        db["tasks"].delete_many({}),
    ),
    "a validator": lambda db: db.command("collMod", "tasks", validator={"attempts": {"$lt": 3}}),
    "a view": lambda db: db.create_collection("view", viewOn="tasks", pipeline=[]),
    "a collection is gone": lambda db: db[DEAD_LETTERS].drop(),
    "a profile": lambda db: (db.command("profile", 2), db["tasks"].find_one({}), db.command("profile", 0)),
    "many documents": lambda db: db["tasks"].insert_many([{} for _ in range(LARGE + 1)]),
}


@pytest.fixture
def lender(client: MongoClient[dict[str, Any]]) -> Lender:
    return Lender(client)


def test_a_database_is_lent_again_without_its_documents(lender: Lender) -> None:
    with lender.lend() as first:
        add(first["tasks"], [document(T0)])
        first["control"].insert_one({"n": 1})
    with lender.lend() as second:
        assert second == first
        found = {name: second[name].distinct("_id") for name in second.list_collection_names()}
        assert {name: ids for name, ids in found.items() if ids} == {"control": ["tidemill"]}  # our mark
        assert indexes.find_missing(second) == ()


def test_two_at_once_are_two(lender: Lender) -> None:
    with lender.lend() as first, lender.lend() as second:
        assert first != second


@pytest.mark.parametrize("change", CHANGES)
def test_one_that_was_changed_is_not_lent_again(lender: Lender, change: str) -> None:
    with lender.lend() as first:
        CHANGES[change](first)
    with lender.lend() as second:
        assert second != first
        assert indexes.find_missing(second) == ()


def test_nor_is_one_that_a_thread_may_still_write_to(lender: Lender) -> None:
    gate = threading.Event()
    with lender.lend() as first:
        thread = threading.Thread(target=gate.wait, args=(60,))
        thread.start()
    with lender.lend() as second:
        assert second != first
    gate.set()
    thread.join()


def test_nor_one_in_which_the_server_is_still_at_work(lender: Lender, client: MongoClient[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread was there before
        with lender.lend() as first:
            first["tasks"].insert_one({})
            asked = pool.submit(first["tasks"].find_one, {"$where": "sleep(10000) || true"})
            assert eventually(lambda: bool(at_work(first)))
        with lender.lend() as second:
            assert second != first
        [operation] = at_work(first)
        client.admin.command("killOp", op=operation)
        with pytest.raises(OperationFailure):
            asked.result()


def at_work(db: Database[Any]) -> list[int]:
    """What the server is doing in *db*."""
    found = db.client.admin.command({"currentOp": 1, "active": True, "command.$db": db.name})
    return [one["opid"] for one in found["inprog"]]


def test_nor_one_with_an_open_transaction(lender: Lender, client: MongoClient[dict[str, Any]]) -> None:
    with client.start_session() as session:
        with lender.lend() as first:
            session.start_transaction()
            first["tasks"].insert_one({}, session=session)
        with lender.lend() as second:
            assert second != first
