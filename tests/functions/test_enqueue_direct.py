"""Direct invocations of enqueue: the body of a request, by whoever IAM lets; repeated by Lambda, stored once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pymongo.database import Database

from tests.functions.calls import app, sample
from tests.functions.conftest import Deployed
from tests.functions.lambda_api import FakeLambda
from tidemill import DuplicateKeyError, InvalidRequestError, UnavailableError, UnknownTaskError
from tidemill.testing import FakeContext

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}
NOTHING: list[Any] = [None, {}, [], "text", 1, [NOOP]]
SCHEDULED = {
    "version": "0",
    "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
    "detail-type": "Scheduled Event",
    "source": "aws.events",
    "time": "2026-07-01T09:00:00Z",
    "resources": [],
    "detail": {},
}


def fields(caught: pytest.ExceptionInfo[InvalidRequestError]) -> list[str]:
    return [one.field for one in caught.value.problems]


def test_a_task_is_taken_in_and_told_by_its_id(deployed: Deployed, db: Database[Any]) -> None:
    told = deployed.invoke("enqueue", sample("enqueue_direct"))

    [task] = db.tasks.find()
    assert told == {"id": str(task["_id"]), "status": "pending"}
    assert task["idempotency_key"] == "direct:order-1043"
    assert deployed.invoke("execute")["done"] == 1


def test_many_are_taken_in_in_order(deployed: Deployed, db: Database[Any]) -> None:
    told = deployed.invoke("enqueue", {"tasks": [NOOP | {"payload": {"n": n}} for n in range(3)]})

    assert [one["id"] for one in told["tasks"]] == [str(one["_id"]) for one in db.tasks.find().sort("payload.n", 1)]


@pytest.mark.parametrize("event", [NOOP, {"tasks": [NOOP, NOOP]}])
def test_what_lambda_repeats_is_stored_once(deployed: Deployed, db: Database[Any], event: Any) -> None:
    context = FakeContext()

    first, again = (deployed.invoke("enqueue", event, context) for _ in range(2))
    other = deployed.invoke("enqueue", event, FakeContext())

    assert first == again != other
    assert db.tasks.count_documents({}) == 2 * len(event.get("tasks", [event]))


def test_it_may_name_what_is_not_open_to_http_and_any_queue(deployed: Deployed, db: Database[Any]) -> None:
    db.task_types.update_one({"_id": "noop"}, {"$set": {"http": False}})
    deployed.cool_down()

    deployed.invoke("enqueue", NOOP | {"queue": "inner", "priority": 1000})

    assert [(one["queue"], one["priority"]) for one in db.tasks.find()] == [("inner", 1000)]


def test_who_sent_it_is_kept_with_the_id_of_the_invocation(deployed: Deployed, db: Database[Any]) -> None:
    context = FakeContext()

    task_id = deployed.invoke("enqueue", NOOP, context)["id"]

    assert [one["trace"] for one in db.tasks.find()] == [{"source": "direct", "correlation_id": context.aws_request_id}]
    assert deployed.get(task_id).status == 404  # it is no caller's of HTTP


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        ({"payload": {}}, ["name"]),
        (NOOP | {"priority": "high", "_id": 1}, ["priority", "_id"]),
        ({"tasks": [NOOP, {"payload": {}}]}, ["tasks.1.name"]),
        ({"tasks": []}, ["tasks"]),
        ({"tasks": [NOOP], "is_single": True}, ["is_single"]),
        ({"tasks": [NOOP] * 1001}, ["tasks"]),
        ({"tasks": [NOOP], "queue": "eu"}, ["queue"]),
        ({"tasks": {"$gt": ""}}, ["tasks"]),
        ({"key1": "v"}, ["name", "payload", "key1"]),
        *((nothing, ["event"]) for nothing in NOTHING),
        (NOOP | {"timeout_sec": 51}, ["timeout_sec"]),
        ({"tasks": [NOOP, NOOP | {"timeout_sec": 800}]}, ["tasks.1.timeout_sec"]),
        (NOOP | {"payload": {"n": float("nan")}}, ["payload"]),
        (NOOP | {"expires_at": "2020-01-01T00:00:00Z"}, ["expires_at"]),
        ({"tasks": [NOOP, NOOP | {"expires_at": "2020-01-01T00:00:00Z"}]}, ["tasks.1.expires_at"]),
        (SCHEDULED, ["occurrence"]),
        (SCHEDULED | {"tasks": [NOOP]}, ["occurrence"]),
    ],
)
def test_what_is_not_allowed_is_raised_so_that_lambda_keeps_it_and_nothing_is_stored(
    unchanged: Deployed, event: Any, wrong: list[str]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        unchanged.invoke("enqueue", event)

    assert fields(caught) == wrong


def test_an_unknown_name_is_raised(unchanged: Deployed) -> None:
    with pytest.raises(UnknownTaskError) as caught:
        unchanged.invoke("enqueue", {"tasks": [NOOP, NOOP | {"name": "missing"}]})

    assert fields(caught) == ["tasks.1.name"]


@pytest.mark.parametrize("event", [NOOP, {"tasks": [NOOP]}])
def test_a_key_of_another_request_is_raised(deployed: Deployed, event: Any) -> None:
    deployed.invoke("enqueue", NOOP | {"idempotency_key": "k"})
    other = json.loads(json.dumps(event).replace('"payload": {}', '"payload": {"n": 1}, "idempotency_key": "k"'))

    with pytest.raises(DuplicateKeyError):
        deployed.invoke("enqueue", other)


def test_mongodb_away_is_raised_so_that_lambda_repeats_it(bare: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app("enqueue"), "PATIENCE_SEC", 0.3)
    bare.set(MONGODB_URI="mongodb://user:S3cr3t@127.0.0.1:1/", MONGODB_DATABASE="x")

    with pytest.raises(UnavailableError) as caught:
        bare.invoke("enqueue", NOOP)

    assert "S3cr3t" not in str(caught.value) + bare.stdout.getvalue()


def test_it_wakes_an_executor_where_something_is_due(deployed: Deployed, fake: FakeLambda) -> None:
    deployed.invoke("enqueue", NOOP | {"delay_sec": 60})
    assert fake.invoked == []

    deployed.invoke("enqueue", {"tasks": [NOOP | {"delay_sec": 60}, NOOP]})

    assert len(fake.invoked) == 1


def test_of_a_payload_nothing_is_logged_or_raised(deployed: Deployed) -> None:
    secret = "4111-1111"
    deployed.invoke("enqueue", NOOP | {"payload": {"card": secret}})
    with pytest.raises(InvalidRequestError) as caught:
        deployed.invoke("enqueue", NOOP | {"payload": {"card": secret, "n": float("nan")}})

    assert secret not in str(caught.value) + deployed.stdout.getvalue()
