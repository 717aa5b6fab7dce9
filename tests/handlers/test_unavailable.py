"""MongoDB away, slow, failing or forbidden: one clear answer in time, and nothing twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.faults import enqueue_failing as failing
from tests.handlers import wire
from tests.handlers.calls import Answer, request
from tests.handlers.conftest import Deployed
from tidemill import Queue, UnavailableError

NOOP = {"name": "noop", "payload": {"card": "4111"}}
PASSWORD = "S3cr3t"
UNREACHABLE = 6  # HostUnreachable: tried again by the driver, which does not doubt the primary for it


def is_unavailable(answer: Answer) -> bool:
    return (answer.status, answer.code, answer.headers.get("Retry-After")) == (503, "unavailable", "5")


@pytest.mark.parametrize(("server", "budget_sec"), [(wire.nobody, 0.5), (wire.silence, None)])
def test_a_server_that_is_away_is_503_within_5_seconds(
    bare: Deployed, server: Any, budget_sec: float | None
) -> None:  # F70
    bare.request_budget_sec = budget_sec  # the tests' time: both wait to the end
    with server() as address:
        bare.set(MONGODB_URI=f"mongodb://user:{PASSWORD}@{address}/db")
        started = time.monotonic()
        answer = bare.post(NOOP, key="order-7")

    assert is_unavailable(answer)
    assert time.monotonic() - started < (budget_sec or 4.0) + 1
    for text in (answer.text, bare.stdout.getvalue()):
        assert not {word for word in (PASSWORD, address, "127.0.0.1", "4111", "order-7") if word in text}
    [line] = bare.log()
    assert (line["level"], line["message"]) == ("WARNING", "unavailable")


def test_a_look_at_a_task_is_503_as_well(bare: Deployed) -> None:  # F70
    bare.request_budget_sec = 0.2
    with wire.nobody() as address:
        bare.set(MONGODB_URI=f"mongodb://{address}/")

        assert is_unavailable(bare.get("0" * 24))


@pytest.mark.parametrize("function", ["execute", "reclaim", "archive"])
def test_the_other_functions_fail_without_naming_the_address(bare: Deployed, function: str) -> None:  # F70, F80
    bare.timeout_ms = 200
    with wire.nobody() as address:
        bare.set(MONGODB_URI=f"mongodb://user:{PASSWORD}@{address}/db")
        with pytest.raises(UnavailableError) as failure:
            bare.invoke(function)

    assert "127.0.0.1" not in str(failure.value)
    assert PASSWORD not in str(failure.value)


def test_python_is_told_in_time_and_without_the_address() -> None:
    with wire.nobody() as address:
        uri = f"mongodb://u:{PASSWORD}@{address}/?timeoutMS=200"
        with MongoClient[dict[str, Any]](uri) as client, pytest.raises(UnavailableError) as failure:
            Queue(client["x"]).enqueue_many([NOOP])

    assert "127.0.0.1" not in str(failure.value)


@pytest.mark.parametrize("key", [None, "order-7"])
@pytest.mark.parametrize(
    "how",
    [
        {"times": 1, "closeConnection": True},
        {"times": 1, "errorCode": UNREACHABLE},
        {"times": 5, "errorCode": UNREACHABLE},
    ],
)
def test_a_write_that_fails_at_first_is_one_task(
    deployed: Deployed, client: MongoClient[Any], db: Database[Any], key: str | None, how: Any
) -> None:
    deployed.get("0" * 24)
    with failing(client, "insert", "findAndModify", **how):
        answer = deployed.post(NOOP, key=key)

    assert answer.status == 202
    assert [str(task["_id"]) for task in db.tasks.find()] == [answer.id]


def test_a_write_that_fails_always_is_503_and_a_repeat_with_its_key_is_one_task(
    deployed: Deployed, client: MongoClient[Any], db: Database[Any]
) -> None:  # F73
    deployed.request_budget_sec = 0.2
    with failing(client, "insert", "findAndModify", errorCode=UNREACHABLE):
        assert is_unavailable(deployed.post(NOOP))
        assert is_unavailable(deployed.post(NOOP, key="order-7"))

    assert deployed.post(NOOP, key="order-7").status in {200, 202}
    assert db.tasks.count_documents({"idempotency_key": {"$gt": ""}}) == 1


@pytest.mark.parametrize("key", [None, "order-7"])
def test_a_write_whose_concern_fails_is_503(deployed: Deployed, client: MongoClient[Any], key: str | None) -> None:
    concern = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out"}
    with failing(client, "insert", "findAndModify", writeConcernError=concern):
        assert is_unavailable(deployed.post(NOOP, key=key))


def test_a_slow_server_is_503_within_the_patience(deployed: Deployed, client: MongoClient[Any]) -> None:
    deployed.get("0" * 24)
    deployed.request_budget_sec = 0.3
    with failing(client, "insert", times=5, blockConnection=True, blockTimeMS=800):
        started = time.monotonic()
        assert is_unavailable(deployed.post(NOOP))
        assert time.monotonic() - started < 0.7


def test_a_user_without_rights_is_503_and_the_log_says_so(deployed: Deployed, client: MongoClient[Any]) -> None:
    with failing(client, "insert", times=1, errorCode=13):
        answer = deployed.post(NOOP)

    assert (answer.status, answer.code) == (503, "misconfigured")
    assert "Unauthorized" in deployed.log()[-1]["reason"]


def test_a_batch_is_503_too_and_says_when_to_come_back(bare: Deployed) -> None:
    bare.request_budget_sec = 0.3
    bare.set(MONGODB_URI="mongodb://user:S3cr3t@127.0.0.1:1/", MONGODB_DATABASE="x")

    answer = bare.http(request("POST", "/tasks/batch", body={"tasks": [{"name": "noop", "payload": {}}]}))

    assert is_unavailable(answer)
    assert "S3cr3t" not in answer.text + bare.stdout.getvalue()
