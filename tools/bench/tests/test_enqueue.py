from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from tests.databases import make
from tidemill.testing import Mongod
from tools.bench import enqueue


def test_at_toy_size_every_call_is_as_few_round_trips_as_it_can_be(mongod: Mongod) -> None:
    section = enqueue.measure(mongod.uri, "toy")

    trips = {one.name: (one.value, one.absolute) for one in section.figures if one.unit == "round trips"}
    assert trips == {
        "enqueue": (1, "insert"),
        "enqueue with a key": (1, "findAndModify"),
        "enqueue_many of 1,000": (2, "insert, commitTransaction"),
        "enqueue_many of 1,000 with keys": (3, "find, insert, commitTransaction"),
    }
    handled = {
        one.name.partition(":")[0]: one.absolute.rpartition(" ")[2] for one in section.figures if one.unit == "ms"
    }
    assert handled == {"POST /tasks": "1", "POST /tasks, a key again": "1", "POST /tasks/batch of 1,000": "2"}
    timed = [one for one in section.figures if one.unit != "round trips"]
    assert [one.unit for one in timed] == ["of the floor"] * 6 + ["ms"] * 3
    assert [one.name for one in timed if one.target is not None] == ["enqueue_many of 1,000"]
    assert all(one.value > 0 and one.absolute for one in timed)


@pytest.mark.parametrize(
    ("ours", "bare", "number"), [("one", "one", 1), ("many", "many", 1000), ("many", "together", 1000)]
)
def test_the_bare_driver_inserts_the_documents_that_tidemill_does(
    client: MongoClient[dict[str, Any]], ours: str, bare: str, number: int
) -> None:
    db, other = make(client), make(client)
    getattr(enqueue.Ours(db), ours)()
    getattr(enqueue.Bare(other), bare)()

    mine, floor = (list(one["tasks"].find({}, {"_id": 0}).sort("payload.body.n")) for one in (db, other))
    assert len(mine) == len(floor) == number
    for one, another in zip(mine, floor, strict=True):
        assert one | dict.fromkeys(enqueue.TIMES) == another | dict.fromkeys(enqueue.TIMES)
