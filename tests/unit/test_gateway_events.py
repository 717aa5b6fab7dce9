"""API Gateway's events in our terms, and our answers in its."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import T0
from tests.unit.make import a_task
from tidemill import InvalidRequestError, NewTask
from tidemill.control.task_types import Declarations
from tidemill.enqueue.rules import find_problems, make_http_rules, make_submission
from tidemill.errors import Problem
from tidemill.http.events import (
    build_location,
    build_trace,
    clean_event,
    is_direct,
    is_http,
    parse_json_object,
    parse_object_id,
    read_caller,
    read_idempotency_key,
)
from tidemill.http.models import HttpError, HttpTask, build_task_answer, encode_error
from tidemill.requests.validation import parse_request

KEY = "idempotency-key"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


DECLARED = Declarations(
    read_at=0.0,
    types={"noop": {"http": True}, "inner": {"http": False}, "old": {}},
    queues=frozenset({"default", "eu"}),
)


def requested(body: object, **event: Any) -> NewTask:
    post = REST | {"body": json.dumps(body), "requestContext": {"identity": {"apiKeyId": "me"}}} | event
    clean = clean_event(post)
    task = parse_request(HttpTask, parse_json_object(clean["body"]))
    rules = make_http_rules(read_caller(clean), is_single=True, max_timeout=timedelta(seconds=50))
    submission = make_submission([task.add_key(read_idempotency_key(clean))], rules=rules)
    found = find_problems(submission, known=DECLARED, now=T0)
    if found:
        raise InvalidRequestError(found)
    return submission.requests[0]


def problems(body: dict[str, Any], **event: Any) -> list[str]:
    with pytest.raises(InvalidRequestError) as caught:
        requested({"name": "noop", "payload": {}} | body, **event)
    return [one.field for one in caught.value.problems]


REST = {"httpMethod": "POST", "path": "/tasks", "requestContext": {}}


@pytest.mark.parametrize("more", [{}, {"headers": None, "multiValueHeaders": None}, {"headers": {}, "body": "x"}])
def test_an_event_of_the_rest_api_is_told(more: dict[str, Any]) -> None:
    assert is_http(REST | more)


@pytest.mark.parametrize(
    "event",
    [
        None, [], {}, "x", {"key1": "v"}, {"version": "2.0", "rawPath": "/tasks", "requestContext": {"http": {}}},
        {"source": "aws.events", "detail-type": "Scheduled Event"}, REST | {"path": None}, REST | {"httpMethod": 1},
        REST | {"requestContext": None}, REST | {"requestContext": "x"}, REST | {"headers": "x"},
        REST | {"multiValueHeaders": [1]}, REST | {"requestContext": {"elb": {"targetGroupArn": "arn"}}},
    ],
)  # fmt: skip
def test_any_other_event_is_told_from_it(event: object) -> None:  # F66
    assert not is_http(event)


@pytest.mark.parametrize(
    ("event", "values"),
    [
        ({}, []),
        ({"headers": None, "multiValueHeaders": None}, []),
        ({"headers": {"IDEMPOTENCY-KEY": "k"}}, ["k"]),
        ({"headers": {"Idempotency-Key": "k"}, "multiValueHeaders": None}, ["k"]),
        ({"headers": {}, "multiValueHeaders": {"idempotency-KEY": ["k"]}}, ["k"]),
        ({"headers": {"idempotency-key": "k"}, "multiValueHeaders": {"Idempotency-Key": ["k", "k"]}}, ["k"]),
        ({"headers": {"idempotency-key": "k2"}, "multiValueHeaders": {"idempotency-key": ["k1", "k2"]}}, ["k1", "k2"]),
        ({"headers": {"idempotency-key": None}, "multiValueHeaders": {"idempotency-key": None}}, []),
        ({"multiValueHeaders": {"idempotency-key": [None]}}, []),
        ({"headers": {"idempotency-key": ""}}, [""]),
        ({"headers": {"x-idempotency-key": "k"}}, []),
    ],
)
def test_a_header_is_found_in_any_case_and_place(event: dict[str, Any], values: list[str]) -> None:  # F64
    clean = clean_event(REST | {"httpMethod": "GET"} | event)

    assert clean["multiValueHeaders"].get(KEY, []) == values
    assert [clean["headers"][KEY]] == values[:1] if values else KEY not in clean["headers"]


def test_a_task_is_requested_by_its_body_and_the_key_in_the_header() -> None:
    wanted = requested({"name": "noop", "payload": {"a": 1}, "priority": -10}, headers={"Idempotency-Key": " k "})

    assert (wanted.name, wanted.payload, wanted.priority) == ("noop", {"a": 1}, -10)
    assert wanted.idempotency_key == "me:k"
    assert requested({"name": "noop", "payload": {}}).idempotency_key is None


@pytest.mark.parametrize(
    "given_headers",
    [
        {"headers": {KEY: ""}},
        {"headers": {KEY: " "}},
        {"headers": {KEY: "x" * 201}},
        {"multiValueHeaders": {KEY: ["k1", "k2"]}},
        {"headers": {KEY: "k1"}, "multiValueHeaders": {KEY: ["k2"]}},
    ],
)
def test_a_key_that_could_be_mistaken_is_refused(given_headers: dict[str, Any]) -> None:  # F64, F76
    with pytest.raises(HttpError) as caught:
        requested({"name": "noop", "payload": {}}, **given_headers)

    assert (caught.value.status, caught.value.code) == (400, "invalid_key")


@pytest.mark.parametrize("key", ["k", "", None, {"$gt": ""}, 7])
def test_a_key_in_the_body_is_refused_whatever_it_is(key: object) -> None:  # F71
    assert problems({"idempotency_key": key}) == ["idempotency_key"]


@pytest.mark.parametrize("name", ["missing", "inner", "old"])
def test_only_what_is_open_to_http_may_be_named(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requested({"name": name, "payload": {}})

    assert [one.field for one in caught.value.problems] == ["name"]


def test_what_http_may_not_ask_for_is_told_at_once() -> None:
    assert problems({"queue": "us", "retry": {"base_sec": 0.01}, "timeout_sec": 51}) == [
        "queue", "retry.base_sec", "timeout_sec",
    ]  # fmt: skip
    assert problems({"priority": -11}) == ["priority"]
    assert requested({"name": "noop", "payload": {}, "queue": "eu", "priority": 10, "timeout_sec": 50}).queue == "eu"


@pytest.mark.parametrize("field", ["status", "attempts", "lease", "_id", "fields", "self", "trace"])
def test_a_body_cannot_set_what_is_not_its_own(field: str) -> None:  # F46
    assert problems({field: 1}) == [field]


@pytest.mark.parametrize(
    ("context", "source"),
    [
        ({"identity": {"apiKeyId": "me"}}, "me"),
        ({"identity": {"apiKeyId": None}}, "anonymous"),
        ({"identity": {"apiKeyId": ""}}, "anonymous"),
        ({"identity": {}}, "anonymous"),
        ({"identity": None}, "anonymous"),
        ({}, "anonymous"),
        (None, "anonymous"),
    ],
)
def test_who_calls_is_the_api_key(context: object, source: str) -> None:
    assert read_caller({"requestContext": context}) == source
    assert build_trace({"requestContext": context})["source"] == source


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        ({}, {}),
        ({"requestContext": {"requestId": "r"}}, {"correlation_id": "r"}),
        ({"headers": {"X-Request-Id": "q", "X-Correlation-ID": "c"}}, {"correlation_id": "c"}),
        ({"headers": {"X-Request-Id": "q"}, "requestContext": {"requestId": "r"}}, {"correlation_id": "q"}),
        ({"headers": {"X-Correlation-ID": ""}, "requestContext": {"requestId": "r"}}, {"correlation_id": "r"}),
        ({"headers": {"X-Correlation-ID": "\ud83c", "X-Request-Id": " q "}}, {"correlation_id": "q"}),
        ({"multiValueHeaders": {"X-Correlation-ID": ["", " ", "c"]}}, {"correlation_id": "c"}),
        ({"headers": {"traceparent": PARENT}}, {"traceparent": PARENT}),
        ({"headers": {"traceparent": "cc" + PARENT[2:] + "-later"}}, {"traceparent": "cc" + PARENT[2:] + "-later"}),
        *(({"headers": {"traceparent": odd}}, {}) for odd in ("", "00-a", PARENT.upper(), PARENT + "\n", PARENT + "é")),
        (
            {"headers": {"x-correlation-id": "a\r\nb\x1b[31m\ud83c" + "x" * 999}},
            {"correlation_id": "ab[31m" + "x" * 190},
        ),
    ],
)
def test_what_is_kept_of_a_call_is_short_and_printable(event: dict[str, Any], kept: dict[str, str]) -> None:
    assert build_trace(event) == {"source": "anonymous"} | kept


@pytest.mark.parametrize("text", ["0" * 24, "F" * 24])
def test_an_id_is_24_digits(text: str) -> None:
    assert parse_object_id(text) == ObjectId(text)


@pytest.mark.parametrize("text", ["", "..", "a%2Fb", "x" * 12, "0" * 23, "0" * 25, "0" * 24 + "\n", "\u0663" * 24, "é"])
def test_no_task_has_any_other_id(text: str) -> None:  # F65
    with pytest.raises(HttpError) as caught:
        parse_object_id(text)
    assert caught.value.status == 404


def test_a_task_is_told_without_its_payload_and_with_offsets() -> None:  # F29
    error = {"message": "ValueError: no", "code": "ValueError", "at": T0}
    task = a_task(T0, payload={"card": "4111"}, error=error, finished_at=T0, result={"big": 2**60, "v": 1.0})

    text = build_task_answer(task).model_dump_json()
    body = json.loads(text)

    assert "4111" not in text
    assert body["created_at"] == body["finished_at"] == f"{T0:%Y-%m-%dT%H:%M:%S}.000Z"
    assert (body["id"], body["status"], body["next_retry_at"]) == (str(task.id), "pending", None)
    assert body["error"] == {"code": "ValueError", "message": "ValueError: no"}
    assert '"big":1152921504606846976,"v":1.0' in text  # F44


@pytest.mark.parametrize("result", [float("nan"), Decimal128("NaN"), ObjectId(), b"\xff", [float("inf")]])
def test_a_result_of_any_kind_is_told_in_strict_json(result: object) -> None:  # F42
    def no_constant(name: str) -> None:
        raise AssertionError(name)

    json.loads(build_task_answer(a_task(result=result)).model_dump_json(), parse_constant=no_constant)


@pytest.mark.parametrize(
    ("context", "where"), [({"path": "/v1/tasks/"}, "/v1/tasks/7"), ({}, "/tasks/7"), (None, "/tasks/7")]
)
def test_a_task_is_where_its_caller_posted_it(context: object, where: str) -> None:
    assert build_location({"path": "/tasks", "requestContext": context}, 7) == where


@given(st.sampled_from([400, 404, 409, 413, 422, 500, 503]), st.text(st.characters(), max_size=20))
def test_every_error_has_one_shape(status: int, text: str) -> None:
    answer = encode_error(HttpError(status, "code", text, [Problem(text, "wrong")]))

    assert answer["statusCode"] == status
    assert json.loads(answer["body"]) == {
        "error": {"code": "code", "message": text, "details": [{"field": text, "message": "wrong"}]}
    }
    assert answer["body"].isascii()
    assert answer["headers"]["Content-Type"] == "application/json"
    assert answer["headers"]["Cache-Control"] == "no-store"
    assert answer["headers"].get("Retry-After") == ("5" if status == 503 else None)


@pytest.mark.parametrize(
    "event",
    [
        {"name": "noop"},
        {"tasks": []},
        {"key1": "v"},
        {"detail-type": "Scheduled Event"},
        None,
        [],
        {},
        "x",
        1,
    ],
)
def test_what_comes_from_no_front_is_a_direct_invocation(event: object) -> None:
    assert is_direct(event)


@pytest.mark.parametrize("event", [REST, {"rawPath": "/tasks"}, {"requestContext": {"elb": {}}}])
def test_an_event_of_a_front_is_none(event: object) -> None:
    assert not is_direct(event)


@pytest.mark.parametrize(("name", "meant"), [("nop", "noop"), ("inne", None)])
def test_a_guess_at_a_name_tells_of_none_that_is_not_open(name: str, meant: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requested({"name": name, "payload": {}})

    assert ("did you mean" in str(caught.value)) == (meant is not None)
    assert meant is None or f"did you mean {meant}?" in str(caught.value)


def test_the_blanks_around_a_key_do_not_count() -> None:
    key = "x" * 200

    clean = clean_event(REST | {"headers": {KEY: f"  {key} "}, "body": "{}"})

    assert (clean["headers"][KEY], clean["multiValueHeaders"][KEY]) == (key, [key])
