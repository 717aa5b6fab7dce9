"""Waiting for the end of a task: what ends a wait, and what it asks MongoDB meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.builders import document
from tests.fixtures import T0
from tests.handlers.blocking import MakeQueue
from tidemill import (
    InvalidRequestError,
    Queue,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    WaitTimeoutError,
)
from tidemill.testing import Mongod

SOON = timedelta(seconds=20)
NOW = timedelta(0)
ERROR = {"message": "the mail server is closed", "code": "RuntimeError", "at": T0}


class Watch(CommandListener):
    """Keeps the commands; inserts a document behind the first one, if there is one to insert."""

    def __init__(self, db: Database[Any]) -> None:
        self.commands: list[Mapping[str, Any]] = []
        self.late: dict[str, Any] | None = None
        self._db = db

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(event.command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if event.command_name == "find" and self.late is not None:
            late, self.late = self.late, None
            self._db.tasks.insert_one(late)

    def failed(self, event: object) -> None:
        """Nothing is kept of it."""


@pytest.fixture
def queue(db: Database[Any], make_queue: MakeQueue) -> Queue:
    return make_queue(db)


@pytest.fixture
def watch(db: Database[Any]) -> Watch:
    return Watch(db)


@pytest.fixture
def observed(mongod: Mongod, db: Database[Any], watch: Watch, make_queue: MakeQueue) -> Iterator[Queue]:
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[watch]) as client:
        yield make_queue(client[db.name])


def insert(db: Database[Any], **fields: Any) -> Any:
    return db.tasks.insert_one(document(T0, **fields)).inserted_id


@pytest.mark.parametrize("result", [None, 7, {"sent": "order-7"}, [1, [2]]])
def test_the_result_of_a_done_task_is_returned_at_once(queue: Queue, db: Database[Any], result: Any) -> None:
    assert queue.wait(insert(db, status="done", result=result), NOW) == result


def test_a_task_that_ends_meanwhile_ends_the_wait(queue: Queue, db: Database[Any]) -> None:
    task_id = insert(db, status="processing")
    end = threading.Timer(
        0.2, db.tasks.update_one, [{"_id": task_id}, {"$set": {"status": "done", "result": "at last"}}]
    )
    end.start()

    try:
        assert queue.wait(task_id, SOON) == "at last"
    finally:
        end.join()


@pytest.mark.parametrize("task_id", [ObjectId(), "0" * 24, None, {"a": 1}])
def test_an_unknown_id_is_an_error_and_never_pending(queue: Queue, task_id: Any) -> None:
    with pytest.raises(TaskNotFoundError):
        queue.wait(task_id, SOON)


def test_a_task_that_its_retention_removes_meanwhile_ends_the_wait(queue: Queue, db: Database[Any]) -> None:
    task_id = insert(db, status="processing")
    removal = threading.Timer(0.2, db.tasks.delete_one, [{"_id": task_id}])
    removal.start()

    try:
        with pytest.raises(TaskNotFoundError):
            queue.wait(task_id, SOON)
    finally:
        removal.join()


@pytest.mark.parametrize("place", ["tasks", "tasks_dlq"])
def test_a_failure_ends_the_wait_wherever_the_task_is(queue: Queue, db: Database[Any], place: str) -> None:
    task = document(T0, status="failed", error=ERROR, reason="exhausted")
    letter = task | {"_id": {"task": task["_id"], "redrives": 0}}
    db[place].insert_one(task if place == "tasks" else letter)

    with pytest.raises(TaskFailedError) as failed:
        queue.wait(task["_id"], SOON)

    assert str(failed.value) == (f"task {task['_id']} failed (exhausted): RuntimeError: the mail server is closed")
    assert (failed.value.code, failed.value.reason) == ("RuntimeError", "exhausted")


def test_a_failure_without_a_cause_is_told_as_one(queue: Queue, db: Database[Any]) -> None:
    with pytest.raises(TaskFailedError, match=r"failed: the cause is not known$"):
        queue.wait(insert(db, status="failed", error=None), SOON)


def test_a_document_that_is_no_task_has_failed_once_it_has_ended(queue: Queue, db: Database[Any]) -> None:
    ended = db.tasks.insert_one({"status": "failed", "payload": "text"}).inserted_id
    waiting = db.tasks.insert_one({"status": "pending", "payload": "text"}).inserted_id

    with pytest.raises(TaskFailedError, match="malformed"):
        queue.wait(ended, SOON)
    with pytest.raises(WaitTimeoutError):
        queue.wait(waiting, NOW)


def test_a_cancelled_task_ends_the_wait(queue: Queue, db: Database[Any]) -> None:
    with pytest.raises(TaskCancelledError):
        queue.wait(insert(db, status="cancelled"), SOON)


@pytest.mark.parametrize("status", ["pending", "processing"])
def test_a_wait_ends_at_its_time(queue: Queue, db: Database[Any], status: str) -> None:
    task_id = insert(db, status=status)

    with pytest.raises(TimeoutError) as late:
        queue.wait(task_id, timedelta(milliseconds=120))

    assert isinstance(late.value, WaitTimeoutError)
    assert str(late.value) == f"task {task_id} did not end within 0.12 s: wait again, or ask why with explain()"
    assert db.tasks.find_one({"_id": task_id})["status"] == status  # type: ignore[index]


@pytest.mark.parametrize("timeout", [None, 5, 0.5])
def test_a_time_that_is_no_duration_is_refused(queue: Queue, timeout: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^timeout: must be a timedelta, such as timedelta"):
        queue.wait(ObjectId(), timeout)


def test_the_looks_become_fewer_and_read_no_payload(observed: Queue, db: Database[Any], watch: Watch) -> None:
    task_id = insert(db, status="processing", payload={"card": "4111"})

    with pytest.raises(WaitTimeoutError):
        observed.wait(task_id, timedelta(milliseconds=400))

    # After 0, 50, 125, 238, 400 ms at the earliest.
    assert 2 <= len(watch.commands) <= 5
    assert {(command["find"], *command["projection"]) for command in watch.commands} == {("tasks", "status")}


def test_an_ended_task_takes_two_reads(observed: Queue, db: Database[Any], watch: Watch) -> None:
    observed.wait(insert(db, status="done"), NOW)

    assert [command["find"] for command in watch.commands] == ["tasks", "tasks"]


def test_a_task_that_is_redriven_between_two_reads_has_not_ended(observed: Queue, watch: Watch) -> None:
    watch.late = document(T0)

    with pytest.raises(WaitTimeoutError):
        observed.wait(watch.late["_id"], NOW)
