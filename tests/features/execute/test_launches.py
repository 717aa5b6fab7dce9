"""No task waits for a tick, whenever it comes in: every command of an executor is a moment at which one does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.builders import add, document, stored
from tests.commands import Commands
from tests.features.conftest import BRISK, Bench
from tests.features.execute.fleet import Fleet
from tidemill import Retry
from tidemill.executor.scaling import WAKE_DEBOUNCE_SEC
from tidemill.requests.events import Source
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)


class Moments(CommandListener):
    """Does things before a client's commands are sent, by their number, or when their answers have come."""

    def __init__(self) -> None:
        self.before: dict[int, Callable[[], None]] = {}
        self.after: dict[int, Callable[[], None]] = {}
        self.count = 0

    def started(self, _: CommandStartedEvent) -> None:
        self.before.pop(self.count, _nothing)()

    def succeeded(self, _: CommandSucceededEvent) -> None:
        self.count += 1
        self.after.pop(self.count - 1, _nothing)()

    def failed(self, _: CommandFailedEvent) -> None:
        self.count += 1

    def let_pass(self) -> None:
        """Do what was to be done later than at any command there was."""
        for left in (self.before, self.after):
            while left:
                left.pop(min(left))()


def _nothing() -> None:
    pass


@dataclass(kw_only=True)
class Stage:
    """One executor at work through a client of its own, while others come at moments of its life."""

    fleet: Fleet
    tasks: Tasks
    moments: Moments
    source: Source = "tick"
    added: list[Any] = field(default_factory=list)

    def enqueue(self) -> None:
        """Have a task come in. Whoever takes it in wakes an executor, which `wake` is."""
        self.added += add(self.fleet.bench.tasks, [document(self.fleet.bench.clock.now())])

    def wake(self) -> None:
        """Have a woken executor come, and do what it can, before anybody else does anything."""
        thread = threading.Thread(target=self.fleet.come, kwargs={"source": "wake"})
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    def come_in(self) -> None:
        """Have a task come in and wake an executor which is there at once."""
        self.enqueue()
        self.wake()

    def run(self, scene: Callable[[Fleet], None]) -> int:
        """Let the executor work through *scene*, and others come as arranged; return how many commands it sent."""
        self.fleet.launched, self.added, self.moments.count = 0, [], -1  # the first one is made for the connection
        for collection in ("tasks", "control", "queue_stats"):
            self.fleet.bench.db[collection].delete_many({})
        self.tasks.find_one({})
        scene(self.fleet)
        self.fleet.come(source=self.source, tasks=self.tasks)
        sent = self.moments.count
        self.moments.let_pass()
        self.fleet.let_all_come()
        return sent


def idle(_: Fleet) -> None:
    """Nothing is due."""


def working(fleet: Fleet) -> None:
    """Something is, and something fails."""
    now = fleet.bench.clock.now()
    add(fleet.bench.tasks, [document(now), document(now, name="again"), document(now, name="unknown")])


def later(fleet: Fleet) -> None:
    """Nothing is due, but something will be."""
    at = fleet.bench.clock.now() + 60 * SECOND
    add(fleet.bench.tasks, [document(at, due_at=at, next_retry_at=at)])


SCENES = [idle, working, later]


@pytest.fixture
def stage(mongod: Mongod, bench: Bench) -> Iterator[Stage]:
    def again(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Retry("again", after=60 * SECOND)

    bench.task("again")(again)
    bench.settings = BRISK
    moments = Moments()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[moments]) as client:
        yield Stage(fleet=Fleet(bench=bench), tasks=open_tasks(client[bench.db.name]), moments=moments)


@contextmanager
def told(scene: Callable[[Fleet], None], **when: Any) -> Iterator[None]:
    """Say at which moment it failed."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"{scene.__name__}: {when}")
        raise


def assert_all_done(stage: Stage) -> None:
    """None of the tasks that came in waits for a tick."""
    assert stage.added
    for task_id in stage.added:
        assert stored(stage.fleet.bench.tasks, task_id)["status"] == "done"


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_task_is_done_whatever_the_executor_is_about_to_do_when_it_comes_in_and_wakes_one(
    stage: Stage, scene: Callable[[Fleet], None], moment: str
) -> None:
    count = stage.run(scene)
    assert count >= 3  # it takes a seat, looks, and leaves the seat
    turned_away = 0

    for number in range(count + 1):
        stage.fleet.reports.clear()
        comes_in: dict[int, Callable[[], None]] = getattr(stage.moments, moment)
        comes_in[number] = stage.come_in

        with told(scene, number=number):
            stage.run(scene)
            assert_all_done(stage)
        turned_away += sum(one.skipped == "executor_slots" for one in stage.fleet.reports)

    assert turned_away >= count - 1  # else nothing was at stake


def test_a_task_is_done_whatever_an_executor_that_lingers_is_about_to_do(stage: Stage) -> None:
    stage.fleet.bench.settings, stage.source = Settings(linger=0.3 * SECOND), "wake"
    count = stage.run(idle)
    assert count > 3

    for number in range(count + 1):
        stage.moments.before[number] = stage.come_in

        with told(idle, number=number):
            stage.run(idle)
            assert_all_done(stage)


@pytest.mark.parametrize("scene", SCENES)
def test_a_task_is_done_whenever_whom_it_woke_comes(stage: Stage, scene: Callable[[Fleet], None]) -> None:
    count = stage.run(scene)

    for comes_in in range(count + 1):
        for is_woken in range(comes_in, count + 2):
            stage.moments.before[comes_in] = stage.enqueue
            stage.moments.after[is_woken] = stage.wake

            with told(scene, comes_in=comes_in, is_woken=is_woken):
                stage.run(scene)
                assert_all_done(stage)


def test_two_tasks_are_done_whenever_they_come_in(stage: Stage) -> None:
    count = stage.run(idle)

    for first in range(count + 1):
        for second in range(first + 1, count + 1):
            for number in (first, second):
                stage.moments.before[number] = stage.come_in

            with told(idle, first=first, second=second):
                stage.run(idle)
                assert_all_done(stage)
                assert len(stage.added) == 2


def test_without_a_wake_one_would_wait_for_the_tick(stage: Stage) -> None:
    count = stage.run(idle)
    stage.moments.before[count - 1] = stage.enqueue  # it is about to leave its seat

    stage.run(idle)

    [task_id] = stage.added
    assert stored(stage.fleet.bench.tasks, task_id)["status"] == "pending"


class LastMoment(CommandListener):
    """Has something done before the first command that is sent when others rely on an executor no longer."""

    def __init__(self, happen: Callable[[], None]) -> None:
        self._happen = happen
        self._since = time.monotonic()

    def started(self, _: CommandStartedEvent) -> None:
        if time.monotonic() - self._since >= WAKE_DEBOUNCE_SEC:
            happen, self._happen = self._happen, _nothing
            happen()

    def succeeded(self, _: CommandSucceededEvent) -> None:
        """Nothing is made of it."""

    def failed(self, _: CommandFailedEvent) -> None:
        """Nothing is made of it."""


def test_a_task_that_relies_on_the_wake_of_another_is_done_by_whom_that_woke(
    mongod: Mongod, bench: Bench, now: datetime
) -> None:
    """The one it was woken for is somebody else's already, and the executor finds nothing when it comes."""
    bench.settings = Settings()
    fleet = Fleet(bench=bench)
    comes_in = LastMoment(lambda: (add(bench.tasks, [document(now)]), None)[1])
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[comes_in]) as client:
        report = fleet.come(source="wake", tasks=open_tasks(client[bench.db.name]))

    assert report["done"] == 1


def test_an_executor_that_was_woken_in_vain_costs_one_command(mongod: Mongod, bench: Bench, now: datetime) -> None:
    fleet, commands = Fleet(bench=bench, max_executors=0), Commands()
    add(bench.tasks, [document(now)])
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        assert fleet.come(source="wake", tasks=open_tasks(client[bench.db.name])).skipped == "executor_slots"

        assert commands.names == ["findAndModify"]
