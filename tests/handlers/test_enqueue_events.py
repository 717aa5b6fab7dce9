"""Headers, paths, methods, and events that are none of the REST API's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.handlers.calls import answer, app, request, sample
from tests.handlers.conftest import Deployed

NOOP = {"name": "noop", "payload": {}}
ALB = {
    "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-central-1:123456789012:x"}},
    "httpMethod": "POST",
    "path": "/tasks",
    "queryStringParameters": {},
    "headers": {"host": "x"},
    "body": '{"name": "noop", "payload": {}}',
    "isBase64Encoded": False,
}
V2 = {
    "version": "2.0",
    "routeKey": "POST /tasks",
    "rawPath": "/tasks",
    "headers": {},
    "requestContext": {"http": {"method": "POST", "path": "/tasks"}, "stage": "$default"},
    "body": '{"name": "noop", "payload": {}}',
    "isBase64Encoded": False,
}
FUNCTION_URL = V2 | {"rawQueryString": "", "routeKey": "$default"}
NO_EVENTS: list[Any] = [V2, ALB, FUNCTION_URL]
NO_TASK = f"/tasks/{'0' * 24}"
NO_IDS = [
    *("0" * length for length in (12, 23, 24, 25, 300, 1_000_000)),
    *("%00", "\x00", "a%2Fb", "a/b", "a b", "a+b", "..", "é", "😀", "#", "{$ne}", '{"$gt":""}', "null"),
    *("00 00 00 00 00 00 00 00 ", "0x" + "0" * 22, "\uff10" * 24, "g" * 24),
]


@pytest.mark.parametrize("event", NO_EVENTS)
def test_an_event_of_another_kind_is_400(unchanged: Deployed, event: Any) -> None:  # F66
    refused = unchanged.http(event)

    assert (refused.status, refused.code) == (400, "invalid_event")
    assert unchanged.log()[-1]["message"] == "invalid_event"


@pytest.mark.parametrize("field", ["httpMethod", "path", "requestContext"])
@pytest.mark.parametrize("value", [None, 1, [], "absent"])
def test_an_event_without_its_essentials_is_no_event(unchanged: Deployed, field: str, value: Any) -> None:
    event = request(body=NOOP) | {field: value}
    if value == "absent":
        del event[field]

    assert unchanged.http(event).status == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": None, "multiValueHeaders": None},
        {"headers": {}, "multiValueHeaders": {"Idempotency-Key": [None]}},
        {"queryStringParameters": {}, "multiValueQueryStringParameters": None},
        {"path": "/tasks/"},
    ],
)
def test_null_headers_queries_and_slashes_do_no_harm(  # F64
    deployed: Deployed, db: Database[Any], changes: Any
) -> None:
    assert deployed.http(request(body=NOOP) | changes).status == 202
    assert db.tasks.count_documents({"idempotency_key": {"$exists": True}}) == 0


@pytest.mark.parametrize(
    "queries",
    [
        {"queryStringParameters": {"delay_sec": "60"}},
        {"queryStringParameters": {"status[$ne]": "x", "sort": "$natural"}},
        {"multiValueQueryStringParameters": {"limit": ["0", "1" * 23]}},
        {"queryStringParameters": 1},
        {"queryStringParameters": ["limit"], "multiValueQueryStringParameters": "x"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/tasks"), ("POST", "/tasks/batch"), ("GET", NO_TASK), ("DELETE", NO_TASK)]
)
def test_options_in_the_query_are_refused_not_ignored(  # F67, F71
    unchanged: Deployed, method: str, path: str, queries: dict[str, Any]
) -> None:
    refused = unchanged.http(request(method, path, body=NOOP) | queries)

    assert (refused.status, refused.fields) == (422, {"query"})


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        *((None, 202), ("", 202), ("application/json", 202), ("Application/JSON; charset=UTF-8", 202)),
        *(('application/json;charset="utf-8"', 202), ("application/vnd.api+json", 202)),
        *(("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data; boundary=x", 415)),
        *(("application/json; charset=utf-16", 415), ("text/json", 415), ("garbage", 415), ("application/jsonx", 415)),
    ],
)
def test_only_json_is_taken_and_nothing_is_taken_for_it(
    deployed: Deployed, db: Database[Any], content_type: str | None, status: int
) -> None:
    named = {} if content_type is None else {"CONTENT-TYPE": content_type}
    answer = deployed.http(request(body=NOOP) | {"headers": named, "multiValueHeaders": None})

    assert answer.status == status
    assert db.tasks.count_documents({}) == (status == 202)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br, identity", "identity, deflate"])
def test_a_compressed_body_is_415(unchanged: Deployed, encoding: str) -> None:  # F62
    answer = unchanged.http(request(body="H4sIAAAA", headers={"Content-Encoding": encoding}, isBase64Encoded=True))

    assert (answer.status, answer.code) == (415, "unsupported_encoding")


@pytest.mark.usefixtures("deployed")
def test_a_context_is_not_needed() -> None:
    assert answer(app("enqueue").lambda_handler(request(body=NOOP), None)).status == 202


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": [1]},
        {"headers": {"Idempotency-Key": 7}},
        {"multiValueHeaders": 1},
        {"multiValueHeaders": {"Idempotency-Key": 7}},
        {"requestContext": {"identity": "x"}},
        {"requestContext": {"identity": {"apiKeyId": ["x"]}, "requestId": {"a": 1}}},
        {"body": {"name": "noop"}},
        {"isBase64Encoded": "yes"},
    ],
)
def test_a_malformed_event_never_raises(deployed: Deployed, changes: Any) -> None:  # F66
    assert deployed.http(request(body=NOOP) | changes).status in {202, 400}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, "/tasks") for method in ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "", "$where")),
        *((method, f"/tasks/{'0' * 24}") for method in ("POST", "HEAD", "OPTIONS", "PUT")),
        *(("POST", path) for path in ("", "/", "/task", "/tasks/batch/x", "/v2/tasks", "//tasks")),
    ],
)
def test_what_no_route_takes_is_404(unchanged: Deployed, method: str, path: str) -> None:
    refused = unchanged.http(request(method, path, body=NOOP))

    assert (refused.status, refused.code) == (404, "not_found")


def test_an_id_that_is_none_is_404_and_matches_no_other(deployed: Deployed, db: Database[Any]) -> None:  # F65
    deployed.post(NOOP)

    for task_id in NO_IDS:
        for method in ("GET", "DELETE"):
            refused = deployed.http(request(method, f"/tasks/{task_id}"))
            assert (refused.status, refused.code) == (404, "not_found"), task_id[:30]

    assert [task["status"] for task in db.tasks.find()] == ["pending"]


@pytest.mark.parametrize("spelling", [str.lower, str.upper, lambda task_id: f"{task_id}/"])
def test_every_id_that_is_given_out_can_be_fetched(deployed: Deployed, spelling: Any) -> None:  # F65
    task_id = deployed.post(NOOP).id

    assert deployed.get(spelling(task_id)).id == task_id


@pytest.mark.parametrize(
    ("path", "location"), [("/v1/tasks", "/v1/tasks/"), ("/base/tasks/", "/base/tasks/"), (None, "/tasks/")]
)
def test_the_location_of_a_task_is_below_what_its_caller_posted_to(
    deployed: Deployed, path: str | None, location: str
) -> None:
    event = request(body=NOOP)
    event["requestContext"]["path"] = path

    accepted = deployed.http(event)

    assert accepted.headers["Location"] == location + accepted.id


@pytest.mark.parametrize("caller", ["another", None, ""])
def test_a_task_is_shown_to_its_caller_only(deployed: Deployed, db: Database[Any], caller: str | None) -> None:
    task_id = deployed.post(NOOP).id

    assert deployed.get(task_id, caller=caller).status == 404
    assert deployed.delete(task_id, caller=caller).status == 404
    assert [task["status"] for task in db.tasks.find()] == ["pending"]


def test_a_task_from_python_is_shown_to_no_caller(deployed: Deployed, db: Database[Any]) -> None:
    task_id = db.tasks.insert_one({"name": "noop", "trace": {"source": None}}).inserted_id

    assert [deployed.get(str(task_id), caller=caller).status for caller in ("None", None, "")] == [404, 404, 404]


@pytest.mark.parametrize(
    ("status", "answered"),
    [("pending", "cancelled"), ("processing", "processing"), ("done", "done"), ("failed", "failed")],
)
def test_a_delete_tells_what_became_of_the_task(
    deployed: Deployed, db: Database[Any], status: str, answered: str
) -> None:
    task_id = deployed.post(NOOP).id
    db.tasks.update_one({}, {"$set": {"status": status}})

    deleted = deployed.delete(task_id)

    assert (deleted.status, deleted.body["status"]) == (200, answered)
    assert (deleted.body["cancel_requested_at"] is not None) == (status in {"pending", "processing"})


@pytest.mark.parametrize(
    "result",
    [
        {"id": 1970670598291982290, "amount": 0.1, "v": 1.0},
        {"x": float("nan"), "y": float("-inf")},
        {"o": ObjectId(), "b": b"\xff", "$ref": "x"},
        "text",
        None,
        [1, [2]],
    ],
)
def test_a_result_is_told_in_strict_json(deployed: Deployed, db: Database[Any], result: Any) -> None:  # F42, F44
    task_id = deployed.post(NOOP).id
    db.tasks.update_one({}, {"$set": {"status": "done", "result": result}})

    told = deployed.get(task_id)

    assert told.status == 200
    assert not told.body["truncated"]
    if isinstance(result, dict) and "id" in result:
        assert '"id": 1970670598291982290, "amount": 0.1, "v": 1.0' in told.text


@pytest.mark.parametrize(
    ("edited", "shown"),
    [
        ({"result": "x" * 7_000_000}, {"result": None}),
        ({"result": ["x" * 100] * 60_000}, {"result": None}),
        ({"error": {"message": "x" * 7_000_000, "code": "x", "at": datetime.now(UTC)}}, {}),
        ({"attempt_log": [{"note": "x" * 7_000_000}]}, {"truncated": False}),
    ],
)
def test_a_task_that_was_blown_up_by_hand_is_told_in_part(  # F69
    deployed: Deployed, db: Database[Any], edited: dict[str, Any], shown: dict[str, Any]
) -> None:
    task_id = deployed.post(NOOP).id
    db.tasks.update_one({}, {"$set": edited})

    told = deployed.get(task_id)

    assert len(told.text) < 20_000
    assert told.body | {"truncated": True} | shown == told.body


def test_the_reason_of_a_failure_is_told(deployed: Deployed) -> None:
    task_id = deployed.post({"name": "deliver_webhook", "payload": {"url": "not a url"}}).id
    deployed.invoke("execute")

    told = deployed.get(task_id)

    assert (told.body["status"], told.body["reason"], told.body["attempts"]) == ("failed", "not_retryable", 1)
    assert told.body["error"]["code"]
    deployed.invoke("archive")
    assert deployed.get(task_id).body == told.body


def test_a_sample_is_what_the_builder_makes() -> None:
    event = sample("enqueue_noop")
    assert request(body=event["body"]) == event
