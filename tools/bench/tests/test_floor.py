from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document
from tests.databases import make
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod
from tools.bench import bare, drains, floor

OF_EACH_CLAIM = ("settled_by", "lease")


def test_at_toy_size_every_figure_is_measured_beside_the_bare_driver(mongod: Mongod) -> None:
    section = floor.measure(mongod.uri, "toy")

    assert [(one.name, one.unit, str(one.target)) for one in section.figures] == [
        ("claim of 100", "of the floor", "≥ 0.7"),
        ("settle of 100", "of the floor", "≥ 0.7"),
        ("claim and settle of 100", "of the floor", "≥ 0.7"),
        ("executor, 16 tasks at a time", "of the floor", "≥ 0.5"),
        ("executor, 100 tasks at a time", "of the floor", "≥ 0.5"),
        ("executor, 16 tasks at a time, beside findAndModify", "times", "≥ 8"),
        ("executor, 100 tasks at a time, beside findAndModify", "times", "≥ 8"),
        ("claim and settle, beside findAndModify", "times", "≥ 8"),
    ]
    assert all(one.value > 0 and one.absolute for one in section.figures)


def test_the_bare_driver_leaves_the_documents_that_tidemill_leaves(client: MongoClient[dict[str, Any]]) -> None:
    now = drains.this_second()
    waiting = [document(now, payload=drains.payload(n)) for n in range(10)]
    databases = [make(client) for _ in range(3)]
    for db in databases:
        add(open_tasks(db), waiting)
    ours, in_bulk, one_by_one = databases

    assert drains.drain(drains.Mover(ours, now=now), 4) == 10
    assert drains.drain(bare.Mover(bare.open_plain(in_bulk), now=now), 4) == 10
    assert bare.drain_one_by_one(bare.open_plain(one_by_one), now=now, most=20) == 10

    assert left(ours) == left(in_bulk) == left(one_by_one)


def left(db: Database[Any]) -> list[dict[str, Any]]:
    """The documents, without the tokens of their claims."""
    return [{k: v for k, v in one.items() if k not in OF_EACH_CLAIM} for one in db["tasks"].find().sort("_id")]
