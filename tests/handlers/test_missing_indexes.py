"""A database without its indexes: what enqueue says, and what reclaim does about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pymongo.database import Database

from tests.builders import document, fill
from tests.handlers.conftest import Deployed
from tidemill import indexes

NOOP = {"name": "noop", "payload": {}}


def test_without_its_index_a_keyed_enqueue_says_what_to_run(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.drop_indexes()

    answer = deployed.post(NOOP, key="order-7")

    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    [line] = deployed.log()
    assert "`tidemill indexes`" in line["reason"]
    assert db.tasks.count_documents({}) == 0
    assert deployed.post(NOOP).status == 202


def test_reclaim_makes_the_indexes_of_an_empty_database(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.drop()
    db.tasks_dlq.drop()
    assert deployed.post(NOOP, key="order-7").status == 503

    assert deployed.invoke("reclaim")["missing_indexes"] == []

    assert indexes.find_missing(db) == ()
    assert deployed.post(NOOP, key="order-7").status == 202


def test_reclaim_reports_the_indexes_of_a_large_database_until_they_are_made(
    deployed: Deployed, db: Database[Any]
) -> None:
    fill(db.tasks, 100_001)
    db.tasks.drop_index("key")

    assert [deployed.invoke("reclaim")["missing_indexes"] for _ in range(2)] == [["key"], ["key"]]
    assert deployed.log()[-1]["missing_indexes"] == ["key"]

    indexes.create(db)
    deployed.commands()
    assert deployed.invoke("reclaim")["missing_indexes"] == []
    deployed.commands()
    deployed.invoke("reclaim")
    assert "listIndexes" not in {name for name, _ in deployed.commands()}


def test_an_index_that_cannot_be_made_keeps_nobody_from_reclaiming(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.drop_indexes()
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    lease = {"token": "t", "owner": "o", "expires_at": long_ago}
    db.tasks.insert_one(document(long_ago, status="processing", attempts=1, lease=lease, idempotency_key="k"))
    db.tasks.insert_one(document(long_ago, due_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key="k"))

    report = deployed.invoke("reclaim")

    assert report["reclaimed"] == 1
    assert report["missing_indexes"] == ["MongoDB refuses the operation (DuplicateKey): run `tidemill indexes`"]
