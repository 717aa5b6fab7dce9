"""The points at which other tests let a use case crash are all there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pymongo
import pytest
from moto import mock_aws
from pymongo import UpdateOne

from tests.builders import document, lease
from tests.crash_points import Crash, calls, crash, crash_if_reached, points, traced
from tests.fixtures import T0
from tidemill.store import claims
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks

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


def test_it_is_told_from_where_in_tidemill_calls_are_made(tasks: Tasks) -> None:
    tasks.insert_one(document(T0, _id="x"))

    trace = traced(lambda tasks: claims.take(tasks, ["x"], lease=lease(T0), now=T0), tasks)

    assert "store/claims.py:take" in trace.callers
    assert not any("lookups" in one for one in trace.callers)
    assert "store/tasks.py:get" in traced(lambda tasks: store_tasks.get(tasks, "x"), tasks).callers


def test_a_process_also_dies_where_a_thread_of_its_own_makes_the_call(tasks: Tasks) -> None:
    def in_a_thread(tasks: Tasks) -> None:
        thread = threading.Thread(target=lambda: tasks.insert_one({"_id": "by the thread"}))
        thread.start()
        thread.join()

    def and_goes_on(tasks: Tasks) -> None:
        in_a_thread(tasks)
        tasks.insert_one({"_id": "after it"})

    assert crash(in_a_thread, tasks, number=1, after=False).call == "insert tasks"
    assert crash(and_goes_on, tasks, number=1, after=True).after
    assert [one["_id"] for one in tasks.find()] == ["by the thread"]


def test_what_a_thread_does_late_does_not_get_through_either(tasks: Tasks) -> None:
    is_dead = threading.Event()

    def leaves_a_thread(tasks: Tasks) -> None:
        def late() -> None:
            is_dead.wait(5)
            tasks.insert_one({"_id": "late"})

        threading.Thread(target=late).start()
        try:
            tasks.insert_one({"_id": 1})
        finally:
            is_dead.set()

    crash(leaves_a_thread, tasks, number=1, after=False)

    assert tasks.count_documents({}) == 0


def test_a_point_that_is_not_reached_this_time_is_no_error_where_that_may_be(tasks: Tasks) -> None:
    assert crash_if_reached(lambda tasks: tasks.find_one({}), tasks, number=2, after=False) is None
