"""`tidemill dlq purge`: nothing is destroyed that somebody has not seen counted."""

from __future__ import annotations

import io
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.buried import bury, letter
from tests.cli.conftest import CommandLine, Interruption, Said
from tidemill.clock import ServerClock
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)


class Typed(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def three(db: Database[Any], dead: Tasks) -> datetime:
    """Three letters, of which one was exported, and one on its way back."""
    died = ServerClock(db).now() - HOUR
    bury(dead, [letter(died, _id="a", archived_at=died), letter(died - HOUR, _id="b"), letter(died, _id="c")])
    bury(dead, [letter(died, _id="on its way", redrive_started_at=died)])
    return died


def typing(operator: CommandLine, monkeypatch: pytest.MonkeyPatch, text: str, *arguments: str) -> Said:
    monkeypatch.setattr(sys, "stdin", Typed(text))
    return operator("dlq", "purge", *arguments)


@pytest.mark.usefixtures("three")
def test_it_shows_how_many_and_asks_for_the_number(
    operator: CommandLine, db: Database[Any], dead: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = typing(operator, monkeypatch, "3\n", "--all")

    assert said.status == 0
    assert said.err == (
        f"tidemill: 3 dead letters of {db.name} would be destroyed: 2 of them not exported, so no copy is left\n"
        "tidemill: 1 kept: a redrive is in progress or was interrupted; archive completes it\n"
        "type 3 to destroy them: "
    )
    assert said.lines[0] == f"3 dead letters of {db.name} destroyed: 2 of them not exported, so no copy is left"
    assert dead.count_documents({}) == 1


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("text", ["", "\n", "yes\n", "2\n", "4\n", "33\n"])
def test_any_other_word_destroys_nothing(
    operator: CommandLine, dead: Tasks, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    said = typing(operator, monkeypatch, text, "--all")

    assert (said.status, said.out) == (1, "")
    assert said.err.endswith("tidemill: the number does not match: nothing was destroyed\n")
    assert dead.count_documents({}) == 4


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("stdin", [None, io.StringIO("3\n")], ids=["closed", "a pipe"])
def test_where_nobody_can_be_asked_nothing_is_destroyed(
    operator: CommandLine, dead: Tasks, monkeypatch: pytest.MonkeyPatch, stdin: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)

    said = operator("dlq", "purge", "--all")

    assert (said.status, said.out) == (1, "")
    assert said.err.endswith(
        "tidemill: cannot ask for confirmation without a terminal: --yes destroys them without asking\n"
    )
    assert dead.count_documents({}) == 4


@pytest.mark.usefixtures("three")
def test_with_yes_nobody_is_asked(operator: CommandLine, dead: Tasks) -> None:
    answer = operator.done("dlq", "purge", "--all", "--yes", "--json").json

    assert (answer["purged"], answer["unexported"], answer["in_progress"], answer["dry_run"]) == (3, 2, 1, False)
    assert dead.count_documents({}) == 1


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("a",), {"b", "c", "on its way"}),
        (("a", "c"), {"b", "on its way"}),
        (("--until", "90m"), {"a", "c", "on its way"}),
        (("--all", "--limit", "1"), {"a", "c", "on its way"}),
        (("--name", "noop"), {"on its way"}),
        (("on its way",), {"a", "b", "c", "on its way"}),
        (("--fingerprint", "x"), {"a", "b", "c", "on its way"}),
    ],
)
def test_nothing_else_is_destroyed(
    operator: CommandLine, dead: Tasks, arguments: tuple[str, ...], left: set[str]
) -> None:
    assert operator("dlq", "purge", *arguments, "--yes").status == 0
    assert {raw["_id"]["task"] for raw in dead.find({}, {"_id": 1})} == left


def test_what_dies_while_somebody_types_is_not_destroyed(
    operator: CommandLine, dead: Tasks, three: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Typed):
        def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
            bury(dead, [letter(three + HOUR / 2, _id="new"), letter(three + HOUR / 2, _id="newer")])
            return super().readline(size)

    monkeypatch.setattr(sys, "stdin", Slow("3\n"))
    assert operator("dlq", "purge", "--all").status == 0

    assert {raw["_id"]["task"] for raw in dead.find({}, {"_id": 1})} == {"new", "newer", "on its way"}


@pytest.mark.usefixtures("three")
def test_where_it_ends_too_early_it_says_what_was_destroyed(
    by_two: CommandLine, dead: Tasks, interruption: Interruption
) -> None:
    look_at_all = by_two.done("dlq", "purge", "--all", "--dry-run", "--json").json["purged"]
    interruption.set(3, KeyboardInterrupt())  # after a look in two pages, and one page more
    said = by_two("dlq", "purge", "--all", "--yes")

    assert (said.status, look_at_all) == (130, 3)
    so_far = "stopped early: 2 destroyed for certain, up to 1 more may have been"
    assert said.err == f"tidemill: {so_far}; run the same command to continue\n"
    assert dead.count_documents({}) == 2


@pytest.mark.usefixtures("three")
def test_where_stdout_is_closed_stderr_says_what_was_destroyed(
    operator: CommandLine, db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    said = operator("dlq", "purge", "--all", "--yes")

    assert said.status == 1
    assert said.err.splitlines() == [
        f"tidemill: 3 dead letters of {db.name} destroyed: 2 of them not exported, so no copy is left",
        "tidemill: 1 kept: a redrive is in progress or was interrupted; archive completes it",
        "tidemill: the output cannot be written: stdout is closed",
    ]
