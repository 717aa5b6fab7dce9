"""How soon an executor that looks for work sees what comes into a queue that was empty."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient, monitoring

from tests.builders import document
from tests.claimers import a_claimer
from tests.commands import Commands
from tests.fixtures import T0
from tidemill.executor.claimer import Claimer
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow


class Slowing(Commands):
    """A clock that moves by *cost* seconds for each look at the queues, and counts these."""

    at = 0.0
    cost = 0.0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        super().started(event)
        self.at += self.cost

    def now(self) -> float:
        return self.at


def claimed(claimer: Claimer) -> int:
    """How many tasks a claim of one that has nothing in hand brings."""
    return len(claimer.claim(free=10, slots=10, now=T0, idle=True).tasks)


def test_the_first_task_of_an_empty_queue_is_seen_by_the_next_look(tasks: Tasks) -> None:
    claimer = a_claimer(tasks, monotonic=lambda: 0.0)
    assert claimed(claimer) == 0

    tasks.insert_one(document(T0))

    assert claimed(claimer) == 1


def test_where_a_look_at_the_queues_has_become_dear_it_is_taken_once_a_second(mongod: Mongod, tasks: Tasks) -> None:
    looks = Slowing()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[looks]) as client:
        claimer = a_claimer(open_tasks(client[tasks.database.name]), monotonic=looks.now)
        claimed(claimer)
        looks.cost = 0.02

        for _ in range(10):
            claimed(claimer)

    assert looks.names.count("aggregate") == 3
