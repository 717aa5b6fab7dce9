"""The points at which other tests let a use case crash are all there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pymongo
import pytest
from moto import mock_aws
from pymongo import UpdateOne

from tests.crash_points import Crash, calls, crash, points
from tidemill.store import Tasks

BUCKET = "letters"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """S3 with a bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        yield s3


def everything(tasks: Tasks, s3: Any) -> None:
    """Call whatever can be called."""
    tasks.insert_many([{"_id": n} for n in range(5)])
    tasks.bulk_write([UpdateOne({"_id": n}, {"$set": {"a": 1}}) for n in range(2)], ordered=False)
    list(tasks.find({}, batch_size=2))
    list(tasks.aggregate([{"$match": {}}], batchSize=4))
    tasks.find_one_and_update({"_id": 1}, {"$set": {"a": 2}})
    tasks.database.client.admin.command("ping")
    with tasks.database.client.start_session() as session:
        session.with_transaction(lambda session: tasks.delete_one({"_id": 2}, session=session))
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"")


def test_every_call_is_met_whatever_makes_it_but_not_what_the_driver_says_to_a_new_server(mine: Tasks, s3: Any) -> None:
    assert calls(lambda tasks: everything(tasks, s3), mine) == [
        "insert tasks", "update tasks", "find tasks", "getMore tasks", "getMore tasks",
        "aggregate tasks", "getMore tasks", "findAndModify tasks", "ping",
        "delete tasks", "commitTransaction", "PutObject",
    ]  # fmt: skip


def test_a_crash_is_before_the_effect_of_a_call_or_after_it_and_holds_nobody_up(tasks: Tasks, mine: Tasks) -> None:
    def in_a_transaction(tasks: Tasks) -> None:
        with tasks.database.client.start_session() as session, session.start_transaction():
            tasks.update_one({"_id": 0}, {"$set": {"a": 1}}, session=session)
            tasks.insert_one({"_id": 1}, session=session)

    def with_one() -> Tasks:
        tasks.delete_many({})
        tasks.insert_one({"_id": 0})
        return tasks

    committed = {}
    for point, _ in points(in_a_transaction, with_one):
        committed[point.number, point.call, point.after] = mine.count_documents({}) - 1
        with pymongo.timeout(5):
            mine.update_one({"_id": 0}, {"$set": {"a": 2}})

    assert committed == {
        (1, "update tasks", False): 0,
        (1, "update tasks", True): 0,
        (2, "insert tasks", False): 0,
        (2, "insert tasks", True): 0,
        (3, "commitTransaction", False): 0,
        (3, "commitTransaction", True): 1,
    }


def test_nothing_gets_through_after_a_crash(tasks: Tasks, s3: Any) -> None:
    def tidy(tasks: Tasks) -> None:
        try:
            tasks.insert_one({"_id": 1})
        finally:
            for clean in (lambda: tasks.delete_many({}), lambda: s3.delete_bucket(Bucket=BUCKET)):
                with pytest.raises(Crash):
                    clean()

    crash(tidy, tasks, number=1, after=True)

    assert tasks.count_documents({}) == 1
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0


@pytest.mark.parametrize("number", [1, 9])
def test_what_goes_on_after_a_crash_or_never_comes_to_it_is_told(tasks: Tasks, number: int) -> None:
    def goes_on(tasks: Tasks) -> None:
        try:
            tasks.find_one({})
        except BaseException:  # noqa: BLE001 - this is what is looked for
            return

    with pytest.raises(AssertionError, match="it ended well"):
        crash(goes_on, tasks, number=number, after=False)
