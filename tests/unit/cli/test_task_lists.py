"""`tidemill ops task ls`: living tasks in rows, on as many pages as it takes, on a database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, document
from tests.unit.cli.conftest import Answer, CommandLine
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.cli.operations import MAX_PAGES
from tidemill.clock import ServerClock
from tidemill.policy.retry import DEFAULT
from tidemill.store.connection import Tasks
from tidemill.store.tasks import PageLimits

SECRET = "s3cret-of-a-customer"


def test_each_task_has_a_row_with_the_time_that_matters(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    now = ServerClock(db).now()
    lease = {"token": "t", "owner": "o", "expires_at": now + MINUTE}
    add(
        tasks,
        [
            document(now, name=7, payload={"card": SECRET}),
            document(now, status="cancelled", finished_at=now - 50 * MINUTE),
            document(now, status="done", finished_at=now - timedelta(days=3, hours=5), attempts=1),
            document(now - 2 * MINUTE, status="processing", attempts=2, lease=lease, lane="retry"),
            document(now + timedelta(hours=2, minutes=30), queue="eu"),
            document(now - 10 * MINUTE, name="send"),
        ],
    )

    headings, _, *rows = operator.done("ops", "task", "ls").lines

    assert headings.split() == ["task", "name", "queue", "status", "attempt", "when"]
    assert [row.split()[1:] for row in rows] == [
        ["send", "default", "pending", "0", "10m", "ago"],
        ["noop", "eu", "pending", "0", "in", "2h"],
        ["noop", "default", "processing", "2", "2m", "ago"],
        ["noop", "default", "done", "1", "3d", "ago"],
        ["noop", "default", "cancelled", "0", "50m", "ago"],
        ["-", "-", "malformed", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), 6),
        (("--status", "pending"), 4),
        (("--queue", "eu"), 3),
        (("--name", "a.c"), 2),
        (("--queue", "eu", "--name", "a.c", "--status", "done"), 1),
        (("--limit", "5"), 5),
    ],
)
def test_a_list_is_of_what_was_asked_for(
    operator: CommandLine, db: Database[Any], tasks: Tasks, options: tuple[str, ...], count: int
) -> None:
    now = ServerClock(db).now()
    done = {"status": "done", "finished_at": now}
    add(tasks, [document(now), document(now), document(now, name="abc"), document(now, queue="eu", name="a.c")])
    add(tasks, [document(now, queue="eu", **done), document(now, queue="eu", name="a.c", **done)])

    assert len(operator.done("ops", "task", "ls", *options, "--json").json["tasks"]) == count


def test_it_fits_into_80_columns(operator: CommandLine, monkeypatch: pytest.MonkeyPatch, tasks: Tasks) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    now = ServerClock(tasks.database).now()
    names = {"name": "send_an_invoice_to_the_customer", "queue": "eu-central-1-tenant-4711"}
    add(tasks, [document(now, status="processing", **names), document(now - timedelta(days=400), **names)])

    assert max(map(len, operator.done("ops", "task", "ls").lines)) <= 80


def test_what_is_left_is_found_behind_the_cursor(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    ids = [str(one) for one in add(tasks, [document(ServerClock(db).now()) for _ in range(5)])]

    first = operator.done("ops", "task", "ls", "--limit", "3")
    hint, cursor = first.lines[-1].rsplit(" ", 1)
    second = operator.done("ops", "task", "ls", "--limit", "3", "--cursor", cursor)

    assert hint == "there are more: continue with the same options and --cursor"
    assert [line.split()[0] for line in first.lines[2:-2] + second.lines[2:]] == ids[::-1]


def test_more_than_a_page_is_fetched_page_by_page(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    ids = [str(one) for one in add(tasks, [document(ServerClock(db).now()) for _ in range(230)])]

    answer = operator.done("ops", "task", "ls", "--limit", "220", "--json").json

    assert [task["id"] for task in answer["tasks"]] == ids[::-1][:220]
    assert answer["next"] is not None


def test_a_search_that_takes_too_many_pages_says_how_to_go_on(
    deploy: Callable[[Answer], CommandLine], db: Database[Any], tasks: Tasks
) -> None:
    now = ServerClock(db).now()
    add(tasks, [document(now, name="rare", status="done", finished_at=now)])
    add(tasks, [document(now, status="done", finished_at=now) for _ in range(2 * MAX_PAGES)])
    two = PageLimits(max_per_walk=2, max_per_page=2)
    context = AdminContext(db=db, clock=ServerClock(db), retry=DEFAULT, page_limits=two)
    operator = deploy(lambda event: operate(read_operation(event), context).document())
    first = operator.done("ops", "task", "ls", "--name", "rare")
    hint, cursor = first.lines[-1].rsplit(" ", 1)
    second = operator.done("ops", "task", "ls", "--name", "rare", "--cursor", cursor)

    assert hint == "no match so far: continue with the same options and --cursor"
    assert second.lines[2].split()[1] == "rare"


def test_where_nothing_is_that_is_said_with_the_database(operator: CommandLine, db: Database[Any]) -> None:
    assert operator.done("ops", "task", "ls").out == f"there are no tasks in {db.name}\n"
    assert operator.done("ops", "task", "ls", "--status", "done").out == f"no task matches in {db.name}\n"
    assert operator.done("ops", "task", "ls", "--json").json["tasks"] == []


@pytest.mark.parametrize("command", [("task", "ls"), ("stats",)])
def test_where_no_executor_ever_was_nothing_is_suspicious(
    operator: CommandLine, db: Database[Any], command: tuple[str, ...]
) -> None:
    db["task_types"].delete_many({})

    said = operator("ops", *command)

    assert (said.status, db.name in said.out) == (0, True)
    assert said.err == (
        f"tidemill: no executor has ever registered its functions in {db.name}: is MONGODB_DATABASE right?\n"
    )


def test_a_terminal_gets_a_part_of_a_long_id(terminal: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(ServerClock(db).now(), _id="order-" + "7" * 1000)])

    said = terminal.done("ops", "task", "ls")

    assert max(map(len, said.lines)) <= 80
    assert said.lines[2].startswith("order-777")
    assert said.lines[-1] == "long ids are cut: --json prints whole ids"
    assert terminal.done("ops", "task", "ls", "--json").json["tasks"][0]["id"] == task_id


def test_a_queue_that_is_not_there_is_told_beside_the_list(operator: CommandLine, db: Database[Any]) -> None:
    said = operator("ops", "task", "ls", "--queue", "defalt")

    assert (said.status, said.out) == (0, f"no task matches in {db.name}\n")
    assert said.err == "tidemill: there is no queue defalt, did you mean default?\n"


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "1.5", "", "many", "9" * 5000, "\u0663"])
def test_a_limit_that_is_none_is_answered_with_the_usage(operator: CommandLine, limit: str) -> None:
    said = operator("ops", "task", "ls", f"--limit={limit}")

    assert (said.status, said.out) == (2, "")
    assert "must be a whole number from 1 to 1000" in said.err


@pytest.mark.parametrize("cursor", ["x", "FgAAAA", "6b0a99c7baf140d0cc3848ad", "\x1b[31m"])
def test_a_cursor_that_is_none_is_refused_in_a_sentence(operator: CommandLine, cursor: str) -> None:
    refusal = 'cursor: invalid; pass the "next" value of the previous page'

    assert operator.refused("ops", "task", "ls", "--cursor", cursor) == refusal
