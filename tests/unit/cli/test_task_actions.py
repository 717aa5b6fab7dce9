"""`tidemill ops task explain`, `retry` and `cancel`: what they do and say, on a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.conftest import T0
from tests.unit.cli.conftest import CommandLine
from tidemill.clock import ServerClock
from tidemill.store.connection import Tasks

TAKEN = "if it does not start soon, `tidemill ops task explain` shows the reason"


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
