"""The header Idempotency-Key: one request is one task, however often it is sent."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.at_once import at_once
from tests.builders import make_service
from tests.fixtures import ManualClock
from tests.handlers.calls import Answer, request
from tests.handlers.conftest import Deployed
from tidemill.bootstrap import deployment
from tidemill.enqueue.rules import EnqueueRules
from tidemill.requests.tasks import new_task
from tidemill.testing import FakeContext

BODY = '{"name": "noop", "payload": {"a": 1, "b": [1, 2]}}'
KEY = "order-7"
LONG_AGO, IN_THE_FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)


def keyed(deployed: Deployed, body: Any = BODY, **options: Any) -> Answer:
    return deployed.post(body, key=KEY, **options)


@pytest.mark.parametrize(
    "repeat",
    [
        BODY,
        '{"payload": {"b": [1, 2], "a": 1}, "name": "noop"}',
        ' { "name" : "noop" , "payload" : { "a" : 1 , "b" : [ 1 , 2 ] } } ',
        '{"name": "noop", "payload": {"a": 1, "b": [1, 2]}, "queue": "default", "priority": 0, "max_retries": null}',
        r'{"name": "\u006eoop", "payload": {"\u0061": 1, "b": [1, 2]}}',
    ],
)
def test_the_same_request_is_the_same_task(deployed: Deployed, db: Database[Any], repeat: str) -> None:  # F74
    first = keyed(deployed)

    again = keyed(deployed, repeat)

    assert (first.status, again.status, again.id) == (202, 200, first.id)
    assert db.tasks.count_documents({}) == 1


def test_the_same_request_in_base64_is_the_same_task(deployed: Deployed) -> None:  # F74
    first = keyed(deployed)

    again = keyed(deployed, base64.b64encode(BODY.encode()).decode(), isBase64Encoded=True)

    assert (again.status, again.id) == (200, first.id)


@pytest.mark.parametrize(
    "other",
    [
        '{"name": "noop", "payload": {"a": 2, "b": [1, 2]}}',
        '{"name": "noop", "payload": {"a": 1, "b": [2, 1]}}',
        '{"name": "noop", "payload": {"a": 1.0, "b": [1, 2]}}',
        '{"name": "noop", "payload": {"a": 1, "b": [1, 2], "c": null}}',
        '{"name": "deliver_webhook", "payload": {"url": "https://example.com/", "body": {"a": 1, "b": [1, 2]}}}',
        '{"name": "noop", "payload": {"a": 1, "b": [1, 2]}, "priority": 1}',
        '{"name": "noop", "payload": {"a": 1, "b": [1, 2]}, "delay_sec": 60}',
    ],
)
def test_another_request_under_the_key_is_a_conflict(deployed: Deployed, db: Database[Any], other: str) -> None:  # F75
    first = keyed(deployed)
    before = db.tasks.find_one()

    conflict = keyed(deployed, other)

    assert (conflict.status, conflict.code) == (409, "key_in_use")
    assert first.id not in conflict.text
    assert list(db.tasks.find()) == [before]


def test_a_composed_and_a_decomposed_character_are_two_requests(deployed: Deployed) -> None:  # F74
    assert keyed(deployed, {"name": "noop", "payload": {"s": "\u00e9"}}).status == 202
    assert keyed(deployed, {"name": "noop", "payload": {"s": "e\u0301"}}).status == 409


def test_without_a_key_every_request_is_a_task(deployed: Deployed, db: Database[Any]) -> None:  # F76
    assert {deployed.post(BODY).status for _ in range(3)} == {202}
    assert db.tasks.count_documents({}) == 3
    assert db.tasks.count_documents({"idempotency_key": {"$exists": True}}) == 0


@pytest.mark.parametrize(
    ("headers", "multi"),
    [
        ({"Idempotency-Key": KEY}, None),
        ({"IDEMPOTENCY-KEY": KEY}, {}),
        ({"idempotency-key": f" {KEY} "}, None),
        (None, {"idempotency-key": [KEY]}),
        ({}, {"iDEMPOTENCY-kEY": [KEY, KEY]}),
        ({"Idempotency-Key": KEY}, {"idempotency-key": [KEY]}),
    ],
)
def test_a_key_is_found_whatever_its_case_and_place(deployed: Deployed, headers: Any, multi: Any) -> None:  # F64
    first = keyed(deployed)

    again = deployed.http(request(body=BODY) | {"headers": headers, "multiValueHeaders": multi})

    assert (again.status, again.id) == (200, first.id)


@pytest.mark.parametrize(
    ("headers", "multi"),
    [
        ({"Idempotency-Key": ""}, None),
        ({"Idempotency-Key": " "}, None),
        (None, {"Idempotency-Key": [""]}),
        ({"Idempotency-Key": "x" * 201}, None),
        ({"Idempotency-Key": "b"}, {"Idempotency-Key": ["a", "b"]}),
        ({"Idempotency-Key": "a"}, {"idempotency-key": ["b"]}),
        ({"Idempotency-Key": "a", "idempotency-key": "b"}, None),
    ],
)
def test_an_empty_overlong_or_ambiguous_key_is_400(unchanged: Deployed, headers: Any, multi: Any) -> None:  # F64, F76
    refused = unchanged.http(request(body=BODY) | {"headers": headers, "multiValueHeaders": multi})

    assert (refused.status, refused.code) == (400, "invalid_key")


@pytest.mark.parametrize("key", ["a\x00b", "a\nb", "\ud83c", "a\u200bb"])
def test_an_unprintable_key_is_422(unchanged: Deployed, key: str) -> None:  # F40
    refused = unchanged.post(BODY, key=key)

    assert (refused.status, refused.fields) == (422, {"Idempotency-Key"})


@pytest.mark.parametrize("key", ["x" * 200, "é😀", "$where", '{"$gt":""}', "7", "null"])
def test_any_printable_key_is_taken_literally(deployed: Deployed, key: str) -> None:
    other = deployed.post(BODY, key="other")

    first, again = deployed.post(BODY, key=key), deployed.post(BODY, key=key)

    assert (first.status, again.status, again.id) == (202, 200, first.id)
    assert first.id != other.id


def test_a_key_belongs_to_its_caller(deployed: Deployed, db: Database[Any]) -> None:  # F71
    mine, theirs = keyed(deployed), keyed(deployed, caller="another")
    nobodys = keyed(deployed, caller=None)

    assert {mine.status, theirs.status, nobodys.status} == {202}
    assert len({mine.id, theirs.id, nobodys.id}) == 3
    stored = {task["idempotency_key"] for task in db.tasks.find()}
    assert stored == {f"k9p2s7x4q1:{KEY}", f"another:{KEY}", f"anonymous:{KEY}"}


def test_twenty_first_requests_at_once_are_one_task(db: Database[Any]) -> None:  # F78
    wanted = new_task(**json.loads(BODY), idempotency_key=KEY)
    services = [make_service(db) for _ in range(20)]

    accepted = at_once(services, lambda service: service.submit([wanted], rules=EnqueueRules(is_single=True))[0])

    assert len({one.id for one in accepted}) == 1
    assert sum(one.is_new for one in accepted) == 1
    assert db.tasks.count_documents({}) == 1


HOLDING = {
    "pending": {"status": "pending"},
    "delayed": {"status": "pending", "due_at": IN_THE_FUTURE},
    "processing": {"status": "processing"},
    "of a lost worker": {"status": "processing", "lease": {"token": "t", "owner": "o", "expires_at": LONG_AGO}},
    "failed": {"status": "failed"},
    "done": {"status": "done", "retain_from": IN_THE_FUTURE},
}


@pytest.mark.parametrize("fields", HOLDING.values(), ids=HOLDING.keys())
def test_a_key_is_held_while_its_task_lives_or_is_retained(
    deployed: Deployed, db: Database[Any], fields: dict[str, Any]
) -> None:  # F79
    first = keyed(deployed)
    db.tasks.update_one({}, {"$set": fields})
    before = db.tasks.find_one()

    again, other = keyed(deployed), keyed(deployed, {"name": "noop", "payload": {}})

    assert (again.status, again.id, other.status) == (200, first.id, 409)
    assert list(db.tasks.find()) == [before]


def test_a_key_is_free_after_a_cancel_which_remembers_it(deployed: Deployed, db: Database[Any]) -> None:  # F79
    first = keyed(deployed)
    deployed.delete(first.id)

    second = keyed(deployed, {"name": "noop", "payload": {}})

    assert (second.status, second.id != first.id) == (202, True)
    cancelled = db.tasks.find_one({"status": "cancelled"}) or {}
    assert cancelled["released_key"] == f"k9p2s7x4q1:{KEY}"
    assert "idempotency_key" not in cancelled
    assert deployed.delete(second.id).status == 200
    assert keyed(deployed).status == 202


def test_a_key_is_free_once_its_task_is_a_dead_letter(deployed: Deployed, db: Database[Any]) -> None:  # F79
    first = keyed(deployed)
    db.tasks.update_one({}, {"$set": {"status": "failed", "finished_at": datetime.now(UTC)}})
    assert deployed.invoke("archive")["moved"] == 1

    second = keyed(deployed)

    assert (second.status, second.id != first.id) == (202, True)
    assert deployed.get(first.id).body["status"] == "failed"


def test_a_key_is_free_when_retention_is_over(deployed: Deployed, db: Database[Any]) -> None:  # F79
    keyed(deployed)
    db.tasks.delete_one({})  # as the TTL monitor does

    assert keyed(deployed).status == 202


def test_a_repeat_moves_no_schedule(deployed: Deployed, db: Database[Any]) -> None:  # F78
    in_a_month = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
    later = {"name": "noop", "payload": {}, "not_before": in_a_month.isoformat()}
    first = keyed(deployed, later)

    assert keyed(deployed, later | {"not_before": (in_a_month + timedelta(days=1)).isoformat()}).status == 409
    assert keyed(deployed, later).id == first.id
    [task] = db.tasks.find()
    assert task["due_at"] == in_a_month
    assert task["updated_at"] - task["created_at"] == timedelta(0)


@pytest.fixture
def clock(deployed: Deployed) -> ManualClock:
    """The clock that the enqueue function goes by."""
    clock = ManualClock(datetime.now(UTC))
    deployed.cool_down()
    warm = deployment()
    warm.enqueue_service = make_service(warm.database("enqueue"), clock=clock)
    return clock


@pytest.fixture
def soon(clock: ManualClock) -> str:
    """A minute from now, as a request has it."""
    return (clock.now() + timedelta(minutes=1)).isoformat()


@pytest.mark.parametrize("delay", [{}, {"delay_sec": 50}])
def test_a_repeat_is_not_judged_again(deployed: Deployed, clock: ManualClock, soon: str, delay: dict[str, Any]) -> None:
    wanted = {"name": "noop", "payload": {}, "expires_at": soon} | delay
    first = keyed(deployed, wanted)
    clock.at += timedelta(hours=1)

    again, other = keyed(deployed, wanted), keyed(deployed, wanted | {"payload": {"n": 1}})
    new = deployed.post(wanted, key="new")

    assert (first.status, again.status, again.id) == (202, 200, first.id)
    assert (other.status, new.status) == (422, 422)


def test_nor_is_a_repeat_of_a_batch_or_of_a_direct_invocation(
    deployed: Deployed, db: Database[Any], clock: ManualClock, soon: str
) -> None:
    wanted = {"name": "noop", "payload": {}, "expires_at": soon}
    context, batch = FakeContext(), {"tasks": [wanted | {"idempotency_key": "a"}, wanted | {"idempotency_key": "b"}]}
    first = deployed.http(request("POST", "/tasks/batch", body=batch))
    direct = deployed.invoke("enqueue", wanted, context)
    clock.at += timedelta(hours=1)

    again = deployed.http(request("POST", "/tasks/batch", body=batch))
    more = {"tasks": [*batch["tasks"], wanted | {"idempotency_key": "c"}]}

    assert (first.status, again.status, again.body) == (202, 200, first.body)
    assert deployed.http(request("POST", "/tasks/batch", body=more)).status == 422
    assert deployed.invoke("enqueue", wanted, context) == direct
    assert db.tasks.count_documents({}) == 3


@pytest.mark.parametrize("change", [{"http": False}, None])
def test_a_repeat_is_answered_though_its_function_is_gone(deployed: Deployed, db: Database[Any], change: Any) -> None:
    first = keyed(deployed)
    if change is None:
        db.task_types.delete_one({"_id": "noop"})
    else:
        db.task_types.update_one({"_id": "noop"}, {"$set": change})
    deployed.cool_down()

    assert (keyed(deployed).status, keyed(deployed).id) == (200, first.id)
    assert deployed.post(BODY, key="new").status == 422
