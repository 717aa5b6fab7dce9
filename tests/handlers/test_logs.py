"""One line for each invocation, whatever became of it, and one for each attempt that failed: ids, names, codes."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import FUNCTIONS, ROOT, request, sample
from tests.handlers.conftest import Deployed
from tests.handlers.warm import break_clock
from tidemill import InvalidRequestError, TidemillError, UnavailableError
from tidemill.aws import logging
from tidemill.bootstrap import Role, deployment
from tidemill.errors import Problem, SettingsError, UnexpectedError
from tidemill.testing import FakeContext

LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)
CARD = "4111111111111111"
NOOP = {"name": "noop", "payload": {"card": CARD}}
IDS = {"X-Correlation-Id": "checkout-7"}
STANDARD = {"level", "location", "message", "timestamp", "service", "request_id"}
OWNER = sample("execute_failed")["requestContext"]["requestId"]


def messages(deployed: Deployed) -> list[str]:
    return [line["message"] for line in deployed.log()]


def refused(status: int, code: str) -> dict[str, Any]:
    return {"message": "refused", "level": "INFO", "status": status, "code": code, "correlation_id": "checkout-7"}


def at(path: str, method: str = "GET") -> dict[str, Any]:
    return request(method, path, headers=IDS)


# HTTP


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (request(body=NOOP, headers=IDS), {"message": "accepted", "new": 1, "correlation_id": "checkout-7"}),
        (request(body={"name": "noop", CARD: 1}, headers=IDS), refused(422, "not_allowed")),
        (request(body=f"[{CARD}", headers=IDS), refused(400, "invalid_json")),
        (request(body=NOOP | {"name": f"unknown_{CARD}"}, headers=IDS), refused(422, "not_allowed")),
        (at(f"/tasks/{CARD}"), refused(404, "not_found")),
        (at(f"/{CARD}"), refused(404, "not_found")),
        (at("/tasks/" + "0" * 24, "DELETE"), refused(404, "not_found")),
        ({"rawPath": f"/{CARD}"}, {"message": "invalid_event", "level": "WARNING"}),
    ],
)
def test_a_request_is_one_line_whatever_is_answered(deployed: Deployed, event: Any, said: dict[str, Any]) -> None:
    answer = deployed.http(event)

    [line] = deployed.log()
    assert {name: line[name] for name in said} == said, answer.text
    assert CARD not in deployed.stdout.getvalue()


def test_what_is_done_about_one_task_is_a_line_with_its_id(deployed: Deployed) -> None:
    task_id = deployed.post(NOOP).id
    deployed.get(task_id)
    deployed.delete(task_id)

    _, looked_up, cancelled = deployed.log()
    told = {"task_id": task_id, "task_name": "noop"}
    assert looked_up.items() >= (told | {"message": "looked_up", "status": "pending"}).items()
    assert cancelled.items() >= (told | {"message": "cancelled", "status": "cancelled"}).items()
    assert cancelled.keys() == STANDARD | {"task_id", "task_name", "status"}


def test_a_request_that_breaks_something_is_a_line_with_the_place_and_the_callers_id(deployed: Deployed) -> None:
    break_clock("enqueue", RuntimeError(CARD))

    answer = deployed.http(request(body=NOOP, headers=IDS))

    assert (answer.status, answer.code) == (500, "internal")
    [line] = deployed.log()
    assert (line["message"], line["level"], line["error_type"]) == ("unexpected", "ERROR", "RuntimeError")
    assert "in now" in line["stack"]
    assert line["correlation_id"] == "checkout-7"
    assert CARD not in answer.text + deployed.stdout.getvalue()


def test_no_request_is_logged_under_the_id_of_an_earlier_one(deployed: Deployed) -> None:  # F82
    deployed.http(request(body=NOOP, headers=IDS))
    unreadable = request(body=NOOP) | {"queryStringParameters": {"a": "b"}}  # refused before any route is asked
    for event in (
        unreadable,
        request(body="["),
        at("/nowhere") | {"headers": {}, "multiValueHeaders": {}},
        {"rawPath": "/"},
    ):
        deployed.http(event)

    assert ["checkout-7" in json.dumps(line) for line in deployed.log()] == [True] + [False] * 4


# Invocations


@pytest.mark.parametrize(
    ("function", "event", "message"),
    [
        ("enqueue", sample("enqueue_direct"), "accepted"),
        ("execute", None, "executed"),
        ("execute", sample("tick"), "executed"),
        ("reclaim", sample("reclaim"), "reclaimed"),
        ("reclaim", sample("execute_failed"), "reclaimed"),
        ("archive", sample("archive"), "archived"),
        ("operate", sample("operate_queue_list"), "operated"),
        ("operate", {"op": CARD}, "operated"),
    ],
)
def test_an_invocation_is_one_line(deployed: Deployed, function: str, event: Any, message: str) -> None:
    deployed.invoke(function, event)

    assert messages(deployed) == [message]
    assert CARD not in deployed.stdout.getvalue()


@pytest.mark.parametrize(
    ("function", "event"),
    [
        ("enqueue", {"name": "noop", CARD: 1}),
        *((function, {CARD: 1}) for function in ("execute", "reclaim", "archive")),
    ],
)
def test_an_event_that_is_refused_is_a_line_without_what_it_said(  # F81
    deployed: Deployed, function: str, event: Any
) -> None:
    with pytest.raises(InvalidRequestError):
        deployed.invoke(function, event)

    [line] = deployed.log()
    assert (line["message"], line["level"], line["error_type"]) == ("failed", "ERROR", "InvalidRequestError")
    assert line.keys() == STANDARD | {"error_type"}
    assert CARD not in deployed.stdout.getvalue()


@pytest.mark.parametrize("function", ["enqueue", "execute", "reclaim", "archive"])
def test_a_function_that_is_not_set_up_says_so_in_one_line(bare: Deployed, function: str) -> None:  # F80
    bare.set(MONGODB_URI=f"postgres://user:{CARD}@host")
    with pytest.raises(SettingsError):
        bare.invoke(function, sample("enqueue_direct") if function == "enqueue" else None)

    [line] = bare.log()
    assert (line["message"], line["level"], line["error_type"]) == ("failed", "ERROR", "SettingsError")
    assert "MONGODB_URI" in line["reason"]
    assert CARD not in bare.stdout.getvalue()


@pytest.mark.parametrize("function", ["enqueue", "execute", "reclaim", "archive"])
def test_a_function_without_mongodb_says_so_in_one_line(bare: Deployed, function: str) -> None:
    bare.timeout_ms, bare.request_budget_sec = 100, 0.1
    bare.set(MONGODB_URI=f"mongodb://user:{CARD}@127.0.0.1:1/", MONGODB_DATABASE="x")
    with pytest.raises(UnavailableError):
        bare.invoke(function, sample("enqueue_direct") if function == "enqueue" else None)

    [line] = bare.log()
    assert (line["message"], line["level"], line["error_type"]) == ("failed", "WARNING", "UnavailableError")
    assert line["reason"].startswith("MongoDB was not reached")
    assert CARD not in bare.stdout.getvalue()


@pytest.mark.parametrize("function", ["reclaim", "archive", "enqueue"])
def test_a_function_that_breaks_off_says_where(deployed: Deployed, function: Role) -> None:
    break_clock(function, RuntimeError(CARD))
    with pytest.raises(UnexpectedError, match="RuntimeError") as raised:  # the runtime logs its text
        deployed.invoke(function, sample("enqueue_direct") if function == "enqueue" else None)
    assert CARD not in str(raised.value)

    [line] = deployed.log()
    assert (line["message"], line["level"], line["error_type"]) == ("failed", "ERROR", "RuntimeError")
    assert "in now" in line["stack"]
    assert "reason" not in line
    assert CARD not in deployed.stdout.getvalue()


# Attempts


def lose(db: Database[Any], **fields: Any) -> None:
    """Make every task one that an executor held when it died."""
    lease = {"token": "t", "owner": OWNER, "expires_at": LONG_AGO}
    lost = {"status": "processing", "attempts": 1, "lease": lease} | fields
    db.tasks.update_many({}, {"$set": lost})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"crashes": 0}, {"outcome": "reclaimed"}),
        ({"crashes": 1}, {"outcome": "retried", "code": "lease_expired"}),
        (
            {"crashes": 1, "max_retries": 0},
            {"outcome": "failed", "code": "lease_expired", "reason": "worker_lost"},
        ),
        ({"crashes": 1, "cancel_requested_at": LONG_AGO}, {"outcome": "cancelled"}),
    ],
)
def test_an_attempt_whose_worker_vanished_is_a_line_with_the_ids_of_its_caller(
    deployed: Deployed, db: Database[Any], fields: dict[str, Any], said: dict[str, str]
) -> None:
    task_id = deployed.http(request(body=NOOP, headers=IDS)).id
    lose(db, **fields)

    deployed.invoke("reclaim", sample("execute_failed"))

    accepted, attempt, reclaimed = deployed.log()
    told = {"task_id": task_id, "task_name": "noop", "queue": "default", "attempt": 1, "level": "WARNING"}
    assert attempt.items() >= (told | said | {"message": "attempt", "correlation_id": "checkout-7"}).items()
    assert attempt["duration_ms"] >= 0
    assert {"code", "reason"} & attempt.keys() == said.keys() - {"outcome"}
    assert (accepted["message"], reclaimed["message"]) == ("accepted", "reclaimed")
    assert CARD not in deployed.stdout.getvalue()


def test_an_attempt_whose_worker_vanished_is_a_line_also_of_a_task_from_python(
    deployed: Deployed, db: Database[Any]
) -> None:
    db.tasks.insert_one(document(LONG_AGO))
    lose(db)

    deployed.invoke("reclaim")

    assert messages(deployed) == ["attempt", "reclaimed"]
    assert "correlation_id" not in deployed.log()[0]


def test_no_attempt_is_logged_under_the_ids_of_another(deployed: Deployed, db: Database[Any]) -> None:  # F82
    for number in range(3):
        deployed.http(request(body=NOOP, headers={"X-Correlation-Id": f"caller-{number}"}))
    db.tasks.insert_one(document(LONG_AGO, name="unknown", created_at=datetime(2020, 1, 1, tzinfo=UTC)))

    deployed.invoke("execute")

    lines = [line for line in deployed.log() if line["message"] in {"attempt", "executed"}]
    ids = {str(one["_id"]): one["trace"].get("correlation_id") for one in db.tasks.find()}
    assert {line["task_id"]: line.get("correlation_id") for line in lines[:-1]} == ids
    assert lines[-1]["message"] == "executed"
    assert not {"task_id", "correlation_id", "task_name"} & lines[-1].keys()


# What is said of an error


class _OwnError(TidemillError):
    """One of this package."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_OwnError("it is away"), {"error_type": "_OwnError", "reason": "it is away"}),
        (InvalidRequestError([Problem(CARD, "is no field")]), {"error_type": "InvalidRequestError"}),
        (RuntimeError(CARD), {"error_type": "RuntimeError", "stack": ""}),
    ],
)
def test_of_an_error_only_its_kind_and_our_own_words_are_told(error: Exception, said: dict[str, str]) -> None:
    assert logging.error_fields(error) == said


def test_an_unexpected_error_goes_on_with_its_stack_and_without_its_text() -> None:
    def breaks() -> None:
        raise RuntimeError(CARD)

    with pytest.raises(UnexpectedError) as raised, logging.without_text():
        breaks()

    shown = "".join(traceback.format_exception(raised.value))
    assert (raised.value.kind, raised.value.__suppress_context__) == ("RuntimeError", True)
    assert "in breaks" in shown
    assert CARD not in shown


@pytest.mark.parametrize("error", [_OwnError("it is away"), KeyboardInterrupt(), SystemExit(1)])
def test_errors_of_ours_and_what_ends_a_process_go_on_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, logging.without_text():
        raise error

    assert raised.value is error


class Broken(dict[str, Any]):
    """An event, a context and a waker, of which nothing can be read or asked."""

    def __contains__(self, _: object) -> bool:
        raise RuntimeError(CARD)

    def get(self, *_: object) -> Any:
        raise RuntimeError(CARD)

    def __getattr__(self, _: str) -> Any:
        raise RuntimeError(CARD)


@pytest.mark.parametrize(
    ("place", "error"),
    [("event", UnexpectedError), ("context", InvalidRequestError), ("waker", UnexpectedError)],
)
def test_no_place_in_the_front_lets_the_text_of_an_unexpected_error_out(
    deployed: Deployed, place: str, error: type[Exception]
) -> None:
    broken: Any = Broken(some=1)
    event, context = request(body=NOOP), FakeContext()
    if place == "waker":
        deployment().waker = broken
    with pytest.raises(error) as raised:
        deployed.http(broken if place == "event" else event, broken if place == "context" else context)
    assert CARD not in str(raised.value)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_libraries_do_not_say_what_they_do_where_lambda_would_have_them(function: str) -> None:
    code = f"""
import logging, sys
logging.basicConfig(level="INFO", stream=sys.stdout)  # as Lambda's runtime does where it logs JSON
sys.path[:0] = {[str(ROOT / folder) for folder in ("layers/core", "layers/tasks", f"functions/{function}")]}
import app
from tidemill.handlers import {function}
logging.getLogger("a.library").info("S3cr3t")
logging.getLogger("a.library").warning("away")
{function}.logger.info("accepted")
"""
    ended = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, timeout=60, check=True)

    said = [line for line in ended.stdout.splitlines() if line]
    assert [line for line in said if not line.startswith("{")] == ["WARNING:a.library:away"]
    assert [json.loads(line)["message"] for line in said if line.startswith("{")] == ["accepted"], "once"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nor_what_they_are_asked_to_say_of_every_request(function: str) -> None:  # F81
    code = f"""
import logging, sys
sys.path[:0] = {[str(ROOT / folder) for folder in ("layers/core", "layers/tasks", f"functions/{function}")]}
import app
logging.getLogger("aws_lambda_powertools.event_handler.api_gateway").debug("S3cr3t")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"POWERTOOLS_DEBUG": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "S3cr3t" not in ended.stdout + ended.stderr
