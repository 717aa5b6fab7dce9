"""`tidemill ops task explain`, `retry` and `cancel`: what they do and say, on a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, document
from tests.conftest import T0
from tests.unit.cli.conftest import CommandLine
from tidemill.clock import ServerClock
from tidemill.store.connection import Tasks

TAKEN = "if it does not start soon, `tidemill ops task explain` shows the reason"


@pytest.fixture
def running(db: Database[Any], tasks: Tasks) -> str:
    now = ServerClock(db).now()
    lease = {"token": "t", "owner": "request-7", "expires_at": now + MINUTE}
    [task_id] = add(tasks, [document(now, status="processing", attempts=1, lease=lease)])
    return str(task_id)


def test_explain_lists_what_keeps_a_task(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    now = ServerClock(db).now()
    [task_id] = add(tasks, [document(now, due_at=now + timedelta(hours=3), next_retry_at=now + timedelta(hours=3))])

    said = operator.done("ops", "task", "explain", str(task_id))

    assert said.lines[:2] == [f"task {task_id} is pending:", ""]
    assert said.lines[2].startswith("- ")
    assert "not due until" in said.out
    codes = [
        one["code"]
        for one in operator.done("ops", "task", "explain", str(task_id), "--json").json["explanation"]["reasons"]
    ]
    assert codes[0] == "not_due"
    assert len(codes) == sum(line.startswith("- ") for line in said.lines)


def test_explain_says_that_a_task_is_a_dead_letter(operator: CommandLine, db: Database[Any]) -> None:
    now = ServerClock(db).now()
    letter = {"_id": {"task": "order-7", "redrives": 0}, "dead_lettered_at": now, "reason": "exhausted"}
    db["tasks_dlq"].insert_one(document(now, status="failed") | letter)

    assert operator.done("ops", "task", "explain", "order-7").lines[0] == "task order-7 is failed, a dead letter:"


def test_retry_makes_a_delayed_task_due_once(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    now = ServerClock(db).now()
    [task_id] = add(tasks, [document(now, due_at=now + MINUTE, next_retry_at=now + MINUTE)])

    said = operator.done("ops", "task", "retry", str(task_id))

    assert said.out == f"task {task_id} is due now: {TAKEN}\n"
    assert operator.refused("ops", "task", "retry", str(task_id)).startswith(f"task {task_id} is due already")


def test_a_pending_task_is_cancelled_once(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(ServerClock(db).now())])

    first, second = (operator.done("ops", "task", "cancel", str(task_id)).out for _ in range(2))

    assert first == f"task {task_id} is cancelled: it was not running\n"
    assert second == f"task {task_id} is cancelled: it had already ended, and nothing was changed\n"


def test_a_running_task_is_asked_to_stop_and_force_does_not_wait(operator: CommandLine, running: str) -> None:
    asked = operator.done("ops", "task", "cancel", running)
    forced = operator.done("ops", "task", "cancel", running, "--force")

    assert asked.out == (
        f"task {running} is running and was asked to stop: it ends as cancelled, or as done if it succeeds\n"
    )
    assert forced.out == f"task {running} is cancelled while running: the result of its worker will be refused\n"


def test_no_part_of_force_is_force(operator: CommandLine, running: str, tasks: Tasks) -> None:
    said = operator("ops", "task", "cancel", running, "--forc")

    assert said.status == 2
    assert tasks.count_documents({"status": "processing", "cancel_requested_at": {"$exists": False}}) == 1


@pytest.mark.parametrize("action", ["show", "explain", "retry", "cancel"])
@pytest.mark.parametrize("task_id", ["0" * 24, "order-8", "a\x1bb"])
def test_a_task_that_is_not_there_is_told_in_one_line(
    operator: CommandLine, db: Database[Any], action: str, task_id: str
) -> None:
    shown = task_id.replace("\x1b", "\\x1b")
    assert operator.refused("ops", "task", action, task_id) == f"there is no task {shown} in {db.name}"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": 7}, "it was asked to stop if it is leased, otherwise cancelled"),
        ({"name": 7, "status": "processing"}, "it was asked to stop if it is leased, otherwise cancelled"),
        ({"status": "lost"}, "it is neither pending nor processing, and nothing was changed"),
        ({"name": 7, "status": "done"}, "it is neither pending nor processing, and nothing was changed"),
    ],
)
def test_of_a_malformed_task_it_says_whether_it_did_anything(
    operator: CommandLine, tasks: Tasks, fields: dict[str, Any], sentence: str
) -> None:
    add(tasks, [document(ServerClock(tasks.database).now(), _id="odd", **fields)])
    [before] = tasks.find()

    assert operator.done("ops", "task", "cancel", "odd").out == f"task odd is malformed: {sentence}\n"
    [after] = tasks.find()
    assert (after.raw == before.raw) is ("nothing" in sentence)


@pytest.mark.parametrize("lease", [{"token": "t", "owner": "dead", "expires_at": T0 - timedelta(days=9999)}, None])
def test_a_task_whose_worker_is_gone_is_not_said_to_run(operator: CommandLine, tasks: Tasks, lease: object) -> None:
    add(tasks, [document(T0, _id="x", status="processing", attempts=1, lease=lease)])

    assert operator.done("ops", "task", "cancel", "x").out == (
        "task x was asked to stop, but its lease has expired: the next reclaim cancels it, --force does at once\n"
    )


def test_a_task_that_is_hurried_in_a_paused_queue_is_not_said_to_start(
    operator: CommandLine, db: Database[Any], tasks: Tasks
) -> None:
    now = ServerClock(db).now()
    add(tasks, [document(now, _id="x", queue="eu", due_at=now + MINUTE, next_retry_at=now + MINUTE)])
    operator.done("ops", "queue", "pause", "eu")

    said = operator.done("ops", "task", "retry", "x")

    assert said.out == "task x is due now, but queue eu is paused: it waits until the queue is resumed\n"


@pytest.mark.parametrize("action", ["show", "explain", "retry", "cancel"])
def test_an_id_that_begins_with_a_dash_goes_behind_two_of_them(
    operator: CommandLine, tasks: Tasks, action: str
) -> None:
    now = ServerClock(tasks.database).now()
    add(tasks, [document(now, _id="-f", due_at=now + MINUTE, next_retry_at=now + MINUTE)])

    assert "-f" in operator.done("ops", "task", action, "--", "-f").out
    assert "that begins with - last, after --" in " ".join(operator.done("ops", "task", action, "--help").out.split())
