"""The sample events are what AWS sends, and fit the template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill.http.models import Batch
from tidemill.requests.events import read_direct, read_redelivery
from tidemill.requests.tasks import NewTask

EVENTS = Path(__file__).parents[2] / "events"
HTTP = {
    "enqueue_webhook": "POST /tasks",
    "enqueue_noop": "POST /tasks",
    "enqueue_delayed": "POST /tasks",
    "enqueue_keyed": "POST /tasks",
    "enqueue_invalid": "POST /tasks",
    "enqueue_to_cancel": "POST /tasks",
    "enqueue_batch": "POST /tasks/batch",
    "get_task": "GET /tasks/{id}",
    "cancel_task": "DELETE /tasks/{id}",
    "get_queue": "GET /queues/{queue}",
}
DIRECT = {
    "tick": {"source": "tick"},
    "wake": {"source": "wake"},
    "backlog": {"source": "backlog"},
    "tick_retries": {"source": "tick", "lane": "retry", "batch_size": 20, "concurrency": 8},
    "reclaim": {},
    "archive": {},
    "operate_queue_list": {"op": "queue.list"},
    "operate_queue_pause": {"op": "queue.pause", "queue": "default"},
    "operate_task_list": {"op": "task.list", "status": "pending", "limit": 20},
    "operate_task_explain": {"op": "task.explain", "id": "0" * 24},
    "operate_dlq_groups": {"op": "dlq.groups", "limit": 20},
    "operate_dlq_redrive": {"op": "dlq.redrive", "queue": "default", "per_sec": 10, "dry_run": True},
    "operate_stats": {"op": "stats", "since_sec": 86400},
}
OPERATIONS = {path.stem for path in EVENTS.glob("operate_*.json")}
FIELDS_OF_A_PROXY_EVENT = {
    "resource",
    "path",
    "httpMethod",
    "headers",
    "multiValueHeaders",
    "queryStringParameters",
    "multiValueQueryStringParameters",
    "pathParameters",
    "stageVariables",
    "requestContext",
    "body",
    "isBase64Encoded",
}
each_request = pytest.mark.parametrize("name", HTTP)


def load(name: str) -> Any:
    return json.loads((EVENTS / f"{name}.json").read_text())


def task_in(name: str) -> dict[str, Any]:
    task: dict[str, Any] = json.loads(load(name)["body"])
    return task


def test_these_are_all_events_there_are() -> None:
    assert {path.stem for path in EVENTS.glob("*.json")} == {
        *HTTP, *DIRECT, *OPERATIONS, "execute_failed", "enqueue_direct", "enqueue_recurring",
        "retries", "retries_schedule",
    }  # fmt: skip


def test_the_readme_says_what_each_is() -> None:
    readme = (EVENTS / "README.md").read_text()

    assert [path.name for path in EVENTS.glob("*.json") if f"| `{path.name}` |" not in readme] == []


@each_request
def test_a_request_is_a_whole_proxy_event(name: str) -> None:
    event = load(name)

    assert event.keys() == FIELDS_OF_A_PROXY_EVENT
    assert event["isBase64Encoded"] is False
    assert event["multiValueHeaders"] == {header: [value] for header, value in event["headers"].items()}


@each_request
def test_a_request_takes_a_route_of_the_template(resources: dict[str, Any], name: str) -> None:
    event = load(name)

    assert f"{event['httpMethod']} {event['resource']}" == HTTP[name]
    assert event["httpMethod"].lower() in resources["Api"]["Properties"]["Body"]["paths"][event["resource"]]
    assert event["path"] == event["resource"].format(**event["pathParameters"] or {})


@each_request
def test_the_context_of_a_request_agrees_with_it(resources: dict[str, Any], name: str) -> None:
    event = load(name)
    context = event["requestContext"]
    stage = resources["Apiv1Stage"]["Properties"]["StageName"]

    assert (context["resourcePath"], context["httpMethod"]) == (event["resource"], event["httpMethod"])
    assert (context["stage"], context["path"]) == (stage, f"/{stage}{event['path']}")
    assert context["domainName"] == event["headers"]["Host"]


@each_request
def test_a_request_says_which_key_its_caller_has(name: str) -> None:
    event = load(name)
    identity = event["requestContext"]["identity"]

    assert identity["apiKeyId"].isalnum()
    assert identity["apiKey"] == event["headers"]["x-api-key"]


def test_no_two_requests_have_one_request_id() -> None:
    ids = [load(name)["requestContext"]["requestId"] for name in HTTP]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", [name for name, route in HTTP.items() if route == "POST /tasks"])
def test_a_post_holds_a_task_that_fits_the_request(name: str) -> None:
    assert NewTask.model_validate_json(load(name)["body"]).name == task_in(name)["name"]
    assert load(name)["headers"]["Content-Type"] == "application/json"


def test_a_batch_holds_tasks_that_fit_the_request() -> None:
    assert [task.payload for task in Batch.model_validate_json(load("enqueue_batch")["body"]).tasks] == [
        {"n": 1}, {"n": 2},
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "recurs"), [("enqueue_direct", False), ("enqueue_recurring", True)])
def test_a_direct_invocation_fits_the_request(name: str, *, recurs: bool) -> None:
    assert (read_direct(load(name)).occurrence is not None) == recurs


@pytest.mark.parametrize(("name", "recurs"), [("retries", False), ("retries_schedule", True)])
def test_a_message_of_the_queue_of_retries_holds_a_direct_invocation(name: str, *, recurs: bool) -> None:
    [message] = load(name)["Records"]
    redelivery = read_redelivery(message)

    assert (read_direct(redelivery.event).occurrence is not None) == recurs
    assert (redelivery.failed_at is None) == recurs


@pytest.mark.parametrize("name", ["get_task", "cancel_task"])
def test_an_id_to_be_replaced_is_all_zeros(name: str) -> None:
    assert load(name)["pathParameters"] == {"id": "0" * 24}
    assert load(name)["body"] is None


def test_the_tasks_are_what_their_files_are_called() -> None:
    assert task_in("enqueue_webhook")["payload"].keys() == {"url", "body"}
    assert task_in("enqueue_noop") == {"name": "noop", "payload": {}}
    assert task_in("enqueue_delayed") == {"name": "noop", "payload": {}, "priority": 5, "delay_sec": 2}
    assert task_in("enqueue_to_cancel") == {"name": "noop", "payload": {}, "delay_sec": 3600}
    assert load("enqueue_keyed")["headers"]["Idempotency-Key"] == "order-1042"


@pytest.mark.parametrize(("name", "event"), DIRECT.items())
def test_a_scheduled_event_is_what_the_schedule_sends(name: str, event: dict[str, str]) -> None:
    assert load(name) == event


def test_a_dead_executor_is_reported_as_lambda_does(resources: dict[str, Any]) -> None:
    event = load("execute_failed")
    allowed_retries = resources["ExecuteFunctionEventInvokeConfig"]["Properties"]["MaximumRetryAttempts"]

    assert event.keys() == {
        "version",
        "timestamp",
        "requestContext",
        "requestPayload",
        "responseContext",
        "responsePayload",
    }
    assert event["requestContext"]["condition"] == "RetriesExhausted"
    assert event["requestContext"]["approximateInvokeCount"] == 1 + allowed_retries
    assert event["requestContext"]["functionArn"].endswith(":$LATEST")
    assert event["requestPayload"] == load("tick")
    assert event["requestContext"]["requestId"] in event["responsePayload"]["errorMessage"]
