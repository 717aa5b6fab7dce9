"""`tidemill ops task explain`, `retry` and `cancel`: what they do and say, on a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, document
from tests.unit.cli.conftest import CommandLine
from tidemill.cli.ops.task_text import cancelled
from tidemill.clock import ServerClock
from tidemill.store import Tasks


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

    assert said.out == f"task {task_id} is due now: the next executor that looks takes it\n"
    assert operator.refused("ops", "task", "retry", str(task_id)).startswith(f"task {task_id} is due already")


def test_a_pending_task_is_cancelled_once(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(ServerClock(db).now())])

    first, second = (operator.done("ops", "task", "cancel", str(task_id)).out for _ in range(2))

    assert first == f"task {task_id} is cancelled: it was not running\n"
    assert second == f"task {task_id} is cancelled: it had ended already, and nothing was changed\n"


def test_a_running_task_is_asked_to_stop_and_force_does_not_wait(operator: CommandLine, running: str) -> None:
    asked = operator.done("ops", "task", "cancel", running)
    forced = operator.done("ops", "task", "cancel", running, "--force")

    assert asked.out == (
        f"task {running} runs and is asked to stop: it will be cancelled, or done if it succeeds all the same\n"
    )
    assert forced.out == f"task {running} is cancelled, though it ran: what its worker still does with it is refused\n"


def test_no_part_of_force_is_force(operator: CommandLine, running: str, tasks: Tasks) -> None:
    said = operator("ops", "task", "cancel", running, "--forc")

    assert said.status == 2
    assert tasks.count_documents({"status": "processing", "cancel_requested_at": {"$exists": False}}) == 1


@pytest.mark.parametrize("action", ["show", "explain", "retry", "cancel"])
@pytest.mark.parametrize("task_id", ["0" * 24, "order-8", "a\x1bb"])
def test_a_task_that_is_not_there_is_told_in_one_line(operator: CommandLine, action: str, task_id: str) -> None:
    assert operator.refused("ops", "task", action, task_id) == f"there is no task {task_id}".replace("\x1b", "\\x1b")


@pytest.mark.parametrize(
    ("was", "task", "sentence"),
    [
        ("done", {"status": "done"}, "task x is done: it had ended already, and nothing was changed"),
        ("failed", {"status": "failed"}, "task x is failed: it had ended already, and nothing was changed"),
        ("processing", {"status": "done"}, "task x is done: it had ended already, and nothing was changed"),
        ("malformed", {}, "task x is malformed: if it had not ended, it was cancelled, or asked to stop"),
    ],
)
def test_a_cancel_says_what_it_did(was: str, task: dict[str, str], sentence: str) -> None:
    assert cancelled({"was": was, "task": {"id": "x", **task}}) == sentence
