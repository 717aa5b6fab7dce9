"""Reclaim with ten thousand tasks to look after: each once, never all at once, and no longer than it has time for."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.builders import add, document
from tests.faults import failing
from tests.fixtures import ManualClock
from tests.keepers import a_keeper, lost, reclaimed
from tidemill.model import RetryPolicy, Task
from tidemill.policy.retry import DEFAULT
from tidemill.reclaim import BATCH_SIZE, reclaim
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.counts import GAUGES
from tidemill.testing import Mongod

MANY = 10_000
SECOND = timedelta(seconds=1)


def states(db: Database[Any]) -> Counter[tuple[Any, ...]]:
    """How many tasks are in which state."""
    fields = ("status", "attempts", "crashes", "lane")
    return Counter(tuple(one[field] for field in fields) for one in db["tasks"].find({}, dict.fromkeys(fields, 1)))


def test_two_reclaims_at_once_take_each_of_ten_thousand_tasks_back_once(
    mongod: Mongod, db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [lost(now) for _ in range(MANY - 2_000)])
    add(tasks, [lost(now, crashes=1) for _ in range(1_000)])
    add(tasks, [lost(now, crashes=1, max_retries=0) for _ in range(1_000)])

    def run(_: int) -> dict[str, int]:
        with MongoClient[dict[str, Any]](mongod.uri) as client:
            return reclaimed(open_tasks(client[db.name]), clock)

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(run, range(2)))

    names = ("reclaimed", "failed", "write_rejected", "errors")
    totals = {name: sum(report[name] for report in reports) for name in names}
    assert totals == {"reclaimed": MANY - 1_000, "failed": 1_000, "write_rejected": 0, "errors": 0}
    assert states(db) == {
        ("pending", 0, 1, "fresh"): MANY - 2_000,
        ("pending", 1, 2, "retry"): 1_000,
        ("failed", 1, 2, "fresh"): 1_000,
    }
    counted = list(db["queue_stats"].find())
    assert sum(one["lost"] for one in counted) == MANY


def test_ten_thousand_lost_tasks_do_not_come_back_together(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [lost(now) for _ in range(MANY)])

    assert reclaimed(tasks, clock)["reclaimed"] == MANY

    moments = [one["due_at"] for one in db["tasks"].find({}, {"due_at": 1})]
    seconds = Counter((moment - now) // SECOND for moment in moments)
    assert set(seconds) == set(range(5))
    assert max(seconds.values()) < 1.1 * MANY / 5
    assert len(set(moments)) > MANY / 3  # of the 5,000 milliseconds there are


def test_ten_thousand_documents_are_expired_adopted_and_quarantined_in_one_run(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    foreign = {"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}
    add(tasks, [document(now, expires_at=now) for _ in range(MANY)])
    add(tasks, [dict(foreign) for _ in range(MANY // 2)])
    add(tasks, [foreign | {"next_retry_at": "tomorrow"} for _ in range(MANY // 2)])

    report = reclaimed(tasks, clock)

    assert (report["expired"], report["adopted"], report["quarantined"]) == (MANY, MANY // 2, MANY // 2)
    assert (report["write_rejected"], report["errors"], report["due_fresh"]) == (0, 0, MANY // 2)
    assert db["tasks"].count_documents({"status": "pending"}) == MANY // 2


class _Watch:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class _Slow(CommandListener):
    """Has every update take so many *seconds* by its watch."""

    def __init__(self, *, seconds: float) -> None:
        self.watch = _Watch()
        self._seconds = seconds

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "update":
            self.watch.at += self._seconds

    def succeeded(self, _: CommandSucceededEvent) -> None:
        """Nothing is made of it."""

    def failed(self, _: CommandFailedEvent) -> None:
        """Nothing is made of it."""


@pytest.mark.parametrize(("seconds", "measures"), [(BATCH_SIZE, False), (2 * BATCH_SIZE, True)])
def test_the_clock_is_looked_at_between_two_batches(
    tasks: Tasks,
    clock: ManualClock,
    now: datetime,
    seconds: int,
    *,
    measures: bool,
) -> None:
    watch, decisions = _Watch(), count(1)
    add(tasks, [lost(now, crashes=1) for _ in range(3 * BATCH_SIZE)])
    add(tasks, [document(now, expires_at=now) for _ in range(5)])

    def slow(_: Task) -> RetryPolicy:
        if next(decisions) % BATCH_SIZE == 0:  # the last one of a batch: before it, there is time for every decision
            watch.at += 1.7 * BATCH_SIZE
        return DEFAULT

    report = reclaim(a_keeper(tasks, clock, policy=slow, monotonic=watch), until=watch.at + seconds)

    assert (report["reclaimed"], report["expired"], report["errors"]) == (BATCH_SIZE, 0, 0)
    assert set(GAUGES) <= set(report) if measures else not set(GAUGES) & set(report)
    assert tasks.count_documents({"status": "processing"}) == 2 * BATCH_SIZE


def test_a_batch_that_hangs_ends_with_the_time(mine: Tasks, tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    add(tasks, [lost(now) for _ in range(5)])

    with failing(mine, "update", times=100, blockConnection=True, blockTimeMS=2_500):
        started = time.monotonic()
        report = reclaim(a_keeper(mine, clock), until=started + 1)

        assert time.monotonic() - started < 2
    assert (report["reclaimed"], report["errors"]) == (0, 1)
    assert set(GAUGES) <= set(report)


def test_strays_stop_with_the_time_too(
    mongod: Mongod, db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [document(now, expires_at=now) for _ in range(5 * BATCH_SIZE)])
    slow = _Slow(seconds=300)
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[slow]) as client:
        reclaim_context = a_keeper(open_tasks(client[db.name]), clock, monotonic=slow.watch)

        report = reclaim(reclaim_context, until=slow.watch.at + 1000)

    assert 0 < report["expired"] < 5 * BATCH_SIZE
    assert report["errors"] == 0
    assert reclaimed(tasks, clock)["expired"] + report["expired"] <= 5 * BATCH_SIZE
    assert tasks.count_documents({"status": "pending"}) == 0
