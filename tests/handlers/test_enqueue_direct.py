"""Direct invocations of enqueue: the body of a request, by whoever IAM lets; repeated by Lambda, stored once."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.at_once import at_once
from tests.builders import make_service, new_tasks
from tests.handlers.calls import app, sample
from tests.handlers.conftest import Deployed
from tests.handlers.lambda_api import FakeLambda
from tests.handlers.test_confirmed_repeats import TakenBack
from tidemill import DuplicateKeyError, InvalidRequestError, Queue, UnavailableError, UnknownTaskError, indexes
from tidemill.enqueue.enqueue import EnqueueService
from tidemill.enqueue.rules import EnqueueRules, Invocation
from tidemill.testing import FakeContext, Mongod

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}
INVOCATION = Invocation(request_id="r-1", may_be_repeat=True)
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


KEYED = NOOP | {"idempotency_key": "report"}
EACH = pytest.mark.parametrize("event", [NOOP, KEYED, {"tasks": [NOOP, KEYED, NOOP]}])


def test_tasks_have_ids_that_follow_from_the_invocation_and_keys_only_where_they_were_sent_with_one(
    deployed: Deployed, db: Database[Any]
) -> None:
    deployed.invoke("enqueue", {"tasks": [NOOP, KEYED, NOOP]}, FakeContext(request_id="r-1"))
    deployed.invoke("enqueue", NOOP, FakeContext(request_id="r-2"))

    tasks = {str(one["_id"]): one.get("idempotency_key") for one in db.tasks.find()}
    assert tasks == {
        "56c68524de13390666de0000": None,
        "56c68524de13390666de0001": "direct:report",
        "56c68524de13390666de0002": None,
        "157f8ad3f8876dc9fb810000": None,
    }


@EACH
@pytest.mark.parametrize(
    "fate",
    [
        (became, tried)
        for became in ("done", "cancelled", "dead", "redriven and done")
        for tried in ("just now", "a minute ago", "at an unknown time")
        if tried != "just now" or became in {"done", "cancelled"}  # for the others there was no time
    ],
)
def test_what_lambda_repeats_is_stored_once_whatever_became_of_it(
    deployed: Deployed, db: Database[Any], monkeypatch: pytest.MonkeyPatch, event: Any, fate: tuple[str, str]
) -> None:
    became, tried = fate
    context = FakeContext()
    first = deployed.invoke("enqueue", event, context)
    end(deployed, db, became)
    before = contents(db)
    if tried != "at an unknown time":
        began = int(time.time()) - (0 if tried == "just now" else 60)
        monkeypatch.setenv("_X_AMZN_TRACE_ID", f"Root=1-{began:08x}-{'a' * 24};Parent={'b' * 16};Sampled=0")

    again = deployed.invoke("enqueue", event, context)

    assert [one["id"] for one in again.get("tasks", [again])] == [one["id"] for one in first.get("tasks", [first])]
    assert contents(db) == before


def end(deployed: Deployed, db: Database[Any], became: str) -> None:
    """Have all tasks end."""
    if became == "done":
        deployed.invoke("execute")
    elif became == "cancelled":
        for task in db.tasks.find():
            Queue(db).cancel(task["_id"])
    else:
        db.tasks.update_many({}, {"$set": {"status": "failed", "finished_at": datetime.now(UTC)}})
        deployed.invoke("archive")
    if became == "redriven and done":
        deployed.invoke("operate", {"op": "dlq.redrive", "all": True})
        deployed.invoke("execute")
        assert db.tasks.delete_many({"status": "done"}).deleted_count > 0  # as after their retention


def contents(db: Database[Any]) -> list[list[Any]]:
    return [list(db[name].find().sort("_id", 1)) for name in ("tasks", "tasks_dlq")]


@EACH
def test_a_repeat_that_would_be_refused_today_is_the_task_it_made(
    deployed: Deployed, db: Database[Any], event: Any
) -> None:
    context = FakeContext()
    deployed.invoke("enqueue", event, context)
    end(deployed, db, "cancelled")
    db.task_types.delete_one({"_id": "noop"})
    deployed.cool_down()
    before = contents(db)

    deployed.invoke("enqueue", event, context)

    assert contents(db) == before


@pytest.mark.parametrize(
    "more", [{"idempotency_key": "k"}, {"occurrence": {"schedule": "s", "at": "2026-07-01T06:00:00Z"}}]
)
def test_a_known_task_is_not_refused_for_a_timeout_that_became_too_long(
    deployed: Deployed, db: Database[Any], more: dict[str, Any]
) -> None:
    first = deployed.invoke("enqueue", NOOP | {"timeout_sec": 40} | more, FakeContext())
    deployed.set(MAX_TASK_TIMEOUT_SEC="30")

    again = deployed.invoke("enqueue", NOOP | {"timeout_sec": 40} | more, FakeContext())

    assert again.get("tasks", again) == first.get("tasks", first)
    assert db.tasks.count_documents({}) == 1
    with pytest.raises(InvalidRequestError):
        deployed.invoke("enqueue", NOOP | {"timeout_sec": 40})


def test_a_repeat_whose_key_is_held_by_another_request_by_now_is_the_task_it_made(
    deployed: Deployed, db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = FakeContext()
    first = deployed.invoke("enqueue", KEYED, context)
    end(deployed, db, "cancelled")
    deployed.invoke("enqueue", KEYED | {"priority": 1})
    monkeypatch.setenv("_X_AMZN_TRACE_ID", f"Root=1-{int(time.time()):08x}-{'a' * 24}")

    assert deployed.invoke("enqueue", KEYED, context)["id"] == first["id"]
    assert db.tasks.count_documents({}) == 2


def test_what_was_there_of_an_invocation_and_was_taken_back_is_unavailable(
    deployed: Deployed, db: Database[Any], mongod: Mongod
) -> None:
    context = FakeContext()
    deployed.invoke("enqueue", {"tasks": [NOOP, NOOP]}, context)
    with MongoClient[Any](mongod.uri, event_listeners=[TakenBack(db)]) as client:
        service, invocation = (
            make_service(client[db.name]),
            Invocation(request_id=context.aws_request_id, may_be_repeat=False),
        )

        with pytest.raises(UnavailableError, match="rolled back"):
            service.submit(new_tasks([NOOP, NOOP]), rules=EnqueueRules(origin=invocation))


@pytest.mark.parametrize("wanted", [[NOOP, NOOP], [NOOP, KEYED, NOOP]])
@pytest.mark.parametrize("may_be_repeat", [True, False])
def test_twenty_tries_at_once_store_once(db: Database[Any], wanted: list[Any], *, may_be_repeat: bool) -> None:
    ids, requests = INVOCATION.derive_ids(len(wanted)), new_tasks(wanted)
    rules = EnqueueRules(origin=replace(INVOCATION, may_be_repeat=may_be_repeat))
    services = [make_service(db) for _ in range(20)]

    def attempt(service: EnqueueService) -> int:
        told = service.submit(requests, rules=rules)
        assert [one.id for one in told] == ids
        return sum(one.is_new for one in told)

    assert sorted(at_once(services, attempt)) == [0] * 19 + [len(wanted)]
    assert sorted(one["_id"] for one in db.tasks.find()) == ids


def test_a_call_without_a_context_is_no_repeat_of_another(db: Database[Any], deployed: Deployed) -> None:  # noqa: ARG001
    for _ in range(2):
        app("enqueue").lambda_handler(NOOP, None)

    assert db.tasks.count_documents({}) == 2


def test_a_standalone_server_completes_an_invocation_that_was_cut_short() -> None:
    with Mongod(standalone=True) as mongod, MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        db = client["x"]
        indexes.create(db)
        service, ids, wanted = make_service(db), INVOCATION.derive_ids(4), new_tasks([NOOP, KEYED, NOOP, NOOP])
        rules = EnqueueRules(origin=INVOCATION)

        def sent(*, count: int = 4) -> list[bool]:
            return [one.is_new for one in service.submit(wanted[:count], rules=rules)]

        sent(count=3)
        Queue(db).cancel(ids[1])
        db.tasks_dlq.insert_one({"_id": {"task": ids[0], "redrives": 0}})
        db.tasks.delete_one({"_id": ids[0]})

        assert [sent(), sent()] == [[False, False, False, True], [False] * 4]
        assert [one["status"] for one in db.tasks.find().sort("_id", 1)] == ["cancelled", "pending", "pending"]


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
        (NOOP | {"payload": {"n": float("nan")}}, ["payload.n"]),
        (NOOP | {"expires_at": "2020-01-01T00:00:00Z"}, ["expires_at"]),
        (NOOP | {"not_before": "2099-01-01T00:00:00Z"}, ["not_before"]),  # A13
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


def test_a_long_timeout_is_no_unknown_name_before_one_is_registered(deployed: Deployed, db: Database[Any]) -> None:
    db.task_types.delete_many({})
    deployed.cool_down()

    with pytest.raises(InvalidRequestError) as caught:
        deployed.invoke("enqueue", NOOP | {"timeout_sec": 51})

    assert type(caught.value) is InvalidRequestError


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


def test_mongodb_away_is_raised_so_that_lambda_repeats_it(bare: Deployed) -> None:
    bare.request_budget_sec = 0.3
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
