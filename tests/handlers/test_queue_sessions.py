"""Tasks that are enqueued in a transaction of the caller: they exist once that commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database

from tidemill import DuplicateKeyError, InvalidRequestError, Queue, indexes
from tidemill.testing import Mongod

WAYS = ("enqueue", "keyed", "many", "many keyed")


@pytest.fixture
def queue(db: Database[Any]) -> Queue:
    return Queue(db)


@pytest.fixture
def session(client: MongoClient[Any]) -> Iterator[ClientSession]:
    with client.start_session() as session:
        yield session


def enqueue(queue: Queue, way: str, session: ClientSession) -> None:
    if way.startswith("many"):
        keys = [{"idempotency_key": f"k-{n}"} if way == "many keyed" else {} for n in range(3)]
        queue.enqueue_many([{"name": "send", "payload": {"n": n}} | key for n, key in enumerate(keys)], session=session)
    else:
        queue.enqueue("send", {}, idempotency_key="k" if way == "keyed" else None, session=session)


@pytest.mark.parametrize("way", WAYS)
def test_a_task_exists_once_the_transaction_commits(
    queue: Queue, db: Database[Any], session: ClientSession, way: str
) -> None:
    with session.start_transaction():
        db.orders.insert_one({"_id": 7}, session=session)
        enqueue(queue, way, session)
        assert db.tasks.count_documents({}) == 0

    assert db.tasks.count_documents({}) == (3 if way.startswith("many") else 1)
    assert db.orders.count_documents({}) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_task_never_existed_if_the_transaction_aborts(
    queue: Queue, db: Database[Any], session: ClientSession, way: str
) -> None:
    session.start_transaction()
    enqueue(queue, way, session)
    session.abort_transaction()

    assert db.tasks.count_documents({}) == 0
    assert queue.enqueue("send", {}, idempotency_key="k") is not None


def test_a_known_key_aborts_no_transaction(queue: Queue, db: Database[Any], session: ClientSession) -> None:
    first = queue.enqueue("send", {"a": 1}, idempotency_key="k")

    with session.start_transaction():
        db.orders.insert_one({"_id": 7}, session=session)
        assert queue.enqueue("send", {"a": 1}, idempotency_key="k", session=session) == first
        with pytest.raises(DuplicateKeyError):
            queue.enqueue("send", {"a": 2}, idempotency_key="k", session=session)
        with pytest.raises(InvalidRequestError):
            queue.enqueue("no name", {}, session=session)
        db.orders.insert_one({"_id": 8}, session=session)

    assert db.orders.count_documents({}) == 2
    assert db.tasks.count_documents({}) == 1


def test_a_key_used_twice_in_a_transaction_is_one_task(queue: Queue, db: Database[Any], session: ClientSession) -> None:
    with session.start_transaction():
        ids = {queue.enqueue("send", {}, idempotency_key="k", session=session) for _ in range(2)}

    assert len(ids) == db.tasks.count_documents({}) == 1


def test_a_transaction_that_conflicts_is_run_again_by_the_driver(
    queue: Queue, db: Database[Any], client: MongoClient[Any], session: ClientSession
) -> None:
    session.start_transaction()
    first = queue.enqueue("send", {}, idempotency_key="k", session=session)
    commit = threading.Timer(0.1, session.commit_transaction)
    commit.start()

    try:
        with client.start_session() as other:
            second = other.with_transaction(lambda own: queue.enqueue("send", {}, idempotency_key="k", session=own))
    finally:
        commit.join()

    assert second == first
    assert db.tasks.count_documents({}) == 1


def test_a_standalone_server_takes_tasks_without_transactions() -> None:
    with Mongod(standalone=True) as server, MongoClient[dict[str, Any]](server.uri) as client:
        indexes.create(client["x"])
        queue = Queue(client["x"])

        ids = [queue.enqueue("send", {}), *(queue.enqueue("send", {}, idempotency_key="k") for _ in range(2))]

        assert len(set(ids)) == client["x"].tasks.count_documents({}) == 2


def test_keys_that_are_taken_do_not_abort_the_callers_transaction(
    queue: Queue, db: Database[Any], session: ClientSession
) -> None:
    first = queue.enqueue("send", {}, idempotency_key="k")

    with session.start_transaction():
        db.orders.insert_one({"_id": 7}, session=session)
        again, new = queue.enqueue_many(
            [{"name": "send", "payload": {}, "idempotency_key": key} for key in ("k", "new")], session=session
        )
        with pytest.raises(DuplicateKeyError) as conflict:
            queue.enqueue_many([{"name": "send", "payload": {"n": 1}, "idempotency_key": "k"}], session=session)

    assert (again, conflict.value.task_id) == (first, first)
    assert [one.field for one in conflict.value.problems] == ["0.idempotency_key"]
    assert {task["_id"] for task in db.tasks.find()} == {first, new}
    assert db.orders.count_documents({}) == 1


def test_a_key_that_another_transaction_takes_meanwhile_repeats_the_callers(
    queue: Queue, db: Database[Any], session: ClientSession
) -> None:
    wanted = [{"name": "send", "payload": {}, "idempotency_key": "k"}]
    others: list[object] = []

    def work(own: ClientSession) -> list[object]:
        db.orders.find_one({}, session=own)  # the transaction begins, and sees nothing of what follows
        if not others:
            others.extend(queue.enqueue_many(wanted))
        return queue.enqueue_many(wanted, session=own)

    assert session.with_transaction(work) == others
    assert db.tasks.count_documents({}) == 1


def test_more_than_a_thousand_are_stored_a_thousand_at_a_time(queue: Queue, db: Database[Any]) -> None:
    ids = queue.enqueue_many({"name": "send", "payload": {"n": n}} for n in range(2001))

    assert [task["_id"] for task in db.tasks.find().sort("payload.n", 1)] == ids
    assert len(ids) == 2001
