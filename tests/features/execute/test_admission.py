"""What is claimed and does not start: expired, exhausted, unknown, too long, out of time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from pymongo import MongoClient, monitoring

from tests.builders import add, document, stored
from tests.faults import Beforehand, failing
from tests.features.conftest import BRISK, Bench
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
INTERRUPTED = 11601
SHORT = replace(BRISK, max_task_timeout=SECOND, task_timeout=SECOND, margin=SECOND / 2)


@pytest.fixture
def slow(mongod: Mongod, bench: Bench) -> Iterator[tuple[Tasks, SlowStamp]]:
    monotonic = SlowStamp()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[monotonic]) as client:
        yield open_tasks(client[bench.db.name]), monotonic


def test_a_backlog_of_expired_tasks_is_not_run(bench: Bench, now: datetime) -> None:  # F27
    ids = add(bench.tasks, [document(now, payload={"n": n}, expires_at=now + MINUTE) for n in range(60)])
    bench.clock.move(60 * MINUTE)

    report = bench.execute()

    assert (bench.ran, report["failed"]) == ([], 60)
    assert {(stored(bench.tasks, one)["reason"], stored(bench.tasks, one)["attempts"]) for one in ids} == {
        ("expired", 0)
    }


@pytest.mark.parametrize(("attempts", "max_retries", "runs"), [(3, 2, 0), (7, 2, 0), (2, 2, 1), (0, 0, 1), (1, 0, 0)])
def test_exhausted_is_judged_by_the_attempts_before_this_claim(
    bench: Bench, now: datetime, attempts: int, max_retries: int, runs: int
) -> None:
    [task_id] = add(bench.tasks, [document(now, attempts=attempts, max_retries=max_retries)])

    bench.execute()

    found = stored(bench.tasks, task_id)
    assert len(bench.ran) == runs
    assert (found["status"], found["attempts"]) == (("done", attempts + 1) if runs else ("failed", attempts))


@pytest.mark.parametrize("name", ["no.such.task", "../x", "os.system", "__import__", "Tâche😀", "x" * 300])
def test_an_unknown_name_waits_and_is_dead_in_the_end(bench: Bench, now: datetime, name: str) -> None:  # F23
    unknown, *known = add(
        bench.tasks, [document(now, name=name, priority=9), *(document(now, payload={"n": n}) for n in range(5))]
    )

    report = bench.execute()

    assert (report["done"], report["snoozed"]) == (5, 1)
    waiting = stored(bench.tasks, unknown)
    assert (waiting["status"], waiting["attempts"]) == ("pending", 0)
    assert waiting["due_at"] > now
    looks = 0
    while stored(bench.tasks, unknown)["status"] == "pending":
        bench.clock.at = stored(bench.tasks, unknown)["due_at"]
        bench.execute()
        looks += 1
    assert looks < 20
    assert bench.clock.at - now >= timedelta(minutes=10)
    assert stored(bench.tasks, unknown)["reason"] == "unknown_task"
    assert [stored(bench.tasks, one)["status"] for one in known] == ["done"] * 5


def test_a_timeout_longer_than_an_executor_lives_is_refused(bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, timeout_sec=51)])

    bench.execute()

    assert (stored(bench.tasks, task_id)["reason"], bench.ran) == ("timeout_too_long", [])


@pytest.mark.parametrize("remaining", [59 * SECOND, 10 * SECOND, SECOND, 0 * SECOND])
def test_without_time_for_the_longest_task_nothing_is_claimed(
    bench: Bench, now: datetime, remaining: timedelta
) -> None:
    [task_id] = add(bench.tasks, [document(now)])

    report = bench.execute(remaining=remaining)

    assert report["claimed"] == 0
    assert stored(bench.tasks, task_id)["status"] == "pending"


def test_an_execution_stops_claiming_in_time_and_leaves_nothing_claimed(bench: Bench, now: datetime) -> None:
    bench.settings = replace(SHORT, concurrency=2)
    bench.task("slow")(lambda _payload, _ctx: time.sleep(0.1))
    ids = add(bench.tasks, [document(now, name="slow") for _ in range(40)])

    report = bench.execute(remaining=timedelta(seconds=2))

    states = [(stored(bench.tasks, one)["status"], stored(bench.tasks, one)["attempts"]) for one in ids]
    assert set(states) == {("done", 1), ("pending", 0)}
    assert report["done"] == states.count(("done", 1))


def test_a_lease_outlives_its_invocation_and_no_longer(bench: Bench, now: datetime) -> None:
    leases: list[datetime] = []

    def look(_payload: dict[str, Any], ctx: Any) -> None:
        leases.append(stored(bench.tasks, ctx.task_id)["lease"]["expires_at"])

    bench.task("look")(look)
    add(bench.tasks, [document(now, name="look")])

    bench.execute(remaining=timedelta(seconds=100))

    assert timedelta(seconds=100) < leases[0] - now <= timedelta(seconds=105)


def test_failing_tasks_of_high_priority_do_not_keep_good_ones_waiting(bench: Bench, now: datetime) -> None:
    bench.task("broken")(lambda _payload, _ctx: 1 / 0)
    add(bench.tasks, [document(now, name="broken", priority=9, max_retries=50) for _ in range(3)])
    good = add(bench.tasks, [document(now) for _ in range(30)])

    for _ in range(12):
        bench.execute(batch_size=3)
        bench.clock.move(MINUTE)

    assert {stored(bench.tasks, one)["status"] for one in good} == {"done"}


def test_what_was_claimed_and_no_longer_fits_is_given_back_and_not_claimed_again(
    bench: Bench, now: datetime, slow: tuple[Tasks, SlowStamp]
) -> None:
    tasks, monotonic = slow
    [task_id] = add(bench.tasks, [document(now, timeout_sec=50)])

    report = bench.execute(tasks=tasks, remaining=60.5 * SECOND, monotonic=monotonic)

    assert (report["claimed"], report["released"], bench.ran) == (1, 1, [])
    assert (stored(bench.tasks, task_id)["status"], stored(bench.tasks, task_id)["attempts"]) == ("pending", 0)


def test_what_could_not_be_given_back_at_once_is_given_back_at_the_end(
    bench: Bench, now: datetime, mongod: Mongod
) -> None:
    [task_id] = add(bench.tasks, [document(now, timeout_sec=50)])
    monotonic, numbers = SlowStamp(), count(1)

    with ExitStack() as stack:

        def fail_release() -> None:
            if next(numbers) == 2:  # behind the stamp
                stack.enter_context(failing(tasks, "update", times=1, errorCode=INTERRUPTED))

        listeners = [monotonic, Beforehand("update", fail_release, always=True)]
        client = MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, appname="slow", event_listeners=listeners)
        tasks = open_tasks(stack.enter_context(client)[bench.db.name])

        report = bench.execute(tasks=tasks, remaining=60.5 * SECOND, monotonic=monotonic)

    assert (report["claimed"], report["released"], report["errors"]) == (1, 1, 1)
    assert (stored(bench.tasks, task_id)["status"], stored(bench.tasks, task_id)["attempts"]) == ("pending", 0)


class SlowStamp(monitoring.CommandListener):
    """A monotonic clock that stands still, but for the second that the stamp of a claim takes."""

    def __init__(self) -> None:
        self._at = 1000.0

    def __call__(self) -> float:
        return self._at

    def started(self, _: monitoring.CommandStartedEvent) -> None:
        pass

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self._at += event.command_name == "update"

    def failed(self, _: monitoring.CommandFailedEvent) -> None:
        pass
