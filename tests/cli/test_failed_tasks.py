"""Tasks that failed a minute ago, before the archive moved them: counted, named, and redriven."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.buried import bury, failed, letter
from tests.cli.conftest import CommandLine
from tidemill.clock import ServerClock
from tidemill.documents import decode
from tidemill.store.connection import Tasks

LATER = "archive moves them every 5 minutes, `tidemill dlq redrive` moves them before it begins"


@pytest.fixture
def lately(db: Database[Any]) -> datetime:
    """A minute ago, as the server has it."""
    return ServerClock(db).now() - timedelta(minutes=1)


@pytest.fixture
def waiting(tasks: Tasks, lately: datetime) -> list[Any]:
    """Three failed tasks that the archive has not moved yet: ids."""
    return add(
        tasks,
        [
            failed(lately, name="registered"),
            failed(lately, name="registered", queue="eu"),
            failed(lately, name="other"),
            document(lately, status="done"),
        ],
    )[:3]


def statuses(tasks: Tasks) -> list[str]:
    return sorted(decode(raw)["status"] for raw in tasks.find({}, {"status": 1}))


@pytest.mark.usefixtures("waiting")
def test_a_redrive_of_all_includes_them(  # A02
    operator: CommandLine, tasks: Tasks, dead: Tasks, died: datetime
) -> None:
    bury(dead, [letter(died, name="registered")])

    said = operator("dlq", "redrive", "--all")

    assert said.lines[0].startswith("3 dead letters of ")
    assert "- 1 unregistered: no executor has registered their function: other (1)" in said.lines
    assert statuses(tasks) == ["done", *["pending"] * 3]


@pytest.mark.parametrize(("options", "count"), [(("--queue", "eu"), 1), (("--name", "registered", "--limit", "1"), 1)])
def test_a_redrive_by_a_filter_includes_those_that_match(  # A02
    operator: CommandLine, waiting: list[Any], tasks: Tasks, *, options: tuple[str, ...], count: int
) -> None:
    assert operator.done("dlq", "redrive", *options, "--json").json["redriven"] == count

    assert statuses(tasks).count("pending") == count
    assert len(waiting) == 3


def test_a_redrive_by_id_takes_a_task_that_failed_just_now(  # A02
    operator: CommandLine, waiting: list[Any], tasks: Tasks
) -> None:
    assert operator.done("dlq", "redrive", str(waiting[0]), "--json").json["redriven"] == 1

    assert decode(tasks.find_one({"_id": waiting[0]}))["status"] == "pending"  # type: ignore[arg-type]


@pytest.mark.usefixtures("waiting")
def test_a_dry_run_names_them_and_leaves_them(operator: CommandLine, tasks: Tasks, dead: Tasks) -> None:  # A02
    said = operator.done("dlq", "redrive", "--all", "--dry-run")

    assert said.lines[1] == (
        "3 failed tasks are no dead letters yet (registered 2, other 1): without --dry-run, each of them that matches "
        "is redriven, too"
    )
    assert (statuses(tasks).count("failed"), dead.count_documents({})) == (3, 0)


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(
    "command",
    ["dlq ls", "dlq ls --items", "dlq purge --all --dry-run", "dlq purge --all --yes"],
)
def test_every_command_for_dead_letters_counts_and_names_them(  # A02
    operator: CommandLine, tasks: Tasks, command: str
) -> None:
    said = operator(*command.split())

    assert said.status == 0
    assert f"tidemill: 3 failed tasks are no dead letters yet (registered 2, other 1): {LATER}" in said.err.splitlines()
    assert statuses(tasks).count("failed") == 3


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--queue", "eu"), "1 failed task is no dead letter yet (registered 1)"),
        (("--name", "other"), "1 failed task is no dead letter yet (other 1)"),
        (("--redriven",), None),
        (("--until", "1h"), None),
    ],
)
def test_a_list_names_those_that_its_filters_select(  # A02
    operator: CommandLine, options: tuple[str, ...], told: str | None
) -> None:
    said = operator("dlq", "ls", *options)

    assert ("no dead letter" in said.err) == (told is not None)
    assert (told or "") in said.err


@pytest.mark.parametrize("command", ["show", "purge --yes", "redrive --dry-run"])
def test_a_command_for_one_of_them_says_where_it_is(  # A02
    operator: CommandLine, waiting: list[Any], command: str
) -> None:
    action, *options = command.split()

    assert operator.refused("dlq", action, str(waiting[0]), *options).endswith(
        "; the task failed, and archive moves it within 5 minutes; `tidemill dlq redrive` runs it again now"
    )


@pytest.mark.usefixtures("waiting")
def test_queues_have_a_column_for_them(operator: CommandLine) -> None:  # A02
    said = operator.done("ops", "queue", "ls")

    assert said.lines[0].split() == [
        "queue", "fresh", "retry", "delayed", "processing", "failed", "oldest", "due", "state",
    ]  # fmt: skip
    assert {line.split()[0]: line.split()[5] for line in said.lines[2:]} == {"default": "2", "eu": "1"}
    assert operator.done("ops", "queue", "status", "eu", "--json").json["queue"]["failed"] == 1


def test_a_task_that_cannot_be_moved_is_named_and_left(  # A02
    operator: CommandLine, db: Database[Any], lately: datetime, tasks: Tasks
) -> None:
    add(tasks, [failed(lately, name="registered", note=n) for n in range(2)])
    db.command("collMod", "tasks_dlq", validator={"note": {"$ne": 1}})

    said = operator("dlq", "redrive", "--all")

    assert said.lines[1] == (
        "1 failed task is no dead letter yet (registered 1): archive moves them every 5 minutes, then run the same "
        "command again"
    )
    assert statuses(tasks) == ["failed", "pending"]
