"""Tests of users who freeze or move the time of their process, as freezegun and time-machine do."""

from __future__ import annotations

import asyncio
import datetime as datetime_module
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tidemill import Queue, TaskContext
from tidemill.registry import Registry
from tidemill.testing import FakeContext, ManualClock, Mongod, dies_before, drain, perform, reclaim_now, task_context

EARLY = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
LATE = datetime(2031, 7, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

NOT_FROZEN = ("threading", "queue", "multiprocessing", "_pytest", "pytest", "xdist", "execnet")
"""Modules that keep the real time, most of them as in freezegun."""

Run = Callable[[str, Registry, Queue], object]


class Frozen:
    """Time that stands still until the test moves it. Its monotonic clock shows seconds since 1970, as theirs do."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def move(self, span: timedelta) -> None:
        self.at += span

    def seconds(self) -> float:
        return self.at.timestamp()


@contextmanager
def freeze(at: datetime) -> Iterator[Frozen]:
    """Freeze the time inside: the clocks of `time` and the class `datetime`, under all their names in modules."""
    frozen = Frozen(at)

    class IsDatetime(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class FakeDatetime(datetime_module.datetime, metaclass=IsDatetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return frozen.at.astimezone(tz) if tz else frozen.at.replace(tzinfo=None)

    fakes: dict[int, object] = {
        id(time.time): frozen.seconds,
        id(time.monotonic): frozen.seconds,
        id(time.perf_counter): frozen.seconds,
        id(datetime_module.datetime): FakeDatetime,
    }
    modules = [module for name, module in sys.modules.items() if not name.startswith((*NOT_FROZEN, __name__))]
    replaced = [
        (names, name, value)
        for names in (vars(module) for module in modules if hasattr(module, "__dict__"))
        for name, value in list(names.items())
        if id(value) in fakes
    ]
    for names, name, value in replaced:
        names[name] = fakes[id(value)]
    try:
        yield frozen
    finally:
        for names, name, value in replaced:
            names[name] = value


def _perform(name: str, registry: Registry, _queue: Queue) -> object:
    return perform(name, {}, registry=registry)


def _drain(name: str, registry: Registry, queue: Queue) -> object:
    queue.enqueue(name, {})
    return drain(queue, registry=registry).raise_failures()


BOTH = pytest.mark.parametrize("run", [_perform, _drain], ids=["perform", "drain"])


@pytest.fixture
def left(registry: Registry) -> list[timedelta]:
    """The remaining times that ``look`` was given; its timeout is 45 s."""
    times: list[timedelta] = []
    registry.task("look", timeout=45)(lambda _payload, ctx: times.append(ctx.remaining()))
    return times


def test_it_freezes_what_it_says() -> None:
    real = time.monotonic()
    with freeze(LATE) as frozen:
        assert (time.time(), time.monotonic()) == (LATE.timestamp(), LATE.timestamp())
        frozen.move(HOUR)
        assert ManualClock().now() == LATE + HOUR

    assert real <= time.monotonic() < real + 60


@BOTH
@pytest.mark.parametrize("at", [EARLY, LATE])
def test_in_frozen_time_an_attempt_has_all_its_time(
    queue: Queue, registry: Registry, left: list[timedelta], run: Run, at: datetime
) -> None:
    # kind 8
    with freeze(at):
        run("look", registry, queue)

    assert [30 * SECOND < remaining <= 45 * SECOND for remaining in left] == [True]


@BOTH
@pytest.mark.parametrize("at", [EARLY, LATE])
def test_a_function_that_freezes_time_itself_keeps_its_time(
    queue: Queue, registry: Registry, run: Run, at: datetime
) -> None:
    # kind 8
    left: list[timedelta] = []

    @registry.task("freeze", timeout=45)
    def freeze_itself(_payload: dict[str, Any], ctx: TaskContext) -> None:
        with freeze(at):
            left.append(ctx.remaining())

    run("freeze", registry, queue)

    assert [30 * SECOND < remaining <= 45 * SECOND for remaining in left] == [True]


@BOTH
def test_a_moved_clock_neither_ends_nor_lengthens_an_attempt(queue: Queue, registry: Registry, run: Run) -> None:
    # kind 8
    left: list[timedelta] = []

    with freeze(LATE) as frozen:

        @registry.task("wander", timeout=45)
        def wander(_payload: dict[str, Any], ctx: TaskContext) -> None:
            for span in (HOUR, -2 * HOUR):
                frozen.move(span)
                left.append(ctx.remaining())

        run("wander", registry, queue)

    assert [30 * SECOND < remaining <= 45 * SECOND for remaining in left] == [True, True]


def test_a_timeout_ends_an_attempt_in_frozen_time(queue: Queue, registry: Registry) -> None:
    # kind 8
    left: list[timedelta] = []

    @registry.task("endless", retry="one_shot")
    def endless(_payload: dict[str, Any], ctx: TaskContext) -> None:
        while True:
            left[:] = [ctx.remaining()]

    queue.enqueue("endless", {})
    with freeze(LATE):
        drained = drain(queue, registry=registry, timeout=0.2 * SECOND)

    assert (drained.timed_out, drained.failed) == (1, 1)
    assert left[0] < 0.1 * SECOND


@BOTH
def test_an_async_function_can_sleep_in_frozen_time(queue: Queue, registry: Registry, run: Run) -> None:
    # kind 8
    slept: list[float] = []

    @registry.task("nap", timeout=10)
    async def nap(_payload: dict[str, Any]) -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(0.01)
        slept.append(0.01)

    with freeze(LATE):
        run("nap", registry, queue)

    assert slept == [0.01]


def test_a_context_counts_down_the_same_inside_and_outside_of_frozen_time() -> None:
    # kind 8
    before = task_context(remaining=HOUR)
    invocation = FakeContext(HOUR)
    with freeze(LATE):
        inside = task_context(remaining=HOUR)
        assert before.remaining() > HOUR - 30 * SECOND
        assert invocation.get_remaining_time_in_millis() > 3_570_000

    assert HOUR - 30 * SECOND < inside.remaining() <= HOUR


def test_the_deadline_of_an_attempt_is_a_reading_of_time_monotonic() -> None:
    ctx = task_context(remaining=HOUR)

    assert abs(ctx.deadline - time.monotonic() - 3600) < 30


@pytest.mark.parametrize("at", [EARLY, LATE])
def test_tasks_of_a_dead_executor_are_taken_back_in_frozen_time(
    mortal: Queue, registry: Registry, left: list[timedelta], at: datetime
) -> None:
    # kind 8
    mortal.enqueue("look", {})
    with freeze(at):
        with dies_before(mortal, "settle"):
            drain(mortal, registry=registry)
        assert reclaim_now(mortal, registry=registry)["reclaimed"] == 1
        assert drain(mortal, registry=registry).done == 1

    assert len(left) == 2


def test_a_queue_by_the_frozen_time_drains_at_it(db: Database[Any], registry: Registry, left: list[timedelta]) -> None:
    # kind 8
    with freeze(LATE) as frozen:
        clock = ManualClock()
        queue = Queue(db, clock=clock)
        queue.enqueue("look", {}, not_before=LATE + HOUR)
        assert drain(queue, registry=registry).done == 0
        frozen.move(HOUR)
        clock.move(HOUR)
        assert drain(queue, registry=registry).done == 1

    assert left[0] > 30 * SECOND


IMPORTED = """
import threading, queue, time
time.monotonic = time.perf_counter = time.time = lambda: 1_940_000_000.0
import sys
from pymongo import MongoClient
from tidemill import Queue, TaskContext, task
from tidemill.testing import drain, perform

@task("look", timeout=45)
def look(payload, ctx):
    time.time = time.monotonic = lambda: 1_950_000_000.0
    return ctx.remaining().total_seconds()

print(30 < perform("look", {}) <= 45)
with MongoClient(sys.argv[1], tz_aware=True) as client:
    queue = Queue(client[sys.argv[2]])
    task_id = queue.enqueue("look", {})
    print(drain(queue).done, 30 < queue.get(task_id).result <= 45)
"""


def test_modules_that_are_imported_in_frozen_time_measure_real_time(mongod: Mongod, db: Database[Any]) -> None:
    # kind 8: older versions of time-machine replace the clock under every name of it
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, mongod.uri, db.name], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stdout, done.stderr) == ("True\n1 True\n", "")
