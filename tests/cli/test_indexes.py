"""``tidemill indexes`` where documents stand against an index: it names them, and makes the other indexes."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.cli.conftest import CommandLine
from tests.fixtures import T0
from tidemill import indexes

SECRET = "S3cr3t"


def drop_all(db: Database[Any]) -> None:
    for name in indexes.COLLECTIONS:
        db[name].drop_indexes()


def test_the_documents_that_stand_against_an_index_are_named_and_the_rest_is_made(  # A14
    operator: CommandLine, db: Database[Any]
) -> None:
    drop_all(db)
    repeated = [document(T0, idempotency_key=SECRET), document(T0, idempotency_key=SECRET)]
    first, second = db.tasks.insert_many(repeated).inserted_ids

    said = operator("indexes")

    assert said.status == 1
    assert f"the documents {first} and {second} have the same idempotency_key: remove it" in said.err
    assert SECRET not in said.out + said.err
    assert [index.name for index in indexes.find_missing(db)] == ["key"]

    db.tasks.update_one({"_id": second}, {"$unset": {"idempotency_key": 1}})
    assert operator.done("indexes").lines[0] == "creating key of tasks"
    assert indexes.find_missing(db) == ()


def test_all_indexes_that_cannot_be_built_are_told_at_once(operator: CommandLine, db: Database[Any]) -> None:  # A14
    drop_all(db)
    lists = db.tasks.insert_one(document(T0) | {"queue": ["a"], "lane": ["b"]}).inserted_id
    keys = [document(T0, status="done", idempotency_key=["a", "b"]), document(T0, status="done", idempotency_key="b")]
    db.tasks.insert_many(keys)
    db.tasks_dlq.insert_one({"_id": "letter", "fingerprint": [1, 2], "dead_lettered_at": [1, 2]})

    said = operator("indexes")

    assert said.status == 1
    assert said.err.count("cannot be built, because the documents") == 3
    assert f"the documents {lists} hold lists in two of its fields (status, queue, lane" in said.err
    assert "the documents 'letter' hold lists" in said.err
    assert {(index.collection, index.name) for index in indexes.find_missing(db)} == {
        ("tasks", "claim"),
        ("tasks", "key"),
        ("tasks_dlq", "groups"),
    }


@pytest.mark.parametrize("fields", [{"queue": ["a", "b"]}, {"idempotency_key": ["a", "a"]}])
def test_lists_that_an_index_can_hold_stand_against_none(  # A14
    operator: CommandLine, db: Database[Any], fields: dict[str, Any]
) -> None:
    drop_all(db)
    db.tasks.insert_one(document(T0) | fields)

    operator.done("indexes")

    assert indexes.find_missing(db) == ()
