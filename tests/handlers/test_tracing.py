"""The caller's ids: kept with the task, told to its function, and found again in the log of its execution."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tests.handlers.calls import request
from tests.handlers.conftest import Deployed
from tidemill import Queue
from tidemill.executor.outcomes import is_failure, log_fields, should_log
from tidemill.model import Failed, Failure, Malformed, Succeeded
from tidemill.store.settle import Settlement

NOOP: dict[str, Any] = {"name": "noop", "payload": {"card_number": "4111"}}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALLERS_IDS = {"X-Correlation-Id": "checkout-7", "traceparent": PARENT}


def attempts(deployed: Deployed) -> list[dict[str, Any]]:
    return [one for one in deployed.log() if one["message"] == "attempt"]


@pytest.mark.parametrize(("path", "body"), [("/tasks", NOOP), ("/tasks/batch", {"tasks": [NOOP]})])
def test_the_ids_of_the_caller_reappear_where_the_task_runs(deployed: Deployed, path: str, body: Any) -> None:
    deployed.http(request("POST", path, body=body, headers=CALLERS_IDS))
    [accepted] = deployed.log()

    deployed.invoke("execute")

    [attempt] = attempts(deployed)
    for said in (accepted, attempt):
        assert (said["correlation_id"], said["traceparent"]) == ("checkout-7", PARENT)
    assert accepted["task_ids"] == [attempt["task_id"]]
    assert (attempt["level"], attempt["outcome"], attempt["task_name"], attempt["attempt"]) == (
        "INFO", "done", "noop", 1,
    )  # fmt: skip
    assert attempt["queue"] == "default"
    assert attempt["duration_ms"] >= 0
    assert "4111" not in deployed.stdout.getvalue()


def test_without_any_the_id_of_the_request_does(deployed: Deployed) -> None:
    event = request(body=NOOP)
    deployed.http(event)

    deployed.invoke("execute")

    [attempt] = attempts(deployed)
    assert attempt["correlation_id"] == event["requestContext"]["requestId"]
    assert "traceparent" not in attempt


def test_a_failed_attempt_is_a_warning_with_its_code_also_of_a_task_from_python(
    deployed: Deployed, db: Database[Any]
) -> None:
    deployed.post({"name": "deliver_webhook", "payload": {"url": "4111"}})
    Queue(db).enqueue("deliver_webhook", {"url": "4111"})

    deployed.invoke("execute")

    found = attempts(deployed)
    assert [(one["level"], one["outcome"], one["reason"]) for one in found] == [
        ("WARNING", "failed", "not_retryable")
    ] * 2
    assert all(one["code"] for one in found)
    assert ["correlation_id" in one for one in found].count(True) == 1
    assert "4111" not in deployed.stdout.getvalue()


def test_a_success_of_a_task_from_python_makes_no_line(deployed: Deployed, db: Database[Any]) -> None:
    Queue(db).enqueue("noop", {})

    assert deployed.invoke("execute")["done"] == 1

    assert attempts(deployed) == []


def test_of_a_document_that_is_no_task_only_what_is_known_is_said() -> None:
    failure = Failure(message="name is missing", code="malformed", retryable=False)
    broken = Malformed(id=7, problem="name is missing", lease=None)
    settlement = Settlement(task=broken, outcome=Failed(failure=failure, reason="malformed"))

    assert (is_failure(settlement), should_log(settlement)) == (True, True)
    assert log_fields(settlement) == {"task_id": "7", "outcome": "failed", "code": "malformed", "reason": "malformed"}
    assert not should_log(Settlement(task=broken, outcome=Succeeded(result=None)))
