"""What may stand in the body of ``POST /tasks``; whatever is refused changes nothing."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.handlers.calls import request
from tests.handlers.conftest import Deployed
from tidemill import PRESETS
from tidemill.model import JITTERS, STRATEGIES
from tidemill.store.connection import open_tasks

NOOP = '{"name": "noop", "payload": {}}'


def noop(payload: str = "{}", /, **fields: Any) -> str:
    """A body whose payload is the JSON text given; Python would write other JSON than a caller does."""
    rest = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
    return f'{{"name": "noop", "payload": {payload}{rest}}}'


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def of_size(size: int) -> str:
    return noop(json.dumps({"a": "x" * size}))


def stored_payload(db: Database[Any], task_id: str) -> bytes:
    [task] = open_tasks(db).find({"_id": ObjectId(task_id)})
    raw: bytes = task["payload"].raw
    return raw


@pytest.mark.parametrize(
    "payload",
    [
        '{"user.email": "a", "$gt": "", "a": {"$where": "1"}, "": 1}',
        '{"id": 1970670598291982290, "amount": 0.1, "v": 1.0, "z": -0.0, "n": null, "t": true}',
        '{"min": -9223372036854775808, "max": 9223372036854775807}',
        r'{"emoji": "\ud83d\ude00", "rtl": "שלום", "marks": "e\u0301", "cjk": "𠮷", "nul": "a\u0000b"}',
        '{"list": [[], {}, [1, "1", 1.0]]}',
        '{"$ref": "other", "$id": 1, "a": {"$ref": "other", "$id": 1}}',
    ],
)
def test_a_payload_is_stored_as_it_was_sent(deployed: Deployed, db: Database[Any], payload: str) -> None:  # F38, F44
    task_id = deployed.post(noop(payload)).id

    sent = bson.encode(json.loads(payload))
    assert stored_payload(db, task_id) == sent
    assert deployed.invoke("execute")["done"] == 1
    assert stored_payload(db, task_id) == sent


def test_a_payload_is_the_same_among_the_dead_letters(deployed: Deployed, db: Database[Any]) -> None:  # F38
    payload = {
        "url": "https://127.0.0.1/refused",
        "body": {"user.email": "a", "$gt": "", "a": {"$where": "1"}, "": 1},
    }
    deployed.post({"name": "deliver_webhook", "payload": payload})

    assert deployed.invoke("execute")["failed"] == 1
    assert deployed.invoke("archive")["moved"] == 1
    assert [letter["payload"] for letter in db.tasks_dlq.find()] == [payload]


@pytest.mark.parametrize(
    "body",
    [
        noop('{"n": 9223372036854775808}'),
        noop('{"n": -9223372036854775809}'),
        noop(f'{{"n": {"1" * 5000}}}'),
        noop(priority=10**30),
        noop('{"x": NaN}'),
        noop('{"x": -Infinity}'),
        noop('{"x": 1e400}'),
        '{"name": "noop", "name": "deliver_webhook", "payload": {}}',
        noop('{"a": {"b": 1, "b": 2}}'),
        noop("[" * 100_000 + "]" * 100_000),
        "",
        " ",
        "null",
        "[]",
        '"x"',
        "1",
        "true",
        "{bad",
        "\ufeff" + NOOP,
        NOOP + NOOP,
        None,
    ],
)
def test_a_body_that_cannot_be_read_is_400_whatever_its_type(unchanged: Deployed, body: str) -> None:  # F39, F42, F63
    for headers in ({"Content-Type": "application/json"}, {"content-type": "text/plain"}, {}):
        event = request(body=body) | {"headers": headers, "multiValueHeaders": None}
        answer = unchanged.http(event)

        assert (answer.status, answer.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"payload": {}}', "name"),
        (noop('"text"'), "payload"),
        (noop("null"), "payload"),
        (noop(r'{"a\u0000b": 1}'), "payload"),
        (noop(r'{"s": "cut \ud83c"}'), "payload.s"),
        *((noop(**{field: "2099-07-01T09:00:00Z"}), field) for field in ("not_before", "expires_at")),  # A13
        (noop(r'{"\ud83c": 1}'), "payload"),
        (noop('{"a":' * 70 + "1" + "}" * 70), "payload"),
        (of_size(256 * 1024), "payload"),
        (r'{"name": "no\u0000op", "payload": {}}', "name"),
        (r'{"name": "\ud83c", "payload": {}}', "name"),
        ('{"name": {"$ne": null}, "payload": {}}', "name"),
        (noop(queue={"$ne": 1}), "queue"),
        (noop(idempotency_key={"$gt": ""}), "idempotency_key"),
        (noop(idempotency_key="order-7"), "idempotency_key"),
        *((noop(max_retries=value), "max_retries") for value in (-1, True, 1.5, "3", 10**9)),
        *((noop(timeout_sec=value), "timeout_sec") for value in (0, -1, 0.001, 10**9, "30", True)),
        *((noop(priority=value), "priority") for value in ("high", 1.5, True, 11, -11, 10**9)),
        *((noop(delay_sec=value), "delay_sec") for value in (-1, "2", True, 10**12)),
        *(
            (noop(not_before=value), "not_before")
            for value in ("2026-07-01T09:00:00", "2026-07-01", "20260701", "2026-W27-3", 1767225600, "garbage")
        ),
        (noop(delay_sec=1, not_before="2026-07-01T09:00:00Z"), "task"),
        (noop(expires_at=1767225600000), "expires_at"),
        *((noop(retry=value), "retry") for value in ("moon", "", "Standard", 3, True, [], ["standard"])),
        *((noop(retry={"base_sec": value}), "retry.base_sec") for value in (-1, 0, "5", None, True, 10**9)),
        *((noop(retry={"factor": value}), "retry.factor") for value in (0.99, -2, "x", 10**9)),
        *((noop(retry={"max_sec": value}), "retry.max_sec") for value in (0, -1, 4.9, "x", 10**9)),
        *((noop(retry={"jitter_factor": value}), "retry.jitter_factor") for value in (0, 1.1, "x")),
        *((noop(retry={"max_retries": value}), "retry.max_retries") for value in (-1, 1001, 1.5, "3")),
        *((noop(retry={"strategy": value}), "retry.strategy") for value in ("moon", None, 1)),
        *((noop(retry={"jitter": value}), "retry.jitter") for value in ("moon", None, 1)),
        (noop(retry={"base_sec": 1801}), "retry.max_sec"),
        (noop(retry={"cap_sec": 5}), "retry.cap_sec"),
    ],
)
def test_a_task_that_is_not_allowed_is_422_and_names_the_field(  # F40, F41, F46, F47, F71
    unchanged: Deployed, body: str, field: str
) -> None:
    answer = unchanged.post(body)

    assert (answer.status, answer.code) == (422, "not_allowed")
    assert answer.fields == {field}


@pytest.mark.parametrize(
    "field", ["_id", "status", "attempts", "lease", "lock_token", "created_at", "error", "max_attempts", "self", "$set"]
)
def test_fields_of_the_server_are_refused(unchanged: Deployed, field: str) -> None:  # F46
    answer = unchanged.post(noop(**{field: 1}))

    assert (answer.status, answer.fields) == (422, {field})


def test_a_timeout_no_executor_can_grant_is_refused(deployed: Deployed) -> None:
    deployed.set(MAX_TASK_TIMEOUT_SEC="40")

    answer = deployed.post(noop(timeout_sec=41))

    assert (answer.status, answer.fields) == (422, {"timeout_sec"})
    assert "40" in answer.text


@pytest.mark.parametrize("size", [4 * 1024 * 1024, 17_000_000])
def test_a_body_above_4_mb_is_413(unchanged: Deployed, size: int) -> None:  # F43
    answer = unchanged.post(of_size(size))

    assert (answer.status, answer.code) == (413, "too_large")


def test_the_size_that_counts_is_that_of_the_decoded_body(deployed: Deployed) -> None:  # F43, F62
    padded = NOOP + " " * (4 * 1024 * 1024 - len(NOOP))

    assert deployed.post(encoded(padded.encode()), isBase64Encoded=True).status == 202
    assert deployed.post(encoded(padded.encode() + b" "), isBase64Encoded=True).status == 413


def test_a_payload_just_below_the_limit_is_taken_and_runs(deployed: Deployed) -> None:
    assert deployed.post(of_size(256 * 1024 - 100)).status == 202
    assert deployed.invoke("execute")["done"] == 1


def test_options_at_the_ends_of_their_ranges_are_taken(deployed: Deployed, db: Database[Any]) -> None:
    for fields in ({"priority": 10}, {"priority": -10}, {"max_retries": 0}, {"timeout_sec": 50}, {"max_retries": None}):
        assert deployed.post(noop(**fields)).status == 202, fields
    assert sorted(task["priority"] for task in db.tasks.find()) == [-10, 0, 0, 0, 10]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_taken_by_its_name(deployed: Deployed, db: Database[Any], name: str) -> None:
    task_id = deployed.post(noop(retry=name), key="k").id

    [task] = db.tasks.find()
    assert task["max_retries"] == PRESETS[name].max_retries
    assert task["backoff_policy"] == asdict(PRESETS[name].backoff)
    numbers = {"max_retries": task["max_retries"]} | task["backoff_policy"]
    assert deployed.post(noop(retry=numbers), key="k").id == task_id


@pytest.mark.parametrize("base_sec", [1e-9, 0.01, 0.099])
def test_a_strangers_task_cannot_go_round_and_round(deployed: Deployed, db: Database[Any], base_sec: float) -> None:
    answer = deployed.post(noop(retry={"strategy": "fixed", "base_sec": base_sec, "max_retries": 1000}))

    assert answer.status == 422
    assert answer.body["error"]["details"] == [{"field": "retry.base_sec", "message": "must be at least 0.1"}]
    assert db.tasks.count_documents({}) == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("jitter", JITTERS)
def test_every_strategy_and_jitter_is_taken(deployed: Deployed, db: Database[Any], strategy: str, jitter: str) -> None:
    assert deployed.post(noop(retry={"strategy": strategy, "jitter": jitter, "max_sec": 60})).status == 202

    [policy] = db.tasks.distinct("backoff_policy")
    assert (policy["strategy"], policy["jitter"], policy["max_sec"], policy["base_sec"]) == (strategy, jitter, 60, 5)


def test_a_time_means_the_same_whatever_its_offset(deployed: Deployed, db: Database[Any]) -> None:
    day = (datetime.now(UTC) + timedelta(days=30)).date()
    for text in (f"{day}T09:00:00Z", f"{day}T14:30:00+05:30", f"{day}t09:00:00.000z"):
        assert deployed.post(noop(not_before=text)).status == 202
    assert len(db.tasks.distinct("due_at")) == 1


def test_a_body_in_base64_is_taken(deployed: Deployed) -> None:
    assert deployed.post(encoded(NOOP.encode()), isBase64Encoded=True).status == 202


@pytest.mark.parametrize(
    "body",
    [
        "***",
        NOOP,
        "é",
        encoded(b'{"a": "\xff"}'),
        encoded(gzip.compress(NOOP.encode(), mtime=0)),
        encoded(NOOP.encode("utf-16")),
        encoded(b"\xef\xbb\xbf" + NOOP.encode()),
        encoded(b" "),
        encoded(struct.pack("<d", 1.5)),
    ],
)
def test_what_is_no_text_in_base64_is_400(unchanged: Deployed, body: str) -> None:  # F62
    answer = unchanged.post(body, isBase64Encoded=True)

    assert answer.status == 400
    assert answer.code in {"invalid_body", "invalid_json"}


@pytest.mark.parametrize(
    "body", [json.dumps({f"field_{n}": n for n in range(150_000)}), json.dumps({"x" * 3_900_000: 1})]
)
def test_a_refusal_is_never_larger_than_lambda_can_answer(unchanged: Deployed, body: str) -> None:
    answer = unchanged.post(body)

    assert answer.status == 422
    assert len(answer.text) < 10_000
