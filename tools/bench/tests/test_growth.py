from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import all_of
from tests.databases import make
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod
from tools.bench import growth, stock
from tools.bench.drains import this_second
from tools.bench.figures import Section


@pytest.fixture(scope="module")
def section(mongod: Mongod) -> Section:
    return growth.measure(mongod.uri, "toy")


def test_at_toy_size_a_claim_is_measured_beside_each_crowd(section: Section) -> None:
    by_start = [one.name.partition(" (")[0] for one in section.figures]

    assert by_start == [
        "claim of 100, 400 pending",
        "claim of 100, 300 finished",
        "claim of 100, 300 delayed",
        "claim of 100: keys examined to find the ids, the most of all",
        "claim of 100, after 500 others",
        "an executor's first claim of 100, after 500 others",
        "claim of 100, after 500 others: dead entries stepped over",
        "empty tick after 4.7 k claims",
    ]
    assert all(one.value > 0 and one.target is not None for one in section.figures)


def test_to_find_a_hundred_ids_a_hundred_keys_are_examined_beside_any_crowd(section: Section) -> None:
    points = section.series["backlog"]

    assert len(points) == 6
    assert {one["keys_per_task"] for one in points} == {1.0}


def test_what_a_claim_steps_over_is_counted_with_and_without_claims_before_it(section: Section) -> None:
    points = section.series["recent"]

    assert [one["claimed_before"] for one in points] == [0, 500]
    assert all(one["skipped_per_task"] > 0 for one in points)


def test_tasks_made_by_the_server_become_due_in_the_order_of_their_ids(client: MongoClient[dict[str, Any]]) -> None:
    db, now = make(client), this_second()

    stock.add(db, 0, 5, now=now)
    stock.add(db, 5, 10, now=now, queue="eu")
    stock.claim(db, 0, 3, now=now)

    found = all_of(open_tasks(db))
    due = [one["due_at"] for one in found]
    assert due == sorted(set(due))
    assert due[-1] <= now
    assert [one["queue"] for one in found] == ["default"] * 5 + ["eu"] * 5
    assert [one["status"] for one in found] == ["processing"] * 3 + ["pending"] * 7
    assert len({one["lease"]["token"] for one in found[:3]}) == 1
