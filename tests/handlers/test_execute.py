"""The handler of execute: what it takes, what it refuses, and what it reports."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import app, request
from tests.handlers.conftest import Deployed
from tests.handlers.test_enqueue_direct import SCHEDULED
from tests.handlers.test_enqueue_events import V2
from tests.handlers.warm import break_clock
from tidemill import InvalidRequestError, UnavailableError
from tidemill.bootstrap import deployment
from tidemill.errors import IsolationError, RegistrationError
from tidemill.executor.context import COUNT_NAMES
from tidemill.registry import Registry
from tidemill.requests.events import ExecuteRequest
from tidemill.runner.process_protocol import RunSpec
from tidemill.runner.results import RunResult
from tidemill.testing import FakeContext


def due(db: Database[Any], **fields: Any) -> Any:
    return db.tasks.insert_one(document(datetime(2026, 7, 1, tzinfo=UTC), **fields)).inserted_id


def _dates(value: Any) -> list[datetime]:
    if isinstance(value, dict | list):
        return [one for inner in (value.values() if isinstance(value, dict) else value) for one in _dates(inner)]
    return [value] if isinstance(value, datetime) else []


@pytest.mark.parametrize(
    "event",
    [
        None,
        {},
        {"source": "tick"},
        {"source": "wake", "queues": ["default"], "lane": "fresh", "batch_size": 1, "concurrency": 1},
        {"selection": "retries_first"},
        {"source": "backlog", "queues": [], "lane": None, "batch_size": None},
        {"batch_size": 1000, "concurrency": 256},
    ],
)
def test_every_field_of_the_event_is_optional(deployed: Deployed, db: Database[Any], event: Any) -> None:
    due(db)

    report = deployed.invoke("execute", event)

    assert tuple(report) == COUNT_NAMES
    assert (report["claimed"], report["done"]) == (1, 1)


def test_the_event_says_what_is_served_and_how() -> None:
    request = ExecuteRequest(lane="retry", selection="oldest_first", batch_size=3, concurrency=2, queues=["eu"])

    order = app("execute").build_options(request, None)

    assert (order.lanes, order.selection) == (("retry",), "oldest_first")
    assert (order.batch_size, order.concurrency, order.queues) == (3, 2, ("eu",))


@pytest.mark.parametrize(
    ("event", "field"),
    [
        *(({"batch_size": value}, "batch_size") for value in (0, -5, "10", 10**6, 1.5, True)),
        *(({"concurrency": value}, "concurrency") for value in (0, -1, 10**6, "x")),
        ({"queue": "default"}, "queue"),
        ({"queues": "default"}, "queues"),
        ({"queues": [{"$ne": 1}]}, "queues.0"),
        ({"queues": ["a b"]}, "queues.0"),
        ({"queues": {"$ne": 1}}, "queues"),
        ({"lane": "fast"}, "lane"),
        *(({"selection": value}, "selection") for value in ("best", "", 1, ["weighted"], True)),
        ({"source": "manual"}, "source"),
        ({"time": "garbage"}, "time"),
        ({"key1": "v"}, "key1"),
        (SCHEDULED, "detail-type"),
        (V2, "rawPath"),
        ([], "event"),
        ("tick", "event"),
        (7, "event"),
    ],
)
def test_anything_else_is_refused_before_anything_is_asked(unchanged: Deployed, event: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        unchanged.invoke("execute", event)

    assert field in {problem.field for problem in refused.value.problems}
    assert unchanged.commands() == []


@pytest.mark.usefixtures("deployed")
def test_without_a_context_it_lives_as_long_as_by_default(db: Database[Any]) -> None:
    due(db)

    assert app("execute").lambda_handler({}, None)["done"] == 1


@pytest.mark.parametrize("left", [59, 10, 0, -1])
def test_an_invocation_that_is_nearly_over_claims_nothing_and_says_what_to_change(
    deployed: Deployed, db: Database[Any], left: int
) -> None:
    due(db)

    report = deployed.invoke("execute", {}, FakeContext(timedelta(seconds=left)))

    assert report == {"skipped": "time"} | dict.fromkeys(COUNT_NAMES, 0)
    assert [task["status"] for task in db.tasks.find()] == ["pending"]
    assert db.control.count_documents({"_id": "executor_slots"}) == 0
    warning = deployed.log()[-1]
    assert (warning["message"], warning["level"]) == ("timeout_too_short", "WARNING")
    assert warning["reason"].startswith("nothing can be claimed: give the function a timeout of 120 s")


def test_an_invocation_that_is_shorter_than_two_longest_tasks_is_warned_of(deployed: Deployed) -> None:
    deployed.invoke("execute", {}, FakeContext(timedelta(seconds=100)))

    [report, warning] = deployed.log()
    assert (report["message"], warning["message"]) == ("executed", "timeout_too_short")
    assert "or lower MAX_TASK_TIMEOUT_SEC" in warning["reason"]


def test_without_a_seat_it_leaves_at_once(deployed: Deployed, db: Database[Any]) -> None:
    due(db)
    deployed.set(MAX_EXECUTORS="1")
    until = datetime.now(UTC) + timedelta(minutes=1)
    db.control.insert_one(
        {"_id": "executor_slots", "holds": [{"owner": "o", "execution": "e", "n": 1, "until": until}]}
    )

    report = deployed.invoke("execute")

    assert report == {"skipped": "executor_slots"} | dict.fromkeys(COUNT_NAMES, 0)
    assert deployed.log()[-1]["skipped"] == "executor_slots"
    assert [task["status"] for task in db.tasks.find()] == ["pending"]


def test_its_seat_ends_a_little_after_the_invocation_and_is_left_by_then(deployed: Deployed, db: Database[Any]) -> None:
    before = datetime.now(UTC)

    deployed.invoke("execute", {}, FakeContext(timedelta(seconds=100), request_id="r-1"))

    [taken, _] = [command for name, command in deployed.commands() if name == "findAndModify"]
    assert "r-1" in str(taken["update"])
    [until] = {one for one in _dates(taken["update"]) if one > before + timedelta(seconds=10)}
    assert abs(until - before - timedelta(seconds=105)) < timedelta(seconds=2)
    assert db.control.find_one({"_id": "executor_slots"})["holds"] == []  # type: ignore[index]


def test_its_leases_carry_the_request_id_and_end_with_the_invocation(
    deployed: Deployed, db: Database[Any]
) -> None:  # F05
    context = FakeContext(timedelta(seconds=100), request_id="r-1")
    due(db)
    before = datetime.now(UTC)

    deployed.invoke("execute", {}, context)

    [claim] = [command for name, command in deployed.commands() if name == "update" and "lease" in str(command)][:1]
    lease = claim["updates"][0]["u"]["$set"]["lease"]
    assert lease["owner"] == "r-1"
    assert abs(lease["expires_at"].replace(tzinfo=UTC) - before - timedelta(seconds=105)) < timedelta(seconds=2)


def test_the_report_is_returned_and_logged(deployed: Deployed, db: Database[Any]) -> None:
    due(db)
    due(db, name="unknown_task", created_at=datetime(2020, 1, 1, tzinfo=UTC))

    report = deployed.invoke("execute", {"source": "backlog"})

    refused, line = deployed.log()
    assert (refused["message"], refused["task_name"], refused["reason"]) == ("attempt", "unknown_task", "unknown_task")
    assert (line["message"], line["source"], line["level"]) == ("executed", "backlog", "INFO")
    assert {name: line[name] for name in COUNT_NAMES} == report
    assert (report["claimed"], report["done"], report["failed"]) == (2, 1, 1)


class Prison:
    """Has no room."""

    def run(
        self,
        spec: RunSpec,
        *,
        cancelled: threading.Event,
        take_note: Callable[[str], object],  # noqa: ARG002 - it takes none
    ) -> RunResult:
        raise IsolationError(f"no process for {spec.name}, {cancelled.is_set()}")

    def close(self) -> None:
        raise NotImplementedError


def test_why_isolated_tasks_did_not_start_is_warned_of_once(deployed: Deployed, db: Database[Any]) -> None:
    warm = deployment()
    warm.runtime = replace(warm.runtime, isolation=Prison())
    for _ in range(3):
        due(db, crashes=1)

    report = deployed.invoke("execute")

    assert (tuple(report), report["snoozed"]) == (COUNT_NAMES, 3)
    [_, warning] = deployed.log()
    assert (warning["message"], warning["level"]) == ("task_not_started", "WARNING")
    assert warning["reason"] == "the function could not be given a process of its own: no process for noop, False"


def test_a_package_that_is_not_there_is_named_and_nothing_is_claimed(deployed: Deployed, db: Database[Any]) -> None:
    deployed.set(TASK_PACKAGE="tasks_of_nobody")
    due(db)

    for _ in range(2):
        with pytest.raises(RegistrationError, match="there is no package tasks_of_nobody"):
            deployed.invoke("execute")

    assert deployed.clients == []
    assert [task["status"] for task in db.tasks.find()] == ["pending"]


def test_a_cold_start_writes_the_task_types_once(deployed: Deployed, db: Database[Any]) -> None:
    db.task_types.drop()

    deployed.invoke("execute")
    assert {one["_id"]: one["http"] for one in db.task_types.find()} == {"noop": True, "deliver_webhook": True}
    deployed.cool_down()
    deployed.commands()
    deployed.invoke("execute")

    assert "update" not in {name for name, _ in deployed.commands()}


def test_outcomes_that_mongodb_does_not_confirm_are_an_error_after_the_report(
    deployed: Deployed, db: Database[Any], client: MongoClient[Any]
) -> None:  # F91
    due(db)
    deployed.timeout_ms = 200
    data = {"failCommands": ["update"], "appName": "tidemill-execute", "errorCode": 6}
    deployed.invoke("execute", {"queues": ["none"]})
    runtime = deployment().runtime
    short = replace(runtime.settings, margin=timedelta(0), max_task_timeout=timedelta(seconds=1))
    deployment().runtime = replace(runtime, settings=short)
    client.admin.command("configureFailPoint", "failCommand", mode={"skip": 1}, data=data)

    try:
        with pytest.raises(UnavailableError, match="1 tasks"):
            deployed.invoke("execute", {}, FakeContext(timedelta(seconds=2.3)))
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")

    line = deployed.log()[-1]
    assert (line["level"], line["message"]) == ("WARNING", "executed")
    assert (line["claimed"], line["done"], line["unknown"]) == (1, 0, 1)
    assert [task["status"] for task in db.tasks.find()] == ["processing"]


def test_a_request_of_the_rest_api_is_no_event_of_the_executor(deployed: Deployed) -> None:
    with pytest.raises(InvalidRequestError):
        deployed.invoke("execute", request(body="{}"))


def test_what_a_function_has_changed_for_all_is_as_before_in_the_next_invocation(
    deployed: Deployed, db: Database[Any]
) -> None:
    limit, warm, is_spoilt = sys.getrecursionlimit(), deployment(), threading.Event()
    registry = Registry()

    @registry.task("noop")
    def spoil(_: Any) -> None:
        sys.setrecursionlimit(limit + 50)
        logging.disable()
        is_spoilt.set()

    warm.runtime = replace(warm.runtime, registry=registry)
    break_clock("execute", UnavailableError("MongoDB is away"), is_broken=is_spoilt.is_set)
    due(db)

    with pytest.raises(UnavailableError):
        deployed.invoke("execute")

    assert (sys.getrecursionlimit(), logging.root.manager.disable) == (limit, logging.NOTSET)
