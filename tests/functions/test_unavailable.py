"""MongoDB away, slow, restarted, half-way cut, or without its indexes: one clear answer, and nothing twice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.functions import wire
from tests.functions.calls import Answer, app
from tests.functions.conftest import Deployed
from tidemill import Queue, UnavailableError, control, indexes
from tidemill.testing import Mongod

NOOP = {"name": "noop", "payload": {"card": "4111"}}
PASSWORD = "S3cr3t"
UNREACHABLE = 6  # HostUnreachable: tried again by the driver, which does not doubt the primary for it


@contextlib.contextmanager
def failing(client: MongoClient[Any], *commands: str, times: int, **how: Any) -> Iterator[None]:
    """The server fails the first *times* of these commands that enqueue sends."""
    data = {"failCommands": list(commands), "appName": "tidemill-enqueue"} | how
    client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


def is_unavailable(answer: Answer) -> bool:
    return (answer.status, answer.code, answer.headers.get("Retry-After")) == (503, "unavailable", "5")


@pytest.mark.parametrize("server", [wire.nobody, wire.silence])
def test_a_server_that_is_away_is_503_within_5_seconds(bare: Deployed, server: Any) -> None:
    with server() as address:
        bare.set(MONGODB_URI=f"mongodb://user:{PASSWORD}@{address}/db")
        started = time.monotonic()
        answer = bare.post(NOOP, key="order-7")

    assert is_unavailable(answer)
    assert time.monotonic() - started < 5
    for text in (answer.text, bare.stdout.getvalue()):
        assert not {word for word in (PASSWORD, address, "127.0.0.1", "4111", "order-7") if word in text}
    [line] = bare.log()
    assert (line["level"], line["message"]) == ("WARNING", "unavailable")


@pytest.mark.parametrize("method", ["get", "delete"])
def test_a_look_at_a_task_is_503_as_well(bare: Deployed, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(app("enqueue"), "PATIENCE_SEC", 0.2)
    with wire.nobody() as address:
        bare.set(MONGODB_URI=f"mongodb://{address}/")

        assert is_unavailable(getattr(bare, method)("0" * 24))


@pytest.mark.parametrize("function", ["execute", "reclaim", "archive"])
def test_the_other_functions_fail_without_naming_the_address(
    bare: Deployed, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setattr("pymongo.MongoClient", impatient(bare))
    with wire.nobody() as address:
        bare.set(MONGODB_URI=f"mongodb://user:{PASSWORD}@{address}/db")
        with pytest.raises(UnavailableError) as failure:
            bare.invoke(function)

    assert "127.0.0.1" not in str(failure.value)
    assert PASSWORD not in str(failure.value)


def impatient(bare: Deployed) -> Any:
    import pymongo

    make = pymongo.MongoClient
    return lambda *args, **options: make(*args, **options | {"timeoutMS": 200, "serverSelectionTimeoutMS": 100})


def test_python_is_told_in_time_and_without_the_address() -> None:
    with (
        wire.nobody() as address,
        MongoClient[dict[str, Any]](f"mongodb://u:{PASSWORD}@{address}/", serverSelectionTimeoutMS=100) as client,
    ):
        queue = Queue(client["x"])
        for call in (
            lambda: queue.enqueue("noop", {}),
            lambda: queue.enqueue_many([NOOP]),
            lambda: queue.get(1),
            lambda: queue.cancel(1),
        ):
            with pytest.raises(UnavailableError) as failure:
                call()
            assert "127.0.0.1" not in str(failure.value)


@pytest.mark.parametrize("key", [None, "order-7"])
@pytest.mark.parametrize(
    ("times", "how"), [(1, {"closeConnection": True}), (2, {"closeConnection": True}), (1, {"errorCode": UNREACHABLE})]
)
def test_a_write_that_fails_once_or_twice_is_one_task(
    deployed: Deployed, client: MongoClient[Any], db: Database[Any], key: str | None, times: int, how: Any
) -> None:
    deployed.get("0" * 24)
    with failing(client, "insert", "findAndModify", times=times, **how):
        answer = deployed.post(NOOP, key=key)

    assert answer.status == 202
    assert [str(task["_id"]) for task in db.tasks.find()] == [answer.id]


@pytest.mark.parametrize("key", [None, "order-7"])
def test_a_write_that_fails_always_is_503_and_a_repeat_is_one_task(
    deployed: Deployed, client: MongoClient[Any], db: Database[Any], key: str | None
) -> None:
    with failing(client, "insert", "findAndModify", times=50, errorCode=UNREACHABLE):
        assert is_unavailable(deployed.post(NOOP, key=key))

    assert deployed.post(NOOP, key=key).status == 202
    assert db.tasks.count_documents({}) == 1


@pytest.mark.parametrize("key", [None, "order-7"])
def test_a_write_whose_concern_fails_is_503(
    deployed: Deployed, client: MongoClient[Any], db: Database[Any], key: str | None
) -> None:
    concern = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out"}
    with failing(client, "insert", "findAndModify", times=50, writeConcernError=concern):
        assert is_unavailable(deployed.post(NOOP, key=key))


def test_a_slow_server_is_503_within_the_patience(
    deployed: Deployed, client: MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.get("0" * 24)
    monkeypatch.setattr(app("enqueue"), "PATIENCE_SEC", 0.3)
    with failing(client, "insert", times=5, blockConnection=True, blockTimeMS=1500):
        started = time.monotonic()
        assert is_unavailable(deployed.post(NOOP))
        assert time.monotonic() - started < 1


@pytest.mark.parametrize(("key", "command"), [(None, "insert"), ("order-7", "findAndModify")])
def test_a_reply_that_is_lost_is_one_task(
    deployed: Deployed, mongod: Mongod, db: Database[Any], key: str | None, command: str
) -> None:
    with wire.proxy(mongod.uri) as proxy:
        deployed.set(MONGODB_URI=f"{proxy.uri}&retryWrites=false")
        deployed.get("0" * 24)
        proxy.lose_reply_of(command)

        answer = deployed.post(NOOP, key=key)

    assert answer.status in {200, 202}
    assert [str(task["_id"]) for task in db.tasks.find()] == [answer.id]


def test_a_cut_connection_is_opened_again(deployed: Deployed, mongod: Mongod) -> None:
    with wire.proxy(mongod.uri) as proxy:
        deployed.set(MONGODB_URI=proxy.uri)
        for _ in range(3):
            assert deployed.post(NOOP).status == 202
            proxy.cut()
    assert len(deployed.clients) == 1


def test_a_restarted_server_is_found_again(deployed: Deployed, mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    with Mongod() as first, wire.proxy(first.uri) as proxy:
        deployed.set(MONGODB_URI=proxy.uri, MONGODB_DATABASE="restarted")
        with MongoClient[dict[str, Any]](mongod.uri) as other:
            for uri in (first.uri, mongod.uri):
                with MongoClient[dict[str, Any]](uri) as client:
                    client["restarted"].task_types.insert_one({"_id": "noop", "http": True})
            assert deployed.post(NOOP).status == 202
            first.stop()
            proxy.cut()
            monkeypatch.setattr(app("enqueue"), "PATIENCE_SEC", 0.3)
            assert is_unavailable(deployed.post(NOOP))
            proxy.reroute(mongod.uri)
            monkeypatch.setattr(app("enqueue"), "PATIENCE_SEC", 4.0)
            assert deployed.post(NOOP).status == 202
            assert other["restarted"].tasks.count_documents({}) == 1
            other.drop_database("restarted")


def test_without_its_index_a_keyed_enqueue_says_what_to_run(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.drop_indexes()

    answer = deployed.post(NOOP, key="order-7")

    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    [line] = deployed.log()
    assert "`tidemill indexes`" in line["reason"]
    assert db.tasks.count_documents({}) == 0
    assert deployed.post(NOOP).status == 202


def test_reclaim_makes_the_indexes_of_an_empty_database(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.drop()
    db.tasks_dlq.drop()
    assert deployed.post(NOOP, key="order-7").status == 503

    assert deployed.invoke("reclaim")["missing_indexes"] == []

    assert indexes.missing(db) == ()
    assert deployed.post(NOOP, key="order-7").status == 202


def test_reclaim_reports_the_indexes_of_a_large_database_until_they_are_made(
    deployed: Deployed, db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.post(NOOP)
    monkeypatch.setattr(indexes, "SMALL", 0)
    db.tasks.drop_index("key")

    assert [deployed.invoke("reclaim")["missing_indexes"] for _ in range(2)] == [["key"], ["key"]]
    assert deployed.log()[-1]["missing_indexes"] == ["key"]

    indexes.create(db, retention=timedelta(days=7))
    deployed.commands()
    assert deployed.invoke("reclaim")["missing_indexes"] == []
    deployed.commands()
    deployed.invoke("reclaim")
    assert "listIndexes" not in {name for name, _ in deployed.commands()}


def test_an_unexpected_error_is_500_in_our_shape_and_logged_without_its_text(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("payload 4111")

    monkeypatch.setattr(control.Directory, "task_type", broken)

    answer = deployed.post(NOOP)

    assert (answer.status, answer.code) == (500, "internal")
    [line] = deployed.log()
    assert (line["level"], line["error_type"]) == ("ERROR", "RuntimeError")
    assert "in broken" in line["stack"]
    assert "4111" not in answer.text + deployed.stdout.getvalue().replace('RuntimeError(\\"payload 4111\\")', "")


def test_a_user_without_rights_is_500_and_the_log_has_the_code(deployed: Deployed, client: MongoClient[Any]) -> None:
    with failing(client, "insert", times=1, errorCode=13):
        assert deployed.post(NOOP).status == 500
    assert deployed.log()[-1]["error_code"] == 13
