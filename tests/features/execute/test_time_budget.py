"""Executors that respect their time: nothing starts that cannot finish, and nothing is left waiting for a lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient, monitoring
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.features.conftest import BRISK, Bench
from tests.features.execute.containers import Container
from tests.unit.make import eventually
from tidemill import Retry
from tidemill.control.queues import change_queue
from tidemill.executor.context import COUNT_NAMES
from tidemill.executor.lifetime import Timing
from tidemill.model import QueueOptions
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)


class Watch(monitoring.CommandListener):
    """A monotonic clock that the test moves; *slow* commands take a second of it. Keeps what was sent."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.slow: tuple[str, ...] = ()
        self.sent: list[str] = []

    def __call__(self) -> float:
        return self.at

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.sent.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self.at += event.command_name in self.slow

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def timed(mongod: Mongod, bench: Bench, watch: Watch) -> Iterator[Tasks]:
    """The tasks of the bench, whose commands are watched."""
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[watch]) as client:
        yield open_tasks(client[bench.db.name])


@pytest.mark.parametrize(("seconds", "done"), [(120, 1), (60, 1), (59.999, 0), (10, 0), (1, 0), (0, 0), (-1, 0)])
def test_with_less_time_than_the_longest_task_takes_it_says_so_and_asks_nothing(
    bench: Bench, timed: Tasks, watch: Watch, *, seconds: float, done: int
) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.at)])

    report = bench.execute(tasks=timed, remaining=seconds * SECOND, monotonic=watch)

    assert (report["done"], report.skipped) == (done, None if done else "time")
    assert bool(watch.sent) == bool(done)
    assert stored(bench.tasks, task_id)["attempts"] == done


@pytest.mark.parametrize("seconds", [10, 1])
def test_the_handler_says_so_too(mongod: Mongod, db: Database[Any], seconds: float) -> None:
    db["tasks"].insert_one(document(LONG_AGO))
    with Container("execute", uri=mongod.uri, database=db.name, LINGER_SEC="0") as container:
        report = container.done(seconds=seconds)
        assert report == {"skipped": "time"} | dict.fromkeys(COUNT_NAMES, 0)
        assert container.done(seconds=70)["done"] == 1


def test_while_its_time_falls_it_starts_what_still_fits_and_leaves_the_rest_as_it_was(  # F12
    bench: Bench, watch: Watch, now: datetime
) -> None:
    bench.settings = replace(BRISK, max_task_timeout=2.5 * SECOND, task_timeout=2.5 * SECOND, margin=SECOND)

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        watch.at += 2

    ids = add(bench.tasks, [document(now, name="slow", payload={"n": n}) for n in range(20)])

    report = bench.execute(remaining=10 * SECOND, monotonic=watch, batch_size=20, concurrency=1)

    assert bench.ran == [0, 1, 2, 3]  # with 10, 8, 6 and 4 seconds left; with 2 another would not fit
    assert (report["done"], report["claimed"] - report["released"]) == (4, 4)
    states = [(one["status"], one["attempts"], "lease" in one) for one in (stored(bench.tasks, id_) for id_ in ids)]
    assert states == [("done", 1, False)] * 4 + [("pending", 0, False)] * 16
    assert bench.execute(owner="B", concurrency=1)["done"] == 16


@pytest.mark.parametrize("count", [1, 8, 16])
def test_what_was_claimed_too_late_is_given_back_in_one_write_and_not_claimed_again(
    bench: Bench, timed: Tasks, watch: Watch, now: datetime, count: int
) -> None:
    watch.slow = ("update",)
    ids = add(bench.tasks, [document(now, timeout_sec=50) for _ in range(count)])

    report = bench.execute(tasks=timed, remaining=60.5 * SECOND, monotonic=watch)

    assert (report["claimed"], report["released"], bench.ran) == (count, count, [])
    assert watch.sent.count("update") == 2  # the stamp, and the release
    assert {(one["status"], one["attempts"], one["due_at"]) for one in (stored(bench.tasks, one) for one in ids)} == {
        ("pending", 0, now)
    }


def test_what_was_given_back_is_had_by_the_next_at_once(
    bench: Bench, timed: Tasks, watch: Watch, now: datetime
) -> None:
    watch.slow = ("update",)
    [task_id] = add(bench.tasks, [document(now, timeout_sec=50, max_retries=0)])
    bench.execute(tasks=timed, remaining=60.5 * SECOND, monotonic=watch)

    assert bench.execute(owner="B")["done"] == 1
    assert (stored(bench.tasks, task_id)["attempts"], stored(bench.tasks, task_id)["crashes"]) == (1, 0)


def test_what_fits_is_started_beside_what_is_given_back(
    bench: Bench, timed: Tasks, watch: Watch, now: datetime
) -> None:
    watch.slow = ("update",)
    long, short = add(bench.tasks, [document(now, timeout_sec=seconds) for seconds in (50, 5)])

    report = bench.execute(tasks=timed, remaining=60.5 * SECOND, monotonic=watch)

    assert (report["claimed"], report["released"], report["done"]) == (2, 1, 1)
    assert (stored(bench.tasks, long)["status"], stored(bench.tasks, short)["status"]) == ("pending", "done")


@pytest.mark.parametrize(("limit", "left"), [(None, True), (2, True), (None, False)])
def test_one_that_stops_for_lack_of_time_says_whether_something_is_left(
    bench: Bench, *, limit: int | None, left: bool
) -> None:
    bench.settings = replace(BRISK, max_task_timeout=SECOND, task_timeout=SECOND, margin=SECOND / 2, concurrency=4)
    bench.task("slow")(lambda _payload, _ctx: time.sleep(0.2))
    now = bench.clock.at
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=limit), now=now)
    count = 60 if left else 4
    add(bench.tasks, [document(now, name="slow", lane="retry", attempts=1) for _ in range(count)])

    report = bench.execute(remaining=2 * SECOND)

    assert report.backlog is left
    assert (bench.tasks.count_documents({"status": "pending"}) > 0) is left


def test_one_that_stops_with_nothing_in_hand_says_what_its_last_claim_left(
    bench: Bench, watch: Watch, now: datetime
) -> None:
    bench.prefetch = 0
    bench.settings = replace(BRISK, max_task_timeout=2.5 * SECOND, task_timeout=2.5 * SECOND, margin=SECOND)

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        watch.at += 2

    add(bench.tasks, [document(now, name="slow") for _ in range(5)])

    report = bench.execute(remaining=6 * SECOND, monotonic=watch, batch_size=1, concurrency=1)

    assert (report["claimed"], report["done"], report["released"], report.backlog) == (2, 2, 0, True)


@pytest.mark.parametrize(("after", "backlog"), [(0 * SECOND, True), (3600 * SECOND, False)])
def test_one_that_stops_says_whether_its_last_task_is_due_again(
    bench: Bench, watch: Watch, now: datetime, *, after: timedelta, backlog: bool
) -> None:
    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        watch.at += 20
        raise Retry("again", after=after)

    add(bench.tasks, [document(now, name="slow")])

    report = bench.execute(remaining=70 * SECOND, monotonic=watch, concurrency=2)

    assert (report["claimed"], report["retried"], report.backlog) == (1, 1, backlog)


def test_too_late_for_another_task_it_claims_none_while_others_run(
    bench: Bench, timed: Tasks, watch: Watch, now: datetime
) -> None:
    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        watch.at += 11
        add(bench.tasks, [document(now)])
        for _ in range(3):  # a cancellation is looked for once a second, in a step of its own
            watch.sent.clear()
            watch.at += 1.1
            assert eventually(lambda: "find" in watch.sent, within=20)

    add(bench.tasks, [document(now, name="slow")])

    report = bench.execute(tasks=timed, remaining=70 * SECOND, monotonic=watch, concurrency=2)

    assert (report["claimed"], report["done"]) == (1, 1)
    assert bench.tasks.count_documents({"status": "pending"}) == 1


def test_what_can_no_longer_finish_is_given_back_while_the_slot_is_taken(
    bench: Bench, watch: Watch, now: datetime
) -> None:
    bench.prefetch, bench.timing = 1, Timing(slot_wait_sec=3600.0)
    behind = document(now, timeout_sec=50)

    def is_behind(status: str) -> bool:
        return eventually(lambda: stored(bench.tasks, behind["_id"])["status"] == status, within=20)

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        assert is_behind("processing")
        watch.at += 25
        assert is_behind("pending")

    add(bench.tasks, [document(now, name="slow", priority=1), behind])

    report = bench.execute(remaining=70 * SECOND, monotonic=watch, concurrency=1)

    assert (report["claimed"], report["done"], report["released"]) == (2, 1, 1)
