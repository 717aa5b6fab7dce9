"""The driver's errors in our words: no address, no value."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import ConfigurationError, OperationFailure

from tests.builders import document
from tests.faults import failing
from tidemill import Queue, TidemillError, UnavailableError
from tidemill.errors import CredentialsError, RefusedError
from tidemill.store import tasks, writes
from tidemill.store.connection import Tasks, open_tasks, translate_errors


def test_what_the_database_refuses_is_told_without_what_was_to_be_written(
    db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    db.command("collMod", "tasks", validator={"payload.password": {"$exists": False}})
    wanted = document(now, payload={"password": "s3cret"}, idempotency_key="order-s3cret")

    with pytest.raises(RefusedError) as plain:
        writes.insert_task(tasks, wanted)
    with pytest.raises(RefusedError) as keyed:
        writes.insert_once(tasks, wanted)

    for refused in (plain.value, keyed.value):
        assert refused.code in {"DocumentValidationFailure", "121"}
        assert "s3cret" not in str(refused)
        assert refused.__cause__ is None


def test_what_is_too_large_for_any_command_is_a_refusal(tasks: Tasks) -> None:
    with pytest.raises(RefusedError, match="DocumentTooLarge"), translate_errors():
        tasks.update_one({"_id": 1}, {"$set": {"result": "x" * 17_000_000}})


def test_a_right_that_is_missing_is_a_refusal(mine: Tasks) -> None:
    with failing(mine, "find", errorCode=13), pytest.raises(RefusedError, match="Unauthorized"):
        tasks.get(mine, 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, "Authentication failed."),
        (8000, "bad auth : authentication failed"),
        (13, "command find requires authentication"),  # the user of an open connection was dropped
    ],
)
def test_whom_mongodb_does_not_know_is_told_so(code: int, words: str) -> None:
    with pytest.raises(CredentialsError), translate_errors():
        raise OperationFailure(words, code)


@pytest.mark.parametrize(
    ("code", "words"),
    [(13, "not authorized on app to execute command { find: 1 }"), (8000, "user is not allowed to do action [auth]")],
)
def test_who_is_known_but_has_no_right_is_no_stranger(code: int, words: str) -> None:
    with pytest.raises(RefusedError) as refused, translate_errors():
        raise OperationFailure(words, code)

    assert not isinstance(refused.value, CredentialsError)


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (13, 'not authorized on app to execute command { insert: "tasks", "s3cret" }', ("insert", "readWrite")),
        (13, 'not authorized on app to execute command { collMod: "tasks" }', ("collMod", "dbAdmin")),
        (8000, "user is not allowed to do action [find] on [app.tasks]", ("find", "readWrite")),
    ],
)  # fmt: skip
def test_a_missing_right_names_database_command_and_role(code: int, words: str, told: tuple[str, str]) -> None:  # N25
    with pytest.raises(RefusedError) as refused, translate_errors():
        raise OperationFailure(words, code)

    assert str(refused.value) == (
        f"MongoDB refuses the operation (Unauthorized): its user may not {told[0]} in the database app; "
        f"give it the role {told[1]} there"
    )


@pytest.mark.parametrize("code", [6, 7, 24, 64, 89, 91, 112, 189, 262, 9001, 10107, 11600, 11601, 11602, 13435, 13436])
def test_what_passes_is_unavailable(mine: Tasks, code: int) -> None:
    with failing(mine, "find", times=3, errorCode=code), pytest.raises(UnavailableError):
        tasks.get(mine, 1)


def test_a_time_limit_of_mongodb_is_told_as_such(mine: Tasks) -> None:
    with failing(mine, "find", times=3, errorCode=50), pytest.raises(UnavailableError, match="not answer in time"):
        tasks.get(mine, 1)


def test_a_command_that_is_too_late_to_be_sent_is_told_as_such(mine: Tasks) -> None:
    tasks.get(mine, 1)

    with pymongo.timeout(1e-9), pytest.raises(UnavailableError, match="not answer in time"):
        tasks.get(mine, 1)


def test_a_member_that_was_starting_when_it_was_connected_to_is_unavailable(mine: Tasks) -> None:
    requests = [{"name": "noop", "payload": {}}]
    queue = Queue(mine.database)
    queue.enqueue_many(requests)
    for server in mine.database.client._topology._servers.values():
        for connection in server.pool.conns:
            connection.supports_sessions = False  # so it says of itself until it is primary or secondary

    with pytest.raises(UnavailableError, match="starting"):
        queue.enqueue_many(requests)


def test_what_is_configured_wrongly_is_not_taken_for_that() -> None:
    with pytest.raises(ConfigurationError), translate_errors():
        raise ConfigurationError("Server at 10.0.0.7 reports wire version 2")


def test_a_server_that_is_not_there_is_unavailable_and_its_address_is_not_told() -> None:
    uri = "mongodb://user:s3cret@127.0.0.1:9/?serverSelectionTimeoutMS=50"
    with MongoClient[dict[str, Any]](uri) as client, pytest.raises(TidemillError) as unavailable:
        tasks.get(open_tasks(client["app"]), 1)

    assert isinstance(unavailable.value, UnavailableError)
    assert not {"s3cret", "127.0.0.1", "user"} & set(str(unavailable.value).replace(":", " ").split())
