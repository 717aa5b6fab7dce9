"""Processes that are kept warm: what they made once they use again, and what they believed they look up again."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.features.execute.containers import Container, wired
from tests.handlers import wire
from tests.handlers.calls import request, sample
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)
HOUR_SEC = 3600.0
FUNCTIONS = ("enqueue", "execute", "reclaim", "archive", "operate")
NO_LINGER = {"LINGER_SEC": "0"}
EVENTS: dict[str, Any] = {
    "enqueue": request(body={"name": "noop", "payload": {}}),
    "operate": sample("operate_queue_list"),
}
OPEN_TO_HTTP = {"_id": "noop", "http": True}
REMEMBERED = """
from pathlib import Path
from tidemill import task

with Path(__file__).with_name("imports").open("a") as file:
    file.write("once ")

@task("remembered")
def remembered(payload):
    return None
"""


def a_container(function: str, uri: str, db: Database[Any], **more: str) -> Container:
    return Container(function, uri=uri, database=db.name, **NO_LINGER, **more)


def call(container: Container, function: str) -> bool:
    """Invoke it; true where it did its work."""
    outcome = container.call(EVENTS.get(function))
    if outcome.raised is not None:
        assert outcome.raised == "UnavailableError"
        return False
    if function == "operate":
        return "queues" in outcome.returned
    return function != "enqueue" or outcome.returned["statusCode"] == 202


@pytest.mark.parametrize("function", FUNCTIONS)
def test_fifty_calls_need_the_connections_of_one_client(  # F90
    mongod: Mongod, db: Database[Any], function: str
) -> None:
    db["task_types"].insert_one(OPEN_TO_HTTP)
    with wired(mongod.uri) as line, a_container(function, line.uri, db) as container:
        for n in range(50):
            db["tasks"].insert_one(document(LONG_AGO, payload={"n": n}))
            assert call(container, function)

        assert line.accepted <= 4  # for the work, and to watch the server


def test_task_modules_are_imported_once_and_their_types_written_once(
    mongod: Mongod, db: Database[Any], tmp_path: Path
) -> None:
    package = tmp_path / "tasks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "remembering.py").write_text(REMEMBERED)
    with a_container("execute", mongod.uri, db, path=str(tmp_path)) as container:
        for n in range(5):
            db["tasks"].insert_one(document(LONG_AGO, name="remembered"))
            assert container.done()["done"] == 1
            if n == 0:
                db["task_types"].delete_many({})

    assert (package / "imports").read_text() == "once "
    assert db["task_types"].count_documents({}) == 0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_connections_that_were_cut_while_it_was_frozen_are_opened_again_within_the_call(
    mongod: Mongod, db: Database[Any], function: str
) -> None:  # F90
    db["task_types"].insert_one(OPEN_TO_HTTP)
    with wired(mongod.uri) as line, a_container(function, line.uri, db) as container:
        assert call(container, function)
        for _ in range(3):
            with container.frozen():
                line.cut()
            assert call(container, function)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_connections_that_died_in_silence_while_it_was_frozen_are_replaced_within_the_call(
    mongod: Mongod, db: Database[Any], function: str
) -> None:  # F90
    db["task_types"].insert_one(OPEN_TO_HTTP)
    with wired(mongod.uri) as line, a_container(function, line.uri, db) as container:
        assert call(container, function)
        line.forget()
        container.thaw(frozen_sec=HOUR_SEC, monotonic_goes_on=True)

        assert call(container, function)


def test_a_server_that_is_away_is_an_error_in_seconds_and_is_found_again(  # F90
    mongod: Mongod, db: Database[Any]
) -> None:
    def outage(function: str) -> list[bool]:
        with wired(mongod.uri) as line, wire.nobody() as address, a_container(function, line.uri, db) as container:
            told = [call(container, function)]
            line.reroute(f"mongodb://{address}")
            line.cut()
            started = time.monotonic()
            told.append(call(container, function))
            assert time.monotonic() - started < 20
            line.reroute(mongod.uri)
            return [*told, call(container, function), call(container, function)]

    db["task_types"].insert_one(OPEN_TO_HTTP)
    with ThreadPoolExecutor(len(FUNCTIONS)) as pool:
        told = list(pool.map(outage, FUNCTIONS))

    assert told == [[True, False, True, True]] * len(FUNCTIONS)


@pytest.mark.parametrize("monotonic_goes_on", [False, True])
def test_an_hour_frozen_it_tells_the_servers_time(
    mongod: Mongod, db: Database[Any], *, monotonic_goes_on: bool
) -> None:
    with a_container("execute", mongod.uri, db) as container:
        container.done()
        container.thaw(frozen_sec=HOUR_SEC, monotonic_goes_on=monotonic_goes_on)
        db["tasks"].insert_one(document(LONG_AGO))

        assert container.done()["done"] == 1

    [task] = db["tasks"].find()
    assert abs(task["finished_at"] - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("monotonic_goes_on", [False, True])
def test_what_an_operator_chose_while_it_was_frozen_holds_for_the_next_call(
    mongod: Mongod, db: Database[Any], *, monotonic_goes_on: bool
) -> None:
    with a_container("execute", mongod.uri, db) as container:
        db["tasks"].insert_one(document(LONG_AGO))
        assert container.done()["done"] == 1
        db["queues"].insert_one({"_id": "default", "paused": True})
        db["tasks"].insert_one(document(LONG_AGO))
        container.thaw(frozen_sec=HOUR_SEC, monotonic_goes_on=monotonic_goes_on)

        assert container.done()["claimed"] == 0


@pytest.mark.parametrize("monotonic_goes_on", [False, True])
def test_what_was_declared_while_it_was_frozen_holds_for_the_next_call(
    mongod: Mongod, db: Database[Any], *, monotonic_goes_on: bool
) -> None:
    db["task_types"].insert_one(OPEN_TO_HTTP)
    with a_container("enqueue", mongod.uri, db) as front:
        assert call(front, "enqueue")
        db["task_types"].update_one({"_id": "noop"}, {"$set": {"http": False}})
        front.thaw(frozen_sec=HOUR_SEC, monotonic_goes_on=monotonic_goes_on)

        assert front.done(EVENTS["enqueue"])["statusCode"] == 422


@pytest.mark.parametrize("monotonic_goes_on", [False, True])
def test_reclaim_goes_by_the_policies_that_hold_when_it_is_thawed(
    mongod: Mongod, db: Database[Any], *, monotonic_goes_on: bool
) -> None:
    over = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    lost = {"status": "processing", "attempts": 1, "crashes": 1, "lease": over}
    db["task_types"].insert_one({"_id": "noop", "max_retries": 5})
    with a_container("reclaim", mongod.uri, db) as container:
        db["tasks"].insert_one(document(LONG_AGO, **lost))
        assert container.done()["failed"] == 0
        db["task_types"].update_one({"_id": "noop"}, {"$set": {"max_retries": 0}})
        container.thaw(frozen_sec=HOUR_SEC, monotonic_goes_on=monotonic_goes_on)
        db["tasks"].insert_one(document(LONG_AGO, **lost))

        assert container.done()["failed"] == 1


def test_a_dead_executor_is_not_waited_for_by_a_warm_reclaim(mongod: Mongod, db: Database[Any]) -> None:
    event = sample("execute_failed")
    owner = event["requestContext"]["requestId"]
    with a_container("reclaim", mongod.uri, db) as container:
        for _ in range(2):
            lease = {"token": "t", "owner": owner, "expires_at": datetime.now(UTC) + timedelta(minutes=2)}
            db["tasks"].insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease))
            assert container.done(event)["reclaimed"] == 1
