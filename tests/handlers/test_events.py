"""Every sample event through its handler, on a real MongoDB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import CALLER, about, request, sample
from tests.handlers.conftest import Deployed

FIELDS_OF_A_NEW_TASK = {
    "_id", "name", "queue", "payload", "status", "lane", "priority", "due_at", "next_retry_at", "attempts",
    "max_retries", "backoff_policy", "timeout_sec", "expires_at", "created_at", "updated_at", "finished_at",
    "error", "attempt_log", "crashes", "redrives", "result", "trace",
}  # fmt: skip
POSTS = ("enqueue_noop", "enqueue_webhook", "enqueue_delayed", "enqueue_keyed", "enqueue_to_cancel")


def stored(db: Database[Any], task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = db.tasks.find_one({"_id": ObjectId(task_id)}) or {}
    return found


@pytest.mark.parametrize("name", POSTS)
def test_a_task_that_is_posted_is_accepted(deployed: Deployed, name: str) -> None:
    answer = deployed.http(sample(name))

    assert answer.status == 202
    assert answer.body == {"id": answer.id, "status": "pending"}
    assert answer.headers["Location"] == f"/v1/tasks/{answer.id}"


@pytest.mark.parametrize("name", POSTS)
def test_what_is_stored_has_the_shape_of_the_design(deployed: Deployed, db: Database[Any], name: str) -> None:
    event = sample(name)
    before = datetime.now(UTC) - timedelta(seconds=1)

    task = stored(db, deployed.http(event).id)

    of_key = {"idempotency_key", "request_hash"} if name == "enqueue_keyed" else set()
    assert task.keys() == FIELDS_OF_A_NEW_TASK | of_key
    assert (task["status"], task["lane"], task["queue"]) == ("pending", "fresh", "default")
    assert (task["attempts"], task["crashes"], task["redrives"], task["attempt_log"]) == (0, 0, 0, [])
    assert before < task["created_at"] == task["updated_at"] < before + timedelta(seconds=3)
    context = event["requestContext"]
    assert task["trace"] == {"source": context["identity"]["apiKeyId"], "correlation_id": context["requestId"]}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-correlation-id": "c-1", "x-request-id": "r-1"}, {"correlation_id": "c-1"}),
        ({"X-Request-Id": "r-1"}, {"correlation_id": "r-1"}),
        ({"TraceParent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, {"traceparent": ANY}),
        ({"x-correlation-id": "a\r\nb\x00c" + "x" * 300}, {"correlation_id": "abc" + "x" * 194}),
        ({"x-correlation-id": '{"$gt": ""}'}, {"correlation_id": '{"$gt": ""}'}),
    ],
)
def test_what_a_caller_correlates_by_is_kept_as_plain_text(
    deployed: Deployed, db: Database[Any], headers: dict[str, str], expected: dict[str, str]
) -> None:
    task = stored(db, deployed.http(request(body='{"name": "noop", "payload": {}}', headers=headers)).id)

    kept = {"source": CALLER, "correlation_id": sample("enqueue_noop")["requestContext"]["requestId"]}
    assert task["trace"] == kept | expected


def test_a_webhook_keeps_its_payload(deployed: Deployed, db: Database[Any]) -> None:
    task = stored(db, deployed.http(sample("enqueue_webhook")).id)

    order = {"event": "order.paid", "order_id": 1042}
    assert task["payload"] == {"url": "https://example.com/hooks/orders", "body": order}
    assert task["due_at"] == task["created_at"]
    assert task["next_retry_at"] is None


def test_a_delayed_task_is_due_after_its_delay(deployed: Deployed, db: Database[Any]) -> None:
    task = stored(db, deployed.http(sample("enqueue_delayed")).id)

    assert task["due_at"] == task["next_retry_at"] == task["created_at"] + timedelta(seconds=2)
    assert task["priority"] == 5


def test_a_keyed_task_sent_twice_is_one_task(deployed: Deployed, db: Database[Any]) -> None:
    first, second = (deployed.http(sample("enqueue_keyed")) for _ in range(2))

    assert (first.status, second.status) == (202, 200)
    assert second.body == {"id": first.id, "status": "pending"}
    assert second.headers["Location"] == first.headers["Location"]
    assert db.tasks.count_documents({}) == 1
    assert stored(db, first.id)["idempotency_key"] == f"{CALLER}:order-1042"


def test_a_task_of_an_unknown_name_is_refused(deployed: Deployed, db: Database[Any]) -> None:
    answer = deployed.http(sample("enqueue_invalid"))

    assert (answer.status, answer.code, answer.fields) == (422, "not_allowed", {"name"})
    assert db.tasks.count_documents({}) == 0


def test_a_task_is_told_of(deployed: Deployed) -> None:
    task_id = deployed.http(sample("enqueue_delayed")).id

    answer = deployed.http(about(sample("get_task"), task_id))

    assert answer.status == 200
    assert answer.body.keys() == {
        "id", "name", "queue", "status", "attempts", "created_at", "next_retry_at", "finished_at",
        "cancel_requested_at", "reason", "error", "result", "truncated",
    }  # fmt: skip
    assert (answer.body["id"], answer.body["status"], answer.body["attempts"]) == (task_id, "pending", 0)
    assert answer.body["next_retry_at"].endswith("Z")


def test_a_task_is_cancelled(deployed: Deployed, db: Database[Any]) -> None:
    task_id = deployed.http(sample("enqueue_to_cancel")).id

    answer = deployed.http(about(sample("cancel_task"), task_id))

    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    assert stored(db, task_id)["status"] == "cancelled"
    assert deployed.http(about(sample("get_task"), task_id)).body["status"] == "cancelled"


def test_a_tick_runs_what_is_due(deployed: Deployed) -> None:
    task_id = deployed.http(sample("enqueue_noop")).id

    report = deployed.invoke("execute", sample("tick"))

    assert (report["claimed"], report["done"]) == (1, 1)
    assert deployed.http(about(sample("get_task"), task_id)).body["status"] == "done"


def test_what_a_dead_executor_held_is_due_again(deployed: Deployed, db: Database[Any]) -> None:
    event, now = sample("execute_failed"), datetime.now(UTC).replace(microsecond=0)
    owner = event["requestContext"]["requestId"]
    held = {"token": "t", "owner": owner, "expires_at": now + timedelta(minutes=2)}
    others = {"token": "u", "owner": "another", "expires_at": now + timedelta(minutes=2)}
    mine = document(now, status="processing", attempts=3, lease=held)
    db.tasks.insert_many([mine, document(now, status="processing", attempts=1, lease=others)])

    report = deployed.invoke("reclaim", event)

    assert (report["reclaimed"], report["failed"]) == (1, 0)
    task = stored(db, mine["_id"])
    assert (task["status"], task["attempts"], task["crashes"]) == ("pending", 2, 1)
    assert "lease" not in task
    assert db.tasks.count_documents({"status": "processing"}) == 1


def test_a_tick_of_reclaim_takes_back_leases_that_ran_out(deployed: Deployed, db: Database[Any]) -> None:
    now = datetime.now(UTC)
    lease = {"token": "t", "owner": "o", "expires_at": now - timedelta(seconds=1)}
    db.tasks.insert_one(document(now, status="processing", attempts=1, lease=lease))

    assert deployed.invoke("reclaim", sample("reclaim"))["reclaimed"] == 1
    assert deployed.invoke("reclaim", sample("reclaim"))["reclaimed"] == 0


def test_a_tick_of_archive_moves_what_failed(deployed: Deployed, db: Database[Any]) -> None:
    task_id = deployed.http(sample("enqueue_noop")).id
    db.tasks.update_one({}, {"$set": {"status": "failed", "finished_at": datetime.now(UTC)}})

    assert deployed.invoke("archive", sample("archive"))["moved"] == 1
    assert deployed.invoke("archive", sample("archive"))["moved"] == 0
    assert db.tasks_dlq.count_documents({}) == 1
    assert deployed.http(about(sample("get_task"), task_id)).body["status"] == "failed"
