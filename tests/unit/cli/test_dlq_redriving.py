"""`tidemill dlq redrive`: what goes back, what does not and why, and what was done when it ends too early."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pymongo.database import Database

from tests.buried import bury, letter
from tests.conftest import T0
from tests.unit.cli.conftest import Answer, CommandLine, Terminal
from tidemill.clock import ServerClock
from tidemill.store.connection import Tasks
from tidemill.text import iso_timestamp

HOUR = timedelta(hours=1)


@pytest.fixture
def died(db: Database[Any]) -> datetime:
    return ServerClock(db).now() - HOUR


def open_letters(died: datetime, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [letter(died - n * HOUR, name="registered", **fields) for n in range(count)]


def test_several_are_redriven_one_after_the_other(
    operator: CommandLine, dead: Tasks, tasks: Tasks, died: datetime
) -> None:
    ids = [str(one) for one in bury(dead, open_letters(died, 3))]

    answer = operator.done("dlq", "redrive", *ids[:2], ids[0], "--json").json

    assert (answer["redriven"], answer["examined"], answer["refused"]) == (2, 2, {})
    assert tasks.count_documents({}) == 2


@pytest.mark.parametrize(("options", "count"), [((), 7), (("--limit", "5"), 5)])
def test_a_limit_is_kept_over_all_pages(
    by_two: CommandLine, dead: Tasks, tasks: Tasks, died: datetime, *, options: tuple[str, ...], count: int
) -> None:  # fmt: skip
    bury(dead, open_letters(died, 7))

    assert by_two.done("dlq", "redrive", "--all", *options, "--json").json["redriven"] == count
    assert tasks.count_documents({}) == count


def test_with_a_rate_tasks_become_due_one_after_the_other(
    operator: CommandLine, dead: Tasks, tasks: Tasks, died: datetime
) -> None:
    bury(dead, open_letters(died, 3))

    operator.done("dlq", "redrive", "--all", "--rate", "0.1")

    due = sorted(raw["due_at"] for raw in tasks.find({}, {"due_at": 1}))
    assert [later - earlier for earlier, later in pairwise(due)] == [timedelta(seconds=10)] * 2


def test_letters_whose_turn_would_be_too_far_away_are_told(deploy: Callable[[Answer], CommandLine]) -> None:
    counts = {"examined": 3, "redriven": 2, "refused": {"too_far_ahead": 1}, "unregistered": {}, "examples": []}
    operator = deploy(lambda _: {"now": iso_timestamp(T0), "database": "db", "dry_run": False, "next": None} | counts)

    said = operator("dlq", "redrive", "--all", "--rate", "0.001")

    assert said.status == 1
    assert "- 1 too_far_ahead: at this --rate they would become due in more than a year" in said.lines


def test_on_a_terminal_a_bar_tells_how_far_it_is(
    operator: CommandLine, dead: Tasks, tasks: Tasks, died: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(dead, open_letters(died, 5))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")

    assert operator("dlq", "redrive", "--all", "--json").json["redriven"] == 5

    assert "redriving" in terminal.getvalue()
    assert "5/5" in terminal.getvalue()
    assert tasks.count_documents({}) == 5
