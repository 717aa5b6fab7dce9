"""Commands in a database of somebody else's, and beside its collections with a prefix."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.cli.conftest import CommandLine
from tests.handlers.warm import cool_down
from tidemill import Queue
from tidemill.documents import COLLECTIONS
from tidemill.testing import Mongod


@pytest.fixture
def app(client: MongoClient[dict[str, Any]]) -> Database[dict[str, Any]]:
    return client[f"app_{uuid.uuid4().hex}"]


@pytest.fixture
def command(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, mongod: Mongod, app: Database[Any]
) -> Iterator[CommandLine]:
    """The command line on a database that nobody was ever in."""
    monkeypatch.setenv("MONGODB_URI", mongod.uri)
    monkeypatch.setenv("MONGODB_DATABASE", app.name)
    yield tidemill
    monkeypatch.delenv("TIDEMILL_PREFIX", raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ops", "queue", "ls"),
        ("ops", "queue", "pause", "default"),
        ("ops", "task", "ls"),
        ("dlq", "ls"),
        ("dlq", "purge", "--all"),
        ("dlq", "restore", "letter.json.gz"),
        ("indexes",),
        ("work", "--until-empty"),
    ],
    ids=" ".join,
)
def test_a_command_names_the_collection_in_the_way_and_touches_nothing(
    command: CommandLine, app: Database[Any], arguments: tuple[str, ...]
) -> None:
    app.tasks.insert_one({"title": "call Ada", "status": "pending"})
    before = list(app.tasks.find())

    assert command.refused(*arguments) == (
        f"the collection tasks of database {app.name} holds documents that are not Tidemill's, so nothing was changed: "
        'give Tidemill\'s collections a prefix (TIDEMILL_PREFIX=tm_, Queue(db, prefix="tm_")) '
        "or a database of their own (MONGODB_DATABASE)"
    )

    assert app.list_collection_names() == ["tasks"]
    assert list(app.tasks.find()) == before


def test_a_database_whose_name_was_mistyped_is_not_made_by_looking(command: CommandLine, app: Database[Any]) -> None:
    command.refused("ops", "task", "explain", "0" * 24)

    assert app.list_collection_names() == []


def test_commands_work_on_the_collections_with_the_prefix(
    command: CommandLine, app: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.tasks.insert_one({"title": "call Ada", "status": "pending"})
    monkeypatch.setenv("TIDEMILL_PREFIX", "tm_")
    cool_down()
    task_id = Queue(app, prefix="tm_").enqueue("noop", {})

    assert "indexes exist" in command.done("indexes").out
    assert str(task_id) in command.done("ops", "task", "ls").out
    assert ", 1 done" in command.done("work", "--until-empty").out

    assert {name for name in app.list_collection_names() if name != "tasks"} <= {f"tm_{name}" for name in COLLECTIONS}
    assert app.tm_tasks.distinct("status") == ["done"]


def test_a_prefix_that_no_collection_can_have_is_refused(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_PREFIX", "1 $")
    cool_down()

    assert command.refused("ops", "queue", "ls").startswith("TIDEMILL_PREFIX must be 1 to 32 letters, digits, _ . or -")
