"""`tidemill ops task`: lists on many pages, documents edited by hand. Golden files show what the commands print."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, claim_one, document
from tests.cli.conftest import Answer, CommandLine, Said
from tests.fixtures import T0
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.admin.responses import AttemptView
from tidemill.cli.operations import MAX_PAGES
from tidemill.cli.tasks import count_missing_attempts
from tidemill.client import Queue
from tidemill.clock import ServerClock
from tidemill.policy.retry import DEFAULT
from tidemill.store.connection import Tasks
from tidemill.store.tasks import PageLimits


def facts(said: Said) -> dict[str, str]:
    """What stands above the first empty line."""
    pairs = (line.partition("  ") for line in said.lines[: said.lines.index("")])
    return {label: value.strip() for label, _, value in pairs}


# Lists


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("", 6),
        ("--status pending", 4),
        ("--queue eu", 3),
        ("--name a.c", 2),
        ("--queue eu --name a.c --status done", 1),
        ("--limit 5", 5),
    ],
)
def test_a_list_is_of_what_was_asked_for(
    operator: CommandLine, db: Database[Any], tasks: Tasks, options: str, count: int
) -> None:
    now = ServerClock(db).now()
    done = {"status": "done", "finished_at": now}
    add(tasks, [document(now), document(now), document(now, name="abc"), document(now, queue="eu", name="a.c")])
    add(tasks, [document(now, queue="eu", **done), document(now, queue="eu", name="a.c", **done)])

    assert len(operator.done("ops", "task", "ls", *options.split(), "--json").json["tasks"]) == count


def test_a_list_counts_attempts_and_numbers_none(  # A01
    operator: CommandLine, db: Database[Any], tasks: Tasks
) -> None:
    now = ServerClock(db).now()
    add(tasks, [document(now, name="fresh"), document(now, name="tried", lane="retry", attempts=1)])

    heading, _, *rows = operator.done("ops", "task", "ls").lines

    assert heading.split() == ["task", "name", "queue", "status", "attempts", "when"]
    assert {row.split()[1]: row.split()[4] for row in rows} == {"fresh": "0", "tried": "1"}


def test_what_is_left_is_found_behind_the_cursor(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    ids = [str(task_id) for task_id in add(tasks, [document(ServerClock(db).now()) for _ in range(5)])]

    first = operator.done("ops", "task", "ls", "--limit", "3")
    hint, cursor = first.lines[-1].rsplit(" ", 1)
    second = operator.done("ops", "task", "ls", "--limit", "3", "--cursor", cursor)

    assert hint == "there are more: continue with the same options and --cursor"
    assert [line.split()[0] for line in first.lines[2:-2] + second.lines[2:]] == ids[::-1]


def test_more_than_a_page_is_fetched_page_by_page(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    ids = [str(task_id) for task_id in add(tasks, [document(ServerClock(db).now()) for _ in range(230)])]

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
def test_where_no_executor_ever_was_the_database_is_suspected(
    operator: CommandLine, db: Database[Any], command: str
) -> None:
    db["task_types"].delete_many({})

    said = operator(*command.split())

    assert (said.status, db.name in said.out) == (0, True)
    assert said.err == (
        f"tidemill: no executor has ever registered its functions in {db.name}: is MONGODB_DATABASE right?\n"
    )


def test_a_terminal_gets_a_part_of_a_long_id(terminal: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    long = {"_id": "order-" + "7" * 1000, "name": "send_an_invoice_to_the_customer", "queue": "eu-central-1"}
    [task_id] = add(tasks, [document(ServerClock(db).now() - 3 * MINUTE - MINUTE / 2, **long)])

    said = terminal.done("ops", "task", "ls")

    assert max(map(len, said.lines)) <= 80
    assert said.lines[0].endswith("when")
    assert (said.lines[2][:9], said.lines[2][-6:]) == ("order-777", "3m ago")
    assert said.lines[-1] == "long ids are cut: --json prints whole ids"
    assert terminal.done("ops", "task", "ls", "--json").json["tasks"][0]["id"] == task_id


# One task


def test_explain_lists_what_keeps_a_task(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    later = ServerClock(db).now() + timedelta(hours=3)
    [task_id] = add(tasks, [document(later, due_at=later, next_retry_at=later)])

    points = [line for line in operator.done("ops", "task", "explain", str(task_id)).lines if line.startswith("- ")]
    answer = operator.done("ops", "task", "explain", str(task_id), "--json").json

    codes = [reason["code"] for reason in answer["explanation"]["reasons"]]
    assert (codes[0], len(codes)) == ("not_due", len(points))


@pytest.mark.parametrize(
    ("fields", "is_changed"),
    [
        ({"name": 7}, True),
        ({"name": 7, "status": "processing"}, True),
        ({"status": "lost"}, False),
        ({"name": 7, "status": "done"}, False),
    ],
)
def test_of_a_malformed_task_it_says_whether_it_did_anything(
    operator: CommandLine, tasks: Tasks, fields: dict[str, Any], *, is_changed: bool
) -> None:
    add(tasks, [document(ServerClock(tasks.database).now(), _id="odd", **fields)])
    [before] = tasks.find()

    said = operator.done("ops", "task", "cancel", "odd").out

    [after] = tasks.find()
    assert ("nothing was changed" not in said) is (after.raw != before.raw) is is_changed


def test_a_running_task_says_who_holds_it_since_the_claim(
    operator: CommandLine, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now, expires_at=now + MINUTE)])
    task = claim_one(tasks, now, owner="request-7")
    Queue(db).cancel(task.id)

    shown = operator.done("ops", "task", "show", str(task.id))

    assert task.lease is not None
    assert facts(shown)["held by"].startswith("request-7 since 2031-07-01 09:00:00 UTC")
    assert facts(shown)["cancel asked"].endswith("ago)")
    assert task.lease.token not in shown.out + operator.done("ops", "task", "show", str(task.id), "--json").out


@pytest.mark.parametrize(
    ("fields", "label", "value"),
    [
        ({"status": "processing", "lease": "mine"}, "held by", "unknown: the lease is malformed"),
        ({"status": "processing", "lease": {"token": 3}}, "held by", "unknown: the lease is malformed"),
        ({"status": "failed", "archive_error": "MongoDB refuses it"}, "not archived", "MongoDB refuses it"),
        ({"max_retries": 0}, "attempts", "0 of 1"),
        ({"name": "registered"}, "attempts", "0 of 8"),
        ({}, "attempts", "0 of 11, unless RETRY_POLICY of the deployment says otherwise"),
    ],
)
def test_a_task_is_described_by_facts(
    operator: CommandLine, tasks: Tasks, *, fields: dict[str, Any], label: str, value: str
) -> None:
    registration = {"http": False, "max_retries": 7, "backoff_policy": None}
    tasks.database["task_types"].update_one({}, {"$set": registration})
    add(tasks, [document(T0, _id="x", **fields)])

    assert facts(operator.done("ops", "task", "show", "x"))[label] == value


def test_a_log_that_was_edited_by_hand_is_shown_as_far_as_it_makes_sense(
    operator: CommandLine, tasks: Tasks, now: datetime
) -> None:
    line = {"attempt": 0, "status": "failed", "started_at": T0, "duration_ms": 2**62, "note": "x" * 1_000_000}
    error = {"message": "y" * 1_000_000, "code": "c", "at": now}
    log = [line, "nonsense", line | {"attempt": 1, "status": 7, "note": "503"}]
    [task_id] = add(tasks, [document(now, attempt_log=log, error=error)])

    said = operator.done("ops", "task", "show", str(task_id))

    assert said.lines[-1].split()[:2] == ["Initial", "7"]
    assert len(said.out) < 20_000


def test_attempts_are_named_and_their_notes_cannot_steer_the_terminal(
    operator: CommandLine, tasks: Tasks, now: datetime
) -> None:
    # S07
    notes = ["tried \x1b[31mone\n\u202ehost", "", "all sent"]
    log = [
        {"attempt": number, "status": "failed", "started_at": T0, "duration_ms": 1, "note": note}
        for number, note in enumerate(notes, start=1)
    ]
    [task_id] = add(tasks, [document(now, attempt_log=log, attempts=3, lane="retry")])

    said = operator.done("ops", "task", "show", str(task_id))

    rows = [re.split(r"  +", line) for line in said.lines[-3:]]
    assert [row[0] for row in rows] == ["Initial", "Retry #1", "Retry #2"]
    assert (rows[0][-1], rows[2][-1]) == (r"tried \x1b[31mone \u202ehost", "all sent")


@pytest.mark.parametrize(
    ("attempts", "missing"),
    [
        ([], []),
        ([1, 2, 3], [0, 0, 0]),
        ([1, 4], [0, 2]),
        ([5, 6], [4, 0]),
        ([1, 1, 2], [0, 0, 0]),  # a lost one is refunded: its number comes again
        ([1, 2, 3, 1, 2], [0, 0, 0, 0, 0]),  # redriven
    ],
)
def test_gaps_are_counted(attempts: list[int], missing: list[int]) -> None:
    log = [AttemptView(attempt=number, status="failed", started_at=T0, duration_ms=1, note="") for number in attempts]

    assert [count for count, _ in count_missing_attempts(log)] == missing
