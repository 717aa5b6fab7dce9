"""An executor that ran dry: how long it stays, what it costs, and what it is there for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.claimers import a_claimer
from tests.commands import Commands
from tests.features.conftest import BRISK, Bench
from tidemill.clock import ServerClock
from tidemill.control.fleet import ExecutorSlots
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.invocation import run_invocation
from tidemill.model import Backoff
from tidemill.policy.retry import PRESETS
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)


@pytest.fixture
def patient(bench: Bench) -> Bench:
    bench.settings = Settings()
    return bench


@pytest.fixture
def listened(mongod: Mongod, bench: Bench) -> Iterator[tuple[Tasks, Commands]]:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        yield open_tasks(client[bench.db.name]), commands


def test_a_task_that_fails_twice_under_aggressive_is_done_within_the_same_invocation(
    patient: Bench, db: Database[Any]
) -> None:
    clock = ServerClock(db)
    runs: list[int] = []

    def flaky(_payload: dict[str, Any], ctx: Any) -> str:
        runs.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return "there"

    patient.task("flaky", retry="aggressive")(flaky)
    [task_id] = add(patient.tasks, [document(clock.now(), name="flaky")])

    report = patient.execute(clock=clock)

    assert (report["retried"], report["done"], runs) == (2, 1, [1, 2, 3])
    assert stored(patient.tasks, task_id)["result"] == "there"
    assert PRESETS["aggressive"].backoff == Backoff(
        strategy="exponential", base_sec=0.1, factor=2, max_sec=5, jitter="full"
    )


def test_an_executor_that_worked_takes_what_comes_a_little_later(patient: Bench, db: Database[Any]) -> None:
    clock = ServerClock(db)
    later = threading.Timer(0.5, lambda: add(patient.tasks, [document(clock.now(), priority=5)]))
    add(patient.tasks, [document(clock.now())])
    later.start()

    assert patient.execute(clock=clock)["done"] == 2
    later.join()


def test_a_tick_that_finds_nothing_leaves_at_once(patient: Bench, listened: tuple[Tasks, Commands]) -> None:
    tasks, commands = listened

    patient.execute(tasks=tasks)

    assert commands.names == ["aggregate"]


def test_a_tick_with_nothing_but_delayed_tasks_leaves_at_once_for_three_looks(
    patient: Bench, now: datetime, listened: tuple[Tasks, Commands]
) -> None:
    tasks, commands = listened
    add(patient.tasks, [document(now, due_at=now + 60 * SECOND, next_retry_at=now + 60 * SECOND) for _ in range(9)])

    patient.execute(tasks=tasks)

    assert commands.names == ["aggregate", "find", "find"]  # the queues, what is due, what soon will be


@pytest.mark.parametrize(("queues", "most"), [(0, 4), (1, 6), (8, 6)])
def test_an_idle_tick_costs_at_most_six_commands_its_seat_and_the_clock_included(
    patient: Bench, listened: tuple[Tasks, Commands], queues: int, most: int
) -> None:
    tasks, commands = listened
    clock = ServerClock(tasks.database)
    at = clock.now() + 60 * SECOND
    documents = [document(at, queue=f"q{n % queues}", due_at=at, next_retry_at=at) for n in range(3 * queues)]
    patient.db["tasks"].insert_many([*documents, document(at, status="done")])
    commands.names.clear()
    runtime = Runtime(
        tasks=tasks,
        registry=patient.registry,
        settings=Settings(),
        clock=ServerClock(tasks.database),
        options=OptionsReader(tasks.database).options,
    )
    order = ExecutionOptions(owner="A", remaining=120 * SECOND)

    report = run_invocation(runtime, order, executor_slots=ExecutorSlots(tasks.database, limit=5), launcher=None)

    assert report.as_dict() == Report().as_dict()
    assert len(commands.names) == most


def test_it_waits_for_a_known_next_due_time(patient: Bench, db: Database[Any]) -> None:
    clock = ServerClock(db)
    at = clock.now() + 3 * SECOND
    [task_id] = add(patient.tasks, [document(clock.now(), due_at=at, next_retry_at=at)])

    assert patient.execute(clock=clock)["done"] == 1
    assert stored(patient.tasks, task_id)["finished_at"] >= at


def test_it_does_not_wait_for_what_is_too_far_away_or_not_to_be_run_now(
    patient: Bench, now: datetime, listened: tuple[Tasks, Commands]
) -> None:
    tasks, commands = listened
    soon, late = now + 5 * SECOND, now + 11 * SECOND
    patient.db["queues"].insert_one({"_id": "paused", "paused": True})
    delayed = [("default", late, "fresh"), ("paused", soon, "fresh"), ("default", soon, "retry")]
    add(
        patient.tasks,
        [document(now, queue=queue, due_at=at, next_retry_at=at, lane=lane) for queue, at, lane in delayed],
    )

    patient.execute(tasks=tasks, lanes=("fresh",))

    assert commands.names.count("aggregate") == 1


@pytest.mark.parametrize(("source", "looks_again"), [("tick", False), ("wake", True), ("backlog", True)])
def test_one_that_was_summoned_and_found_nothing_looks_again_for_a_moment(
    patient: Bench, listened: tuple[Tasks, Commands], source: str, *, looks_again: bool
) -> None:
    tasks, commands = listened

    patient.execute(tasks=tasks, source=source)

    assert (commands.names.count("aggregate") > 1) is looks_again


def test_a_linger_of_zero_is_none(bench: Bench, now: datetime, listened: tuple[Tasks, Commands]) -> None:
    tasks, commands = listened
    bench.settings = replace(BRISK, concurrency=4)
    at = now + SECOND
    add(bench.tasks, [document(now, due_at=at, next_retry_at=at)])

    bench.execute(tasks=tasks, source="wake")

    assert commands.names.count("aggregate") == 1


def test_what_an_idle_look_finds_is_claimed_with_its_order_kept(patient: Bench, db: Database[Any]) -> None:
    clock = ServerClock(db)
    now = clock.now()
    soon = now + SECOND
    add(patient.tasks, [document(now, payload={"n": 0})])
    add(patient.tasks, [document(now, payload={"n": n}, priority=n, due_at=soon, next_retry_at=soon) for n in (1, 3)])

    patient.execute(clock=clock, concurrency=1)

    assert patient.ran == [0, 3, 1]


def test_what_an_idle_look_finds_is_had_at_once_though_its_lane_was_just_found_dry(tasks: Tasks, now: datetime) -> None:
    claimer = a_claimer(tasks, queues=["default"])
    add(tasks, [document(now)])

    def look(free: int) -> Sequence[Any]:
        return claimer.claim(free=free, slots=4, now=now, idle=True).tasks

    assert [len(look(4)), len(look(4))] == [1, 0]
    add(tasks, [document(now, priority=9)])
    assert len(look(4)) == 1
