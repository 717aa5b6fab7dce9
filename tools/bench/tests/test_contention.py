"""The section runs, and what does not depend on the machine is so."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tidemill.testing import Mongod
from tools.bench import contention
from tools.bench.figures import Section


@pytest.fixture(scope="module")
def section(mongod: Mongod) -> Section:
    return contention.measure(mongod.uri, "toy")


def test_a_claimer_that_is_alone_loses_nothing_and_comes_back_with_a_hundred(section: Section) -> None:
    found = {one.name: one for one in section.figures if one.name.startswith("1 claimer: ")}

    assert found["1 claimer: claims that came back empty, of up to 3 tries"].absolute == "0 of 7"
    assert found["1 claimer: ids lost to another"].absolute.startswith("0 of 600;")
    assert found["1 claimer: write conflicts"].absolute == "0 for 600 tasks"


def test_two_claimers_move_every_task_once(section: Section) -> None:
    [conflicts] = [one for one in section.figures if one.name == "2 claimers: write conflicts"]

    assert conflicts.absolute.endswith(" for 600 tasks")


def test_there_is_a_point_for_every_number_of_claimers(section: Section) -> None:
    points = section.series["claimers"]

    assert [point["claimers"] for point in points] == [1, 2]
    assert all(point["least"] <= point["tasks_per_sec"] <= point["most"] for point in points)


def test_a_task_that_was_moved_twice_ends_the_section(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "EXTENTS", {"toy": contention.Extent(claimers=(1,), rounds=1, tasks=9, seconds=9)})
    monkeypatch.setattr(contention, "fill", _fill_with_one_that_was_claimed_before)

    with pytest.raises(RuntimeError, match="moved twice"):
        contention.measure(mongod.uri, "toy")


original = contention.fill


def _fill_with_one_that_was_claimed_before(db: Database[Any], count: int) -> None:
    original(db, count)
    db["tasks"].update_one({}, {"$set": {"attempts": 1}})
