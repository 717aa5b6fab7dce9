"""New tasks: inserted once, whatever becomes of the reply."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.builders import add, document, stored
from tests.faults import failing
from tidemill import MissingIndexError, Queue, UnavailableError
from tidemill.errors import RefusedError
from tidemill.store import writes
from tidemill.store.connection import Tasks
from tidemill.store.writes import has_transactions
from tidemill.testing import Mongod


@pytest.mark.parametrize("how", [{"closeConnection": True}, {"errorCode": 10107}])
def test_an_insert_that_fails_once_is_one_task(tasks: Tasks, mine: Tasks, now: datetime, how: dict[str, Any]) -> None:
    with failing(mine, "insert", **how):
        writes.insert_task(mine, document(now))

    assert tasks.count_documents({}) == 1


def test_an_insert_whose_confirmation_is_lost_is_an_error_and_a_repeat_of_it_one_task(
    tasks: Tasks, mine: Tasks, now: datetime
) -> None:
    wanted = document(now)
    unconfirmed = {"code": 64, "errmsg": "waiting for replication timed out"}

    with failing(mine, "insert", writeConcernError=unconfirmed), pytest.raises(UnavailableError):
        writes.insert_task(mine, wanted)

    assert tasks.count_documents({}) == 1


def test_an_insert_that_keeps_failing_is_unavailable(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    with failing(mine, "insert", times=10, closeConnection=True), pytest.raises(UnavailableError):
        writes.insert_task(mine, document(now))

    assert tasks.count_documents({}) == 0


def test_a_key_gives_the_task_that_holds_it_and_changes_nothing(tasks: Tasks, now: datetime) -> None:
    first = writes.insert_once(tasks, document(now, idempotency_key="k", payload={"n": 1}))
    second = writes.insert_once(tasks, document(now, idempotency_key="k", payload={"n": 2}, priority=9))

    assert first["_id"] == second["_id"]
    assert tasks.count_documents({}) == 1
    assert dict(second["payload"]) == {"n": 1}


def test_where_mongodb_minds_names_in_payloads_a_key_is_held_by_a_plain_insert(
    tasks: Tasks, mine: Tasks, now: datetime
) -> None:
    add(tasks, [document(now, idempotency_key="another")])
    wanted = document(now, idempotency_key="k", payload={"$x": 1})
    with failing(mine, "findAndModify", errorCode=52):
        first = writes.insert_once(mine, wanted)
    with failing(mine, "findAndModify", errorCode=52):
        second = writes.insert_once(mine, document(now, idempotency_key="k", payload={"$x": 2}))
    with failing(mine, "findAndModify", errorCode=121), pytest.raises(RefusedError):
        writes.insert_once(mine, document(now, idempotency_key="k2"))

    assert (first["_id"], dict(first["payload"])) == (wanted["_id"], {"$x": 1})
    assert second["_id"] == wanted["_id"]
    assert tasks.count_documents({}) == 2


def test_twenty_at_once_with_one_key_are_one_task(tasks: Tasks, now: datetime) -> None:
    with ThreadPoolExecutor(20) as pool:
        ids = list(pool.map(lambda _: writes.insert_once(tasks, document(now, idempotency_key="k"))["_id"], range(20)))

    assert len(set(ids)) == 1
    assert tasks.count_documents({}) == 1


def test_a_keyed_insert_that_fails_once_is_one_task(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    with failing(mine, "findAndModify", closeConnection=True):
        writes.insert_once(mine, document(now, idempotency_key="k"))

    assert tasks.count_documents({}) == 1


def test_payloads_with_operators_and_dots_in_their_keys_are_stored_as_they_are(tasks: Tasks, now: datetime) -> None:
    payload = {"user.email": "a", "$gt": "", "a": {"$where": "1"}, "": 1}

    found = writes.insert_once(tasks, document(now, idempotency_key="k", payload=payload))

    assert stored(tasks, found["_id"])["payload"] == payload


def test_without_its_index_a_key_is_refused(tasks: Tasks, now: datetime) -> None:
    tasks.drop_index("key")

    with pytest.raises(MissingIndexError, match="tidemill indexes"):
        writes.insert_once(tasks, document(now, idempotency_key="k"))


def test_tasks_without_a_key_do_not_share_one(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, idempotency_key=None), document(now, idempotency_key=None), document(now)])

    assert tasks.count_documents({}) == 3


def test_in_a_transaction_the_drivers_errors_come_through_but_for_a_missing_index(
    tasks: Tasks, mine: Tasks, now: datetime
) -> None:
    wanted = document(now, idempotency_key="k")
    with mine.database.client.start_session() as session:
        session.start_transaction()
        with failing(mine, "findAndModify", errorCode=112), pytest.raises(OperationFailure) as conflict:
            writes.insert_once(mine, wanted, session=session)
        session.abort_transaction()
        tasks.drop_index("key")
        session.start_transaction()
        with pytest.raises(MissingIndexError):
            writes.insert_once(mine, wanted, session=session)

    assert conflict.value.has_error_label("TransientTransactionError")


def test_a_keyed_insert_whose_reply_is_lost_twice_is_tried_once_more(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    with failing(mine, "findAndModify", times=2, closeConnection=True):  # the driver itself repeats once
        writes.insert_once(mine, document(now, idempotency_key="k"))

    assert tasks.count_documents({}) == 1


def test_an_insert_whose_reply_is_lost_twice_is_tried_once_more(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    with failing(mine, "insert", times=2, closeConnection=True):
        writes.insert_task(mine, document(now))

    assert tasks.count_documents({}) == 1


def test_whether_a_server_has_transactions_is_asked_where_it_was_never_reached(mongod: Mongod) -> None:
    with Mongod(standalone=True) as alone:
        for uri, has_them in ((mongod.uri, True), (alone.uri, False)):
            with MongoClient[dict[str, Any]](uri) as fresh:
                assert has_transactions(fresh["x"]) == has_them


def test_a_transaction_is_given_up_where_another_one_stays_in_its_way(
    tasks: Tasks, client: MongoClient[Any], now: datetime
) -> None:
    wanted = [document(now, idempotency_key="k")]

    def insert(session: ClientSession) -> None:
        writes.insert_all(tasks, wanted, session=session)

    with client.start_session() as session:
        session.start_transaction()
        insert(session)
        started = time.monotonic()

        with pytest.raises(UnavailableError):
            writes.run_in_transaction(tasks.database, insert, timeout_sec=0.5)

        assert time.monotonic() - started < 5
        session.abort_transaction()
    assert tasks.count_documents({}) == 0
    writes.run_in_transaction(tasks.database, insert)
    assert tasks.count_documents({}) == 1


def test_what_a_transaction_of_its_own_refuses_leaves_nothing(db: Database[Any]) -> None:
    db.command("collMod", "tasks", validator={"payload.n": {"$ne": 1}})

    with pytest.raises(RefusedError):
        Queue(db).enqueue_many({"name": "noop", "payload": {"n": n}} for n in range(3))

    assert db.tasks.count_documents({}) == 0


def test_in_order_what_an_earlier_try_has_inserted_counts_and_the_rest_follows(tasks: Tasks, now: datetime) -> None:
    documents = [document(now) for _ in range(5)]
    add(tasks, [*documents[:2], document(now)])

    assert writes.insert_in_order(tasks, documents) == 5
    assert tasks.count_documents({"_id": {"$in": [wanted["_id"] for wanted in documents]}}) == 5
    assert tasks.count_documents({}) == 6
