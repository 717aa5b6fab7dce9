"""The example runs with the executor of production, on a MongoDB that the tests start for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from tidemill import Queue, indexes
from tidemill.testing import Mongod, drain, perform

from tasks import greet  # noqa: F401 - importing it registers its function


@pytest.fixture
def queue() -> Iterator[Queue]:
    client: MongoClient[dict[str, Any]]
    with Mongod() as mongod, MongoClient(mongod.uri) as client:
        client.drop_database("test")
        indexes.create(client["test"])
        yield Queue(client["test"])


def test_a_person_is_greeted() -> None:
    assert perform("greet", {"name": "Ada"}) == {"greeting": "Hello Ada"}


def test_an_enqueued_task_is_done(queue: Queue) -> None:
    task_id = queue.enqueue("greet", {"name": "Ada"})

    assert drain(queue).done == 1
    assert queue.get(task_id).result == {"greeting": "Hello Ada"}
