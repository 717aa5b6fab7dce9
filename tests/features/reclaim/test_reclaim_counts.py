"""What reclaim measures at its end: what waits, how long, and what is dead."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import MINUTE, add, document
from tests.commands import Commands
from tests.fixtures import ManualClock
from tests.keepers import a_keeper, lost, reclaimed
from tidemill.reclaim import reclaim
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.counts import COUNT_LIMIT, GAUGES, QUEUES_PER_COMMAND
from tidemill.testing import Mongod


def test_an_idle_run_costs_ten_commands_and_three_of_them_are_gauges(
    mongod: Mongod, db: Database[Any], clock: ManualClock
) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        report = reclaimed(open_tasks(client[db.name]), clock)
        sent = len(commands.names)

    assert set(report.values()) == {0}
    assert sent == 10


def test_the_gauges_tell_what_waits_also_in_a_paused_queue(
    db: Database[Any], tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    db["queues"].insert_one({"_id": "eu", "paused": True})
    add(tasks, [document(now - timedelta(seconds=n), queue="eu") for n in range(1, 4)])
    add(tasks, [document(now, queue=queue, lane="retry", attempts=1) for queue in ("eu", "us")])
    add(tasks, [document(now, due_at=now + MINUTE), document(now, status="done")])
    add(dead, [{"_id": {"task": n, "redrives": 0}} for n in range(4)])

    report = reclaimed(tasks, clock)

    assert {name: report[name] for name in GAUGES} == {
        "due_fresh": 3,
        "due_retry": 2,
        "oldest_due_sec": 3,
        "dead_letters": 4,
    }


def test_with_tasks_due_the_gauges_cost_five_commands_whatever_their_number(
    mongod: Mongod, db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [document(now, queue=f"q{n % QUEUES_PER_COMMAND}", priority=n % 3) for n in range(1_000)])
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        report = reclaimed(open_tasks(client[db.name]), clock)
        sent = len(commands.names)

    assert report["due_fresh"] == 1_000
    assert sent == 7 + 3 + 5  # strays are looked for in three commands more where there are queues


def test_a_gauge_stops_at_ten_thousand(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    add(tasks, [document(now, queue=f"q{n % 7}") for n in range(COUNT_LIMIT + 100)])

    assert reclaimed(tasks, clock)["due_fresh"] == COUNT_LIMIT


def test_what_was_just_taken_back_is_not_due_yet_and_what_was_adopted_is(
    tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    foreign = {"payload": {}, "status": "pending", "attempts": 1, "next_retry_at": now - MINUTE}
    add(tasks, [lost(now), foreign])

    report = reclaimed(tasks, clock)

    assert (report["due_fresh"], report["due_retry"], report["oldest_due_sec"]) == (0, 1, 60)


def test_gauges_that_cannot_be_taken_are_absent_and_the_report_stays(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [lost(now)])
    db["tasks"].drop_index("claim")

    report = reclaimed(tasks, clock)

    assert report["reclaimed"] == 1
    assert not set(GAUGES) & set(report)


def test_without_any_time_nothing_is_measured(tasks: Tasks, clock: ManualClock) -> None:
    reclaim_context = a_keeper(tasks, clock)

    assert not set(GAUGES) & set(reclaim(reclaim_context, until=reclaim_context.monotonic() - 1))
