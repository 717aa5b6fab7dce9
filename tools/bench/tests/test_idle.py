from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import make
from tidemill.testing import Mongod
from tools.bench import idle
from tools.bench.figures import Figure

IN_THE_DATABASE = ["findAndModify", "aggregate", "find", "find", "findAndModify"]
"""A seat, the queues, whether anything is due in them, when something will be, and the seat again."""


@pytest.fixture(scope="module")
def figures(mongod: Mongod) -> dict[str, Figure]:
    return {one.name: one for one in idle.measure(mongod.uri, "toy").figures}


@pytest.fixture
def crowded(client: MongoClient[dict[str, Any]]) -> Database[dict[str, Any]]:
    """A database with four times as much that is done or delayed as the figures are taken with."""
    db = make(client)
    idle.leave_nothing_due(db, 4 * idle.SIZES["toy"].others)
    return db


def test_an_empty_tick_is_six_commands_with_the_one_for_the_time(
    mongod: Mongod, crowded: Database[dict[str, Any]], figures: dict[str, Figure]
) -> None:
    assert idle.asked(mongod.uri, crowded) == ["hello", *IN_THE_DATABASE]
    assert figures["an empty tick of execute"].value == 6


def test_an_empty_tick_examines_no_more_where_more_is_done_or_delayed(
    mongod: Mongod, crowded: Database[dict[str, Any]], figures: dict[str, Figure]
) -> None:
    idle.asked(mongod.uri, crowded)  # the first one ever makes the document of the executor slots

    found = idle.tick(crowded, "execute", lambda: idle.asked(mongod.uri, crowded))

    assert found.commands == IN_THE_DATABASE
    assert found.keys == figures["what an empty tick of execute examines"].value == 12


@pytest.mark.parametrize(("function", "commands"), [("reclaim", 11), ("archive", 4)])
def test_empty_ticks_of_the_others_are_counted_too(figures: dict[str, Figure], function: str, commands: int) -> None:
    assert figures[f"an empty tick of {function}"].value == commands


def test_a_warm_executor_has_no_more_connections_than_are_stated(figures: dict[str, Figure]) -> None:
    assert figures["connections of a warm executor"].is_met


def test_the_memory_of_a_warm_executor_is_looked_at(figures: dict[str, Figure]) -> None:
    assert 0.5 < figures["memory after 100 tasks more"].value < 2
