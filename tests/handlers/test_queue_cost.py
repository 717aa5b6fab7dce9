"""What a call of `Queue` asks MongoDB, once it has asked what is registered."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import new_tasks
from tests.handlers.blocking import MakeQueue
from tests.handlers.test_enqueue_names import Stopwatch, register
from tidemill import InvalidRequestError, Queue, UnknownTaskError
from tidemill.clock import ServerClock
from tidemill.control.task_types import DECLARATIONS_CACHE_SEC, Directory
from tidemill.enqueue.enqueue import EnqueueService
from tidemill.testing import Mongod
from tools.bench.enqueue import Sent

KEYED = [{"name": "noop", "payload": {"n": n}, "idempotency_key": f"k-{n}"} for n in range(1000)]


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def observed(mongod: Mongod, db: Database[Any], sent: Sent) -> Iterator[Database[Any]]:
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[sent]) as client:
        yield client[db.name]


def test_nobody_is_asked_for_names_again_while_none_is_registered(
    observed: Database[Any], sent: Sent, make_queue: MakeQueue
) -> None:
    queue = make_queue(observed)
    queue.enqueue("anything", {})
    sent.names.clear()

    queue.enqueue("anything", {})
    queue.enqueue_many([{"name": "another", "payload": {}}])

    assert sent.names == ["insert", "insert", "commitTransaction"]


def test_a_name_is_refused_a_minute_after_the_first_was_registered(db: Database[Any]) -> None:
    watch = Stopwatch()
    directory = Directory(db, monotonic=watch)
    queue = Queue(db, service=EnqueueService(db, clock=ServerClock(db), directory=directory))
    queue.enqueue("anything", {})

    register(db, "noop")
    watch.at += DECLARATIONS_CACHE_SEC + 1

    with pytest.raises(UnknownTaskError):
        queue.enqueue("anything", {})


def test_a_thousand_held_keys_are_one_look(observed: Database[Any], sent: Sent, make_queue: MakeQueue) -> None:
    queue = make_queue(observed)
    first = queue.enqueue_many(KEYED)
    sent.names.clear()

    again = queue.enqueue_many(KEYED)

    assert again == first
    assert sent.names == ["find", "commitTransaction"]


def test_tasks_that_were_validated_before_are_stored_beside_others(db: Database[Any], make_queue: MakeQueue) -> None:
    wanted = [{"name": "noop", "payload": {"n": n}} for n in range(4)]
    ready = new_tasks(wanted[1:3])

    ids = make_queue(db).enqueue_many([wanted[0], *ready, wanted[3]])

    stored = {one["_id"]: one["payload"] for one in db.tasks.find()}
    assert [stored[one] for one in ids] == [one["payload"] for one in wanted]


def test_any_mapping_is_taken_and_nothing_that_only_looks_like_one(db: Database[Any], make_queue: MakeQueue) -> None:
    queue = make_queue(db)

    assert len(queue.enqueue_many(iter([UserDict(name="noop", payload={}), {"name": "noop", "payload": {}}]))) == 2
    with pytest.raises(InvalidRequestError, match=r"^1: must be a NewTask or a mapping of its fields$"):
        queue.enqueue_many([KEYED[0], [("name", "noop"), ("payload", {})]])  # type: ignore[list-item]
    assert db.tasks.count_documents({}) == 2
