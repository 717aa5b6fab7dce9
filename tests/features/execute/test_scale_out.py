"""An executor that cannot keep up launches as many others as have work, where there are executor_slots, and no more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import add, document
from tests.commands import Commands
from tests.faults import failing
from tests.features.conftest import Bench
from tests.features.execute.fleet import Fleet
from tidemill.control.queues import change_queue
from tidemill.control.semaphores import PermitOwner
from tidemill.executor.context import ExecutionOptions, Report
from tidemill.executor.scaling import RATE_MEASURE_SEC, SCALE_OUT_INTERVAL_SEC, Launcher, ScaleOut, count_wanted
from tidemill.model import QueueOptions
from tidemill.requests.events import Source
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
CLAIMS_FOR = 60.0


@dataclass(kw_only=True)
class Office:
    """A recruiter whose executor does *per_sec* tasks a second on 4 slots; its time is the test's."""

    fleet: Fleet
    tasks: Tasks
    at: float = 500.0
    per_sec: float = 1.0
    source: Source = "tick"
    order: dict[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        runtime = self.fleet.runtime(tasks=self.tasks, monotonic=lambda: self.at)
        self.launcher = Launcher(self.fleet.launch)
        self.scale_out = ScaleOut(
            runtime,
            ExecutionOptions(owner="A", remaining=120 * SECOND, source=self.source, **self.order),
            executor_slots=self.fleet.executor_slots,
            launcher=self.launcher,
            claims_until=self.at + CLAIMS_FOR,
        )

    def work(self, seconds: float, *, queues: tuple[str, ...] = ("default",), step: float = 0.5) -> int:
        """Have the executor work with full slots for so long, and return how many others it launched meanwhile."""
        before = self.fleet.launched
        for _ in range(round(seconds / step)):
            self.scale_out.launch_if_behind(queues, report=self.report, slots=4)
            self.at += step
            self.report["done"] += round(self.per_sec * step)
            self._wait()
        return self.fleet.launched - before

    def _wait(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "tidemill-launch":
                thread.join(30)


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench=bench, max_executors=5)


@pytest.fixture
def office(fleet: Fleet) -> Office:
    return Office(fleet=fleet, tasks=fleet.bench.tasks, per_sec=2)


def backlog(fleet: Fleet, count: int, **fields: Any) -> None:
    now = fleet.bench.clock.now()
    add(fleet.bench.tasks, [document(now, **fields) for _ in range(count)])


def sit(fleet: Fleet, *names: str) -> None:
    now = fleet.bench.clock.now()
    for name in names:
        assert fleet.executor_slots.acquire(PermitOwner(owner=name, execution=name), until=now + 99 * SECOND, now=now)


@pytest.mark.parametrize(
    ("due", "capacity", "free_slots", "expected"),
    [
        (0, 100, 4, 0), (-50, 100, 4, 0), (1, 100, 4, 1), (100, 100, 4, 1), (101, 100, 4, 2), (399, 100, 4, 4),
        (9999, 100, 4, 4), (9999, 100, 0, 0), (5, 1, 9, 5),
    ],
)  # fmt: skip
def test_there_are_as_many_as_have_work_and_seats(due: int, capacity: int, free_slots: int, expected: int) -> None:
    assert count_wanted(due=due, capacity=capacity, free_slots=free_slots) == expected


# Two a second, for 60 seconds, are 120 tasks; of these it can do two less with every second that has passed.


@pytest.mark.parametrize(("due", "expected"), [(1, 0), (117, 0), (119, 1), (237, 1), (239, 2), (359, 3), (900, 4)])
def test_it_summons_as_many_as_what_it_cannot_do_itself_takes(office: Office, due: int, expected: int) -> None:
    sit(office.fleet, "A")
    backlog(office.fleet, due)

    assert office.work(1.5) == expected


def test_before_it_knows_what_it_gets_done_it_summons_nobody(office: Office) -> None:
    backlog(office.fleet, 900)

    assert office.work(RATE_MEASURE_SEC) == 0
    assert office.work(0.5) == 5


def test_it_asks_only_once_in_a_while(mongod: Mongod, fleet: Fleet) -> None:
    backlog(fleet, 100)
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        fleet.bench.db = client[fleet.bench.db.name]
        office = Office(fleet=fleet, tasks=open_tasks(fleet.bench.db), per_sec=100)
        office.work(RATE_MEASURE_SEC)
        assert commands.names == []
        office.work(SCALE_OUT_INTERVAL_SEC)
        assert commands.names == ["find", "find", "aggregate"]  # the executor_slots, the queues' options, what is due
        office.work(SCALE_OUT_INTERVAL_SEC)
        assert commands.names.count("aggregate") == 2


def test_with_every_seat_taken_it_counts_nothing(mongod: Mongod, fleet: Fleet) -> None:
    backlog(fleet, 100)
    sit(fleet, *"ABCDE")
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        fleet.bench.db = client[fleet.bench.db.name]
        office = Office(fleet=fleet, tasks=open_tasks(fleet.bench.db))
        assert office.work(2 * SCALE_OUT_INTERVAL_SEC) == 0
        assert commands.names == ["find", "find"]


def test_who_came_meanwhile_is_not_summoned_again(office: Office) -> None:
    sit(office.fleet, "A")
    backlog(office.fleet, 900)
    assert office.work(1.5) == 4

    sit(office.fleet, *"BCDE")

    assert office.work(2 * SCALE_OUT_INTERVAL_SEC) == 0


def test_slow_tasks_of_which_none_has_ended_are_a_reason_too(fleet: Fleet) -> None:
    office = Office(fleet=fleet, tasks=fleet.bench.tasks, per_sec=0)
    backlog(fleet, 9)

    assert office.work(1.5) == 3  # each has four slots


def test_one_that_was_summoned_and_has_done_nothing_yet_summons_nobody(fleet: Fleet) -> None:
    office = Office(fleet=fleet, tasks=fleet.bench.tasks, per_sec=0, source="backlog")
    backlog(fleet, 900)
    office.report["snoozed"] = office.report["released"] = 99

    assert office.work(3 * SCALE_OUT_INTERVAL_SEC) == 0

    office.per_sec = 2
    assert office.work(SCALE_OUT_INTERVAL_SEC + 1) > 0


def test_what_was_done_while_there_was_less_to_do_is_left_out(office: Office) -> None:
    sit(office.fleet, "A")
    office.at += 30  # it kept up, and had few tasks

    backlog(office.fleet, 115)

    assert office.work(1.5) == 1  # in the half of its time that is left it does 58


def test_one_that_claims_no_more_leaves_all_to_others(office: Office) -> None:
    sit(office.fleet, "A")
    backlog(office.fleet, 100)
    office.at += CLAIMS_FOR

    assert office.work(1.5) == 1


def test_a_paused_queue_is_no_reason(office: Office, now: datetime) -> None:
    backlog(office.fleet, 900)
    change_queue(office.fleet.bench.db, "default", QueueOptions(paused=True), now=now)

    assert office.work(1.5) == 0


def test_retries_of_a_queue_that_caps_them_are_no_reason(office: Office, now: datetime) -> None:
    backlog(office.fleet, 900, lane="retry", attempts=1)
    change_queue(office.fleet.bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)

    assert office.work(1.5) == 0
    backlog(office.fleet, 900)
    assert office.work(SCALE_OUT_INTERVAL_SEC + 1) == 5


def test_only_what_it_serves_itself_is_a_reason(fleet: Fleet) -> None:
    office = Office(fleet=fleet, tasks=fleet.bench.tasks, per_sec=2, order={"lanes": ("retry",), "queues": ("eu",)})
    backlog(fleet, 300, queue="eu")
    backlog(fleet, 300, lane="retry", attempts=1)

    assert office.work(1.5, queues=("eu",)) == 0
    backlog(fleet, 300, queue="eu", lane="retry", attempts=1)
    assert office.work(SCALE_OUT_INTERVAL_SEC + 1, queues=("eu",)) > 0


def test_all_queues_count_together(office: Office) -> None:
    sit(office.fleet, "A")
    for queue in ("a", "b", "c"):
        backlog(office.fleet, 80, queue=queue)

    assert office.work(1.5, queues=("a", "b", "c")) == 2


def test_a_failing_database_is_counted_and_summons_nobody(fleet: Fleet, mine: Tasks) -> None:
    office = Office(fleet=fleet, tasks=mine, per_sec=2)
    backlog(fleet, 900)

    with failing(mine, "aggregate", times=100, errorCode=11601):
        assert office.work(1.5) == 0
    assert office.report["errors"] == 1

    assert office.work(SCALE_OUT_INTERVAL_SEC + 1) == 5


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_an_execution_with_more_before_it_than_it_can_do_summons_others_and_one_that_keeps_up_none(
    fleet: Fleet, ended: threading.Event
) -> None:
    fleet.bench.settings = Settings(task_timeout=SECOND, max_task_timeout=SECOND, margin=SECOND, linger=0 * SECOND)
    fleet.bench.task("slow")(lambda _payload, _ctx: ended.wait(0.05))
    backlog(fleet, 20, name="slow")

    fleet.come(source="tick", remaining=6 * SECOND, concurrency=4)
    assert fleet.launched == 0

    backlog(fleet, 3000, name="slow")
    report = fleet.come(source="tick", remaining=6 * SECOND, concurrency=4)
    assert report.backlog
    assert fleet.launched == 4 + 1  # on every seat but its own, and one that comes after it
