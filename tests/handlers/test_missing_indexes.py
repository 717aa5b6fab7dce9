"""A database without its indexes: what enqueue says, and what reclaim does about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import document, fill
from tests.handlers.conftest import Deployed
from tidemill import indexes

NOOP = {"name": "noop", "payload": {}}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
SECRET = "S3cr3t"
PARTIAL = {"idempotency_key": {"$gt": ""}}


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
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease, idempotency_key="k"))
    db.tasks.insert_one(document(LONG_AGO, due_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key="k"))

    report = deployed.invoke("reclaim")

    assert report["reclaimed"] == 1
    assert [index.name for index in indexes.find_missing(db)] == ["key"]


def repeat_key(db: Database[Any], *keys: str) -> list[ObjectId]:
    """Store two tasks for each of *keys* without the unique index; return their ids."""
    db.tasks.drop_index("key")
    repeated = [document(LONG_AGO, idempotency_key=key, due_at=FAR) for key in keys for _ in range(2)]
    return list(db.tasks.insert_many(repeated).inserted_ids)


def test_the_tasks_that_stand_against_the_unique_index_are_named_with_what_to_do(  # A14
    deployed: Deployed, db: Database[Any]
) -> None:
    first, second = repeat_key(db, SECRET)

    [sentence] = deployed.invoke("reclaim")["missing_indexes"]

    assert sentence == (
        f"the index key of tasks cannot be built, because the documents {first} and {second} have the same "
        "idempotency_key: remove it from one of each: "
        f'db["tasks"].updateOne({{_id: ObjectId("{second}")}}, {{$unset: {{idempotency_key: 1}}}}); '
        "reclaim then builds it within a minute, or run `tidemill indexes`"
    )
    line = deployed.log()[-1]
    assert (line["level"], line["missing_indexes"]) == ("WARNING", [sentence])
    assert [one["missing_indexes"] for one in deployed.metrics() if "missing_indexes" in one] == [[1]]
    assert SECRET not in deployed.stdout.getvalue()


def test_while_keys_stand_against_their_index_all_that_needs_no_key_goes_on(  # A14
    deployed: Deployed, db: Database[Any]
) -> None:
    repeat_key(db, "k")
    deployed.invoke("reclaim")

    assert deployed.post(NOOP, key="order-7").status == 503
    assert deployed.post(NOOP).status == 202
    assert deployed.invoke("execute")["done"] == 1
    assert deployed.invoke("archive")["export_error"] is None


def test_reclaim_builds_the_index_once_the_command_of_its_sentence_has_been_run(  # A14
    deployed: Deployed, db: Database[Any]
) -> None:
    _, second = repeat_key(db, "k")
    deployed.invoke("reclaim")
    db.tasks.update_one({"_id": second}, {"$unset": {"idempotency_key": 1}})

    assert deployed.invoke("reclaim")["missing_indexes"] == []

    assert deployed.post(NOOP, key="order-7").status == 202


def test_of_many_documents_three_pairs_are_named(deployed: Deployed, db: Database[Any]) -> None:  # A14
    ids = repeat_key(db, "a", "b", "c", "d")

    [sentence] = deployed.invoke("reclaim")["missing_indexes"]

    assert [str(task_id) in sentence for task_id in ids] == [True] * 6 + [False] * 2
    assert "and others have the same" in sentence


@pytest.mark.parametrize("fields", [{"queue": ["a"], "lane": ["b"]}, {"priority": [1, 2], "due_at": [LONG_AGO]}])
def test_a_document_that_the_claim_index_cannot_hold_is_quarantined_and_claims_go_on(  # A14
    deployed: Deployed, db: Database[Any], fields: dict[str, Any]
) -> None:
    db.tasks.drop_index("claim")
    task_id = db.tasks.insert_one(document(LONG_AGO) | fields).inserted_id
    db.tasks.insert_one(document(LONG_AGO))

    first, second = deployed.invoke("reclaim"), deployed.invoke("reclaim")

    [sentence] = first["missing_indexes"]
    assert f"the index claim of tasks cannot be built, because the documents {task_id} hold lists" in sentence
    assert (first["quarantined"], second["missing_indexes"]) == (1, [])
    assert [(found["status"], found["reason"]) for found in db.tasks.find({"_id": task_id})] == [
        ("failed", "malformed")
    ]
    assert deployed.invoke("execute")["done"] == 1


def test_dead_letters_that_stand_against_an_index_are_named_and_kept(  # A14
    deployed: Deployed, db: Database[Any]
) -> None:
    db.tasks_dlq.drop_index("groups")
    letter = {"_id": 7, "fingerprint": ["a", "b"], "dead_lettered_at": [1, 2]}
    db.tasks_dlq.insert_one(letter)

    [sentence] = deployed.invoke("reclaim")["missing_indexes"]

    assert "the index groups of tasks_dlq cannot be built, because the documents 7 hold lists" in sentence
    assert db.tasks_dlq.find_one() == letter


def test_an_index_that_is_refused_for_another_reason_is_told_by_its_code(  # A14
    deployed: Deployed, db: Database[Any]
) -> None:
    db.tasks.drop_index("key")
    db.tasks.create_index("idempotency_key", name="of_ours", unique=True, partialFilterExpression=PARTIAL)

    [sentence] = deployed.invoke("reclaim")["missing_indexes"]

    assert sentence == "MongoDB refuses the operation (IndexOptionsConflict): run `tidemill indexes`"
