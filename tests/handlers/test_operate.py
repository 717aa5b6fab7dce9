"""The operator's function: every sample, every bad event, and MongoDB away, through its handler."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import document
from tests.handlers import wire
from tests.handlers.calls import about, request, sample
from tests.handlers.conftest import Deployed
from tests.handlers.warm import break_clock
from tidemill.admin.api import OPERATIONS
from tidemill.control import queues
from tidemill.model import QueueOptions

PASSWORD = "S3cr3t"
CARD = "4111111111111111"
STANDARD = {"level", "location", "message", "timestamp", "service", "request_id"}


def ask(deployed: Deployed, event: Any) -> dict[str, Any]:
    """Invoke the function; the answer is as strictly JSON as Lambda's runtime wants it."""
    answer = deployed.invoke("operate", event)
    told: dict[str, Any] = json.loads(json.dumps(answer, allow_nan=False))
    return told


def refused(deployed: Deployed, event: Any) -> tuple[str, dict[str, str]]:
    """The code of the error, whose shape is checked by the way, and its details by field."""
    answer = ask(deployed, event)
    assert answer.keys() == {"error"}
    error = answer["error"]
    assert error.keys() == {"code", "message", "details"}
    assert isinstance(error["message"], str)
    assert all(one.keys() == {"field", "message"} for one in error["details"])
    return error["code"], {one["field"]: one["message"] for one in error["details"]}


def test_all_queues_are_listed(deployed: Deployed, db: Database[Any]) -> None:
    queues.declare_queue(db, "eu", now=datetime.now(UTC))

    answer = ask(deployed, sample("operate_queue_list"))

    assert answer.keys() == {"queues", "next", "database", "now"}
    assert [one["queue"] for one in answer["queues"]] == ["default", "eu"]
    assert (answer["database"], answer["now"][-1]) == (db.name, "Z")


def test_a_queue_is_paused(deployed: Deployed, db: Database[Any]) -> None:
    answer = ask(deployed, sample("operate_queue_pause"))

    assert answer["queue"]["paused"] is True
    assert answer["warnings"] == []
    assert queues.load_options(db, "default") == QueueOptions(paused=True)


def test_tasks_are_listed_with_where_they_came_from_and_without_their_payload(deployed: Deployed) -> None:
    task_id = deployed.post({"name": "noop", "payload": {"card": CARD}}).id

    answer = ask(deployed, sample("operate_task_list"))

    [task] = answer["tasks"]
    assert (task["id"], task["name"], task["source"]) == (task_id, "noop", "k9p2s7x4q1")
    assert task["correlation_id"] is not None
    assert answer["next"] is None
    assert CARD not in json.dumps(answer)


def test_why_a_task_is_not_running_is_explained(deployed: Deployed) -> None:
    task_id = deployed.post({"name": "noop", "payload": {}, "delay_sec": 3600}).id

    answer = ask(deployed, about(sample("operate_task_explain"), task_id))

    assert answer["explanation"]["task_id"] == task_id
    assert answer["explanation"]["reasons"][0]["code"] == "not_due"


def test_statistics_are_told(deployed: Deployed) -> None:
    deployed.post({"name": "noop", "payload": {}})
    deployed.invoke("execute")

    [of_default] = ask(deployed, sample("operate_stats"))["statistics"]

    assert (of_default["queue"], of_default["total_retries"]) == ("default", 0)


def test_the_policy_that_is_told_is_the_deployments(deployed: Deployed) -> None:
    deployed.set(RETRY_POLICY="standard")
    task_id = deployed.post({"name": "noop", "payload": {}}).id

    task = ask(deployed, {"op": "task.show", "id": task_id})["task"]

    assert (task["attempts_allowed"], task["attempts_allowed_assumed"]) == (4, False)


@pytest.mark.parametrize("event", [{}, None, [], "queue.list", 7, True, {"key1": "v"}, request(), {"source": "tick"}])
def test_what_is_no_operation_is_told_which_there_are(deployed: Deployed, event: Any) -> None:
    code, details = refused(deployed, event)

    assert (code, set(details)) == ("invalid_event", {"op"})
    assert [op for op in OPERATIONS if op not in details["op"]] == []


@pytest.mark.parametrize(
    ("op", "guess"),
    [("queue.lst", "queue.list"), ("tasks.list", "task.list"), ("stat", "stats"), ("task.kancel", "task.cancel")],
)
def test_an_operation_that_is_nearly_one_is_guessed(deployed: Deployed, op: str, guess: str) -> None:
    code, details = refused(deployed, {"op": op})

    assert code == "not_allowed"
    assert details["op"].startswith(f"is unknown, did you mean {guess}? the operations are ")


@pytest.mark.parametrize("op", ["", "drop", None, 7, ["queue.list"], {"$gt": ""}, "\ud83c", "queue.list\x00", CARD])
def test_an_unknown_operation_is_refused_and_not_repeated(deployed: Deployed, op: Any) -> None:
    code, details = refused(deployed, {"op": op})

    assert (code, set(details)) == ("not_allowed", {"op"})
    assert CARD not in details["op"] + deployed.stdout.getvalue()
    assert deployed.log()[-1]["op"] == "unknown"


def test_a_task_that_is_not_there_is_not_found(deployed: Deployed) -> None:
    assert refused(deployed, sample("operate_task_explain")) == ("not_found", {})
    for op in ("show", "retry", "cancel"):
        assert refused(deployed, {"op": f"task.{op}", "id": "order-8"}) == ("not_found", {})


def test_a_task_that_waits_for_nothing_cannot_be_hurried(deployed: Deployed) -> None:
    task_id = deployed.post({"name": "noop", "payload": {}}).id

    assert refused(deployed, {"op": "task.retry", "id": task_id}) == ("not_delayed", {})


def test_each_invocation_is_one_line_with_the_operation_and_what_became_of_it(deployed: Deployed) -> None:
    for event in (sample("operate_stats"), {"op": "task.show", "id": CARD}, {"op": "queue.status", "queue": CARD}, {}):
        deployed.invoke("operate", event)

    lines = deployed.log()
    assert [(line["op"], line["outcome"]) for line in lines] == [
        ("stats", "done"),
        ("task.show", "not_found"),
        ("queue.status", "not_allowed"),
        ("unknown", "invalid_event"),
    ]
    assert all(line.keys() == STANDARD | {"op", "outcome"} for line in lines)
    assert CARD not in deployed.stdout.getvalue()


@pytest.mark.parametrize("server", [wire.nobody, wire.silence])
def test_a_server_that_is_away_is_told_in_time_and_without_its_address(bare: Deployed, server: Any) -> None:
    bare.request_budget_sec = 0.5  # the tests' time: both wait to the end
    with server() as address:
        bare.set(MONGODB_URI=f"mongodb://user:{PASSWORD}@{address}/db")
        started = time.monotonic()
        answer = ask(bare, {"op": "task.show", "id": CARD})

    assert answer["error"]["code"] == "unavailable"
    assert time.monotonic() - started < 1.5
    for text in (json.dumps(answer), bare.stdout.getvalue()):
        assert [word for word in (PASSWORD, address, "127.0.0.1", CARD) if word in text] == []
    [line] = bare.log()
    assert (line["level"], line["op"], line["outcome"]) == ("WARNING", "task.show", "unavailable")


def test_its_clients_give_up_after_4_seconds_by_themselves(deployed: Deployed) -> None:
    ask(deployed, sample("operate_stats"))

    assert deployed.clients[-1].options.timeout == 4.0


@pytest.mark.parametrize("uri", [None, f"mongodb://user:{PASSWORD}@ss@h/db", f"postgres://u:{PASSWORD}@h/"])
def test_settings_that_are_no_use_are_told_without_their_values(bare: Deployed, uri: str | None) -> None:
    bare.set(MONGODB_URI=uri)

    answer = ask(bare, sample("operate_queue_list"))

    assert answer["error"]["code"] == "misconfigured"
    assert answer["error"]["message"].startswith("MONGODB_URI ")
    assert PASSWORD not in json.dumps(answer) + bare.stdout.getvalue()
    assert (bare.log()[-1]["level"], bare.log()[-1]["outcome"]) == ("ERROR", "misconfigured")


def test_an_index_that_is_missing_is_told_with_the_command_that_makes_it(
    deployed: Deployed, client: MongoClient[Any], db: Database[Any]
) -> None:
    client[db.name]["queue_stats"].drop_index("retention")

    answer = ask(deployed, sample("operate_stats"))

    assert answer["error"]["code"] == "misconfigured"
    assert "`tidemill indexes`" in answer["error"]["message"]


def test_an_unexpected_error_is_an_answer_and_logged_without_its_text(deployed: Deployed) -> None:
    break_clock("operate", RuntimeError(CARD))

    assert refused(deployed, {"op": "stats"}) == ("internal", {})
    [line] = deployed.log()
    assert (line["level"], line["error_type"]) == ("ERROR", "RuntimeError")
    assert "in now" in line["stack"]
    assert CARD not in deployed.stdout.getvalue()


def test_what_is_usual_is_not_cut(deployed: Deployed, db: Database[Any]) -> None:
    now = datetime.now(UTC)
    db.tasks.insert_one(document(now, _id="usual", error={"message": "x" * 5000, "code": "c", "at": now}))

    answer = ask(deployed, {"op": "task.show", "id": "usual"})

    assert "truncated" not in answer
    assert answer["task"]["error"]["message"] == "x" * 5000


def test_a_page_of_large_tasks_stays_small(deployed: Deployed, db: Database[Any]) -> None:
    now = datetime.now(UTC)
    large = {"payload": {"a": "x" * 100_000}, "result": "y" * 100_000}
    db.tasks.insert_many([document(now - timedelta(days=1), **large) for _ in range(100)])

    answer = ask(deployed, {"op": "task.list", "limit": 100})

    assert len(answer["tasks"]) == 100
    assert len(json.dumps(answer)) < 200_000
