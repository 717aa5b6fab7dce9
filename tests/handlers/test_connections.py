"""Connections that are lost at the worst moment: nothing is enqueued twice, and the client recovers by itself."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.handlers import wire
from tests.handlers.conftest import Deployed
from tidemill import Queue
from tidemill.testing import Mongod

NOOP = {"name": "noop", "payload": {}}


@pytest.mark.parametrize(("key", "command"), [(None, "insert"), ("order-7", "findAndModify")])
def test_a_reply_that_is_lost_is_one_task(
    deployed: Deployed, mongod: Mongod, db: Database[Any], key: str | None, command: str
) -> None:  # F92
    with wire.proxy(mongod.uri) as proxy:
        deployed.set(MONGODB_URI=proxy.uri)
        deployed.get("0" * 24)
        proxy.lose_reply_of(command)

        answer = deployed.post(NOOP, key=key)

    assert answer.status in {200, 202}
    assert [str(task["_id"]) for task in db.tasks.find()] == [answer.id]


@pytest.mark.parametrize(("key", "command"), [(None, "insert"), ("order-7", "findAndModify")])
def test_a_reply_that_is_lost_to_a_client_without_retries_is_one_task(
    mongod: Mongod, db: Database[Any], key: str | None, command: str
) -> None:  # F92
    with wire.proxy(mongod.uri) as proxy, MongoClient[dict[str, Any]](f"{proxy.uri}&retryWrites=false") as client:
        queue = Queue(client[db.name])
        queue.cancel(queue.enqueue("noop", {}))
        proxy.lose_reply_of(command)

        task_id = queue.enqueue("noop", {}, idempotency_key=key)

    assert [task["_id"] for task in db.tasks.find({"status": "pending"})] == [task_id]


def test_a_cut_connection_is_opened_again(deployed: Deployed, mongod: Mongod) -> None:
    with wire.proxy(mongod.uri) as proxy:
        deployed.set(MONGODB_URI=proxy.uri)
        for _ in range(3):
            proxy.cut()
            assert deployed.post(NOOP).status == 202
        assert len(deployed.clients) == 1
        deployed.cool_down()


def test_a_restarted_server_is_found_again(deployed: Deployed, mongod: Mongod) -> None:  # F90
    with Mongod() as first, wire.proxy(first.uri) as proxy:
        deployed.set(MONGODB_URI=proxy.uri, MONGODB_DATABASE="restarted")
        with MongoClient[dict[str, Any]](mongod.uri) as other:
            for uri in (first.uri, mongod.uri):
                with MongoClient[dict[str, Any]](uri) as client:
                    client["restarted"].task_types.insert_one(
                        {"_id": "noop", "http": True, "package": "tasks", "release": ""}
                    )
            assert deployed.post(NOOP).status == 202
            first.stop()
            proxy.cut()
            deployed.request_budget_sec = 0.3
            assert deployed.post(NOOP).status == 503
            proxy.reroute(mongod.uri)
            deployed.request_budget_sec = None
            assert deployed.post(NOOP).status == 202
            assert other["restarted"].tasks.count_documents({}) == 1
            other.drop_database("restarted")
