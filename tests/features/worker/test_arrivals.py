"""An idle worker learns of new tasks by a change stream, where there is one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient, monitoring
from pymongo.database import Database

from tests.builders import add, document
from tests.databases import make
from tests.faults import heard
from tests.features.conftest import Bench
from tests.features.worker.at_work import AtWork
from tests.unit.make import eventually
from tidemill.control.queues import change_queue, declare_queue
from tidemill.executor.lifetime import Timing
from tidemill.model import QueueOptions
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

POLL_SEC = 600.0
"""No test waits so long: a task that runs has arrived by the stream."""


class Commands(monitoring.CommandListener):
    """Counts the commands of a worker, ``$changeStream`` apart from other aggregations."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.waits = False
        self.cursor = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        stage: dict[str, Any] = next(iter(event.command.get("pipeline", [{}])), {})
        self.sent["open" if "$changeStream" in stage else event.command_name] += 1
        self.waits = event.command_name == "getMore"

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if event.command_name == "aggregate" and event.reply["cursor"]["id"]:
            self.cursor = event.reply["cursor"]["id"]
        self.waits = False

    def failed(self, _event: monitoring.CommandFailedEvent) -> None:
        self.waits = False


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def tasks(bench: Bench, commands: Commands) -> Iterator[Tasks]:
    """The collection, through a client of the worker's own."""
    bench.timing = Timing(linger_poll_sec=POLL_SEC)
    with heard(bench.db, commands) as db:
        yield open_tasks(db)


def insert(bench: Bench, n: int, **fields: Any) -> None:
    add(bench.tasks, [document(bench.clock.now(), payload={"n": n}, **fields)])


def test_an_idle_worker_runs_a_task_that_arrives_without_another_poll(
    bench: Bench, tasks: Tasks, commands: Commands
) -> None:
    with AtWork(bench, tasks=tasks):
        assert eventually(lambda: commands.waits)

        insert(bench, 1)

        assert eventually(lambda: bench.ran == [1])


def test_a_task_that_is_due_by_another_clock_first_is_claimed_when_it_is_due(
    bench: Bench, tasks: Tasks, commands: Commands
) -> None:
    with AtWork(bench, tasks=tasks) as worker:
        assert eventually(lambda: commands.waits)

        insert(bench, 1, due_at=bench.clock.now() + timedelta(seconds=1))

        assert worker.until(lambda: bench.ran == [1])


def test_it_opens_one_stream_for_a_trickle_of_tasks(bench: Bench, tasks: Tasks, commands: Commands) -> None:
    with AtWork(bench, tasks=tasks):
        for n in range(5):
            assert eventually(lambda: commands.waits)
            insert(bench, n)
            assert eventually(lambda n=n: len(bench.ran) == n + 1)  # type: ignore[misc]

    assert commands.sent["open"] == 1


def test_tasks_of_others_do_not_end_its_wait(bench: Bench, tasks: Tasks, commands: Commands) -> None:
    hour = bench.clock.now().replace(hour=23)
    with AtWork(bench, tasks=tasks, queues=("eu",)):
        assert eventually(lambda: commands.waits)
        looks = commands.sent["find"]

        insert(bench, 1, queue="us")
        insert(bench, 2, queue="eu", due_at=hour, next_retry_at=hour)
        reads = commands.sent["getMore"]
        assert eventually(lambda: commands.sent["getMore"] > reads + 1)
        assert commands.sent["find"] == looks

        insert(bench, 3, queue="eu")
        assert eventually(lambda: bench.ran == [3])


def test_after_a_look_in_vain_it_reads_no_arrivals_for_a_moment(bench: Bench, tasks: Tasks, commands: Commands) -> None:
    declare_queue(bench.db, "paused", now=bench.clock.now())
    change_queue(bench.db, "paused", QueueOptions(paused=True), now=bench.clock.now())
    with AtWork(bench, tasks=tasks) as worker:
        assert eventually(lambda: commands.waits)
        looks = commands.sent["aggregate"]
        insert(bench, 0, queue="paused")
        assert eventually(lambda: commands.sent["aggregate"] > looks)
        assert eventually(lambda: not commands.waits)
        reads = commands.sent["getMore"]

        for n in range(1, 10):
            insert(bench, n, queue="paused")
        worker.ended()

    assert bench.ran == []
    assert commands.sent["getMore"] == reads


def test_a_stream_that_ends_is_opened_again_and_meanwhile_it_polls(
    bench: Bench, tasks: Tasks, commands: Commands
) -> None:
    bench.timing = Timing(linger_poll_sec=0.5)
    with AtWork(bench, tasks=tasks) as worker:
        assert eventually(lambda: commands.waits)
        bench.db.command("killCursors", "tasks", cursors=[commands.cursor])

        insert(bench, 1)
        assert eventually(lambda: bench.ran == [1], within=20)
        assert commands.sent["open"] == 1

        assert worker.until(lambda: commands.sent["open"] == 2)
        assert eventually(lambda: commands.waits)
        insert(bench, 2)
        assert eventually(lambda: bench.ran == [1, 2])


def test_a_worker_with_tasks_in_hand_closes_the_stream(bench: Bench, tasks: Tasks, commands: Commands) -> None:
    go = threading.Event()
    bench.task("wait", timeout=600)(lambda *_: go.wait(60))
    with AtWork(bench, tasks=tasks) as worker:
        assert eventually(lambda: commands.waits)
        insert(bench, 1, name="wait")

        assert worker.until(lambda: commands.sent["killCursors"] == 1)
        assert not go.is_set()
        go.set()


def test_without_change_streams_it_polls(mongod_alone: Database[Any], bench: Bench, commands: Commands) -> None:
    bench.timing = Timing(linger_poll_sec=0.05)
    lone = replace(bench, db=mongod_alone)
    with heard(mongod_alone, commands) as db, AtWork(lone, tasks=open_tasks(db)):
        assert eventually(lambda: commands.sent["open"] == 1)
        insert(lone, 1)
        assert eventually(lambda: lone.ran == [1])

    assert (commands.sent["open"], commands.sent["getMore"]) == (1, 0)


@pytest.fixture
def mongod_alone() -> Iterator[Database[Any]]:
    with Mongod(standalone=True) as mongod, MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        yield make(client)


def test_an_id_of_any_kind_may_arrive(bench: Bench, tasks: Tasks, commands: Commands) -> None:
    far = DatetimeMS(2**62)
    with AtWork(bench, tasks=tasks):
        for n, task_id in enumerate([far, {"a": [1]}, "text", 7]):
            assert eventually(lambda: commands.waits)
            insert(bench, n, _id=task_id)
            assert eventually(lambda n=n: len(bench.ran) == n + 1)  # type: ignore[misc]

    assert commands.sent["open"] == 1
