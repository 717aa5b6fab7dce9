"""`tidemill ops task ls`: living tasks in rows, on as many pages as it takes, on a database."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("command", ["ops task ls", "ops stats", "dlq ls", "ops queue pause default"])
def test_where_no_executor_ever_was_nothing_is_suspicious(
    operator: CommandLine, db: Database[Any], command: str
) -> None:
    db["task_types"].delete_many({})

    said = operator(*command.split())

    assert (said.status, db.name in said.out) == (0, True)
    assert said.err == (
        f"tidemill: no executor has ever registered its functions in {db.name}: is MONGODB_DATABASE right?\n"
    )


def test_a_terminal_gets_a_part_of_a_long_id(terminal: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    long = {
        "_id": "order-" + "7" * 1000,
        "name": "send_an_invoice_to_the_customer",
        "queue": "eu-central-1-tenant-4711",
    }
    [task_id] = add(tasks, [document(ServerClock(db).now() - 3 * MINUTE - MINUTE / 2, **long)])

    said = terminal.done("ops", "task", "ls")

    assert max(map(len, said.lines)) <= 80
    assert said.lines[0].endswith("when")
    assert (said.lines[2][:9], said.lines[2][-6:]) == ("order-777", "3m ago")
    assert said.lines[-1] == "long ids are cut: --json prints whole ids"
    assert terminal.done("ops", "task", "ls", "--json").json["tasks"][0]["id"] == task_id
