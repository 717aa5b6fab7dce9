"""How retries went: counters written beside the work, and what people are told of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import Decimal128
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, claim_one, document
from tests.commands import Commands
from tests.faults import failing
from tests.features.conftest import BRISK, Bench
from tests.unit.make import eventually
from tidemill import Fail, Snooze, UnavailableError
from tidemill.admin.queues import read_retry_statistics
from tidemill.admin.responses import QueueStatistics
from tidemill.control.queues import change_queue
from tidemill.model import LANES, Budget, Pressure, QueueOptions, Succeeded
from tidemill.store import tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.settle import Settlement
from tidemill.store.stats import StatsRecorder, read_totals
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
POLICY = {"strategy": "fixed", "base_sec": 10.0, "max_sec": 10.0, "jitter": "none"}


@pytest.fixture(autouse=True)
def functions(bench: Bench) -> None:
    @bench.task("flaky")
    def flaky(payload: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt <= payload["fails"]:
            raise ValueError

    @bench.task("picky")
    def picky(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Fail("no")

    @bench.task("sleepy")
    def sleepy(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Snooze(timedelta(hours=1))


def flaky(now: datetime, fails: int, **fields: Any) -> dict[str, Any]:
    return document(now, name="flaky", payload={"fails": fails}, backoff_policy=POLICY, **fields)


def run_out(bench: Bench) -> None:
    """Run until nothing is pending but what was snoozed for long."""
    for _ in range(5):
        bench.execute()
        bench.clock.move(11 * SECOND)


def only(bench: Bench) -> QueueStatistics:
    [one] = read_retry_statistics(bench.db, since=bench.clock.now() - timedelta(hours=1))
    return one


def test_retries_are_counted_by_how_they_ended(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [flaky(now, 0), flaky(now, 1), flaky(now, 2), flaky(now, 9, max_retries=2)])
    add(bench.tasks, [document(now, name="picky"), document(now, name="sleepy")])

    run_out(bench)

    told = only(bench)
    assert (told.total_retries, told.successful_retries, told.retries_exhausted) == (5, 2, 1)
    assert told.retry_success_rate == 2 / 5
    assert (told.backoff_sec_sum, told.backoff_sec_mean) == (50, 10)


def test_the_counters_of_each_function_tell_every_outcome(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [flaky(now, 1), document(now, name="picky"), document(now, name="sleepy"), document(now)])

    run_out(bench)

    counters = read_totals(bench.db, since=now)
    shown = {
        name: {key: value for key, value in counts.items() if value and not key.endswith("_ms")}
        for (_, name), counts in counters.items()
    }
    assert shown == {
        "flaky": {"runs": 2, "retried": 1, "done": 1, "retry_runs": 1, "retry_successes": 1},
        "picky": {"runs": 1, "failed": 1},
        "sleepy": {"runs": 1, "snoozed": 1},
        "noop": {"runs": 1, "done": 1},
    }


def test_without_retries_there_is_no_rate_and_no_mean(bench: Bench) -> None:
    add(bench.tasks, [document(bench.clock.now())])

    bench.execute()

    told = only(bench)
    assert (told.total_retries, told.retry_success_rate, told.backoff_sec_mean) == (0, None, None)


def test_retries_in_back_off_are_the_depth_of_their_lane(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [flaky(now, 1) for _ in range(3)])

    bench.execute()

    assert only(bench).retry_queue_size == 3


def test_lost_workers_count_and_the_last_one_exhausts(bench: Bench) -> None:
    now = bench.clock.now()
    lease = {"token": "t", "owner": "dead", "expires_at": now - SECOND}
    held = {"name": "noop", "status": "processing", "lease": lease, "lane": "retry", "backoff_policy": POLICY}
    add(bench.tasks, [document(now, **held, attempts=1)])  # the first loss, which is refunded
    add(
        bench.tasks,
        [document(now, **held, attempts=1, crashes=1), document(now, **held, attempts=9, crashes=2, max_retries=2)],
    )

    bench.reclaim()

    [counts] = read_totals(bench.db, since=now).values()
    assert (counts["lost"], counts["retried"], counts["exhausted"], counts["runs"]) == (3, 1, 1, 0)


def test_queues_and_minutes_are_kept_apart(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [flaky(now, 1, queue="eu"), flaky(now, 1), flaky(now, 1)])
    run_out(bench)
    later = bench.clock.move(MINUTE)

    assert {one.queue: one.total_retries for one in read_retry_statistics(bench.db, since=now)} == {
        "default": 2,
        "eu": 1,
    }
    assert read_retry_statistics(bench.db, since=later) == []


def test_executors_add_up(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now) for _ in range(6)])

    for owner in "ABC":
        bench.execute(owner=owner, batch_size=1, concurrency=1)
        add(bench.tasks, [document(now)])

    [counts] = read_totals(bench.db, since=now).values()
    assert counts["done"] == bench.tasks.count_documents({"status": "done"}) == 8


@pytest.mark.parametrize(
    ("selection", "lanes", "saved"),
    [
        ("retries_first", LANES, 300),
        ("weighted", LANES, 300),
        ("oldest_first", LANES, 0),
        ("retries_first", ("retry",), 0),  # an executor of their own overtakes nobody
    ],
)
def test_what_retries_gained_by_going_first_is_estimated_from_who_waited(
    bench: Bench, selection: str, lanes: tuple[str, ...], saved: float
) -> None:
    at = [1000.0]

    @bench.task("work", timeout=40)
    def work(_payload: dict[str, Any], _ctx: Any) -> None:
        at[0] += 30

    now = bench.clock.now()
    add(bench.tasks, [document(now, name="work", lane="retry", attempts=1) for _ in range(2)])
    add(bench.tasks, [document(now, name="work") for _ in range(5)])
    bench.settings = replace(BRISK, retry_share=1.0)

    bench.execute(
        concurrency=1, selection=selection, remaining=timedelta(minutes=10), monotonic=lambda: at[0], lanes=lanes
    )

    assert only(bench).time_saved_sec_estimate == saved


def test_statistics_cost_an_execution_at_most_one_write_a_second(mongod: Mongod, bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now) for _ in range(300)])
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        bench.execute(tasks=open_tasks(client[bench.db.name]), monotonic=lambda: 1000.0 + len(commands.names) * 1e-4)

    assert bench.db["queue_stats"].count_documents({}) == 1
    assert 1 <= commands.into.count("queue_stats") <= 2


def test_an_idle_tick_writes_no_statistics(mongod: Mongod, bench: Bench) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        bench.execute(tasks=open_tasks(client[bench.db.name]))

    assert set(commands.names) <= {"aggregate", "endSessions"}
    assert bench.db["queue_stats"].count_documents({}) == 0


def test_counters_edited_by_people_are_summed_where_they_are_numbers(db: Database[Any], now: datetime) -> None:
    key = {"queue": "default", "minute": now, "name": "noop"}
    db["queue_stats"].insert_many(
        [
            {"_id": key, "minute": now, "retry_runs": 3, "done": "many"},
            {"_id": key | {"name": "other"}, "minute": now, "retry_runs": "x"},
            {"_id": 7, "minute": now},
        ]
    )

    told = {one.queue: one.total_retries for one in read_retry_statistics(db, since=now)}

    assert told["default"] == 3


def test_names_beyond_any_measure_are_cut_not_refused(bench: Bench) -> None:
    rng = random.Random(1)
    name = "".join(rng.choice("ab") for _ in range(3000))
    add(bench.tasks, [document(bench.clock.now(), name=name, created_at=bench.clock.now() - timedelta(days=1))])

    report = bench.execute()

    assert (report["failed"], report["errors"]) == (1, 0)
    [(_, counted)] = read_totals(bench.db, since=bench.clock.now())
    assert len(counted) == 100


def test_one_counter_that_cannot_be_counted_multiplies_no_other(bench: Bench) -> None:
    now = bench.clock.now()
    odd = {"_id": {"queue": "default", "minute": now, "name": "noop"}, "minute": now, "done": "many"}
    bench.db["queue_stats"].insert_one(odd)
    at = [1000.0]

    @bench.task("nap", timeout=40)
    def nap(_payload: dict[str, Any], _ctx: Any) -> None:
        at[0] += 1.3

    add(bench.tasks, [document(now), *(document(now, name="nap") for _ in range(4))])

    report = bench.execute(concurrency=1, monotonic=lambda: at[0])

    assert (report["done"], read_totals(bench.db, since=now)["default", "nap"]["done"]) == (5, 4)


def test_counters_whose_write_was_not_confirmed_are_not_written_again(bench: Bench, mine: Tasks) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now)])
    done = Settlement(task=claim_one(bench.tasks, now), outcome=Succeeded(result=None))
    statistics = StatsRecorder(mine)
    statistics.count_settled([done], now=now)

    with failing(mine, "update", writeConcernError={"code": 64, "errmsg": "x"}), pytest.raises(UnavailableError):
        statistics.write(now=now)
    statistics.write(now=now)

    assert read_totals(bench.db, since=now)["default", "noop"]["done"] == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -3, 1e300, Decimal128("3"), "many", None, [1]])
def test_whatever_stands_in_a_counter_stops_nobody(bench: Bench, value: object) -> None:
    now = bench.clock.now()
    pressure = Pressure(budget=Budget(per_minute=5))
    change_queue(bench.db, "default", QueueOptions(pressure=pressure), now=now)
    key = {"queue": "default", "minute": now, "name": "odd"}
    bench.db["queue_stats"].insert_one(
        {"_id": key, "minute": now, "retried": value, "backoff_ms": value, "saved_ms": value}
    )
    lease = {"token": "t", "owner": "dead", "expires_at": now - SECOND}
    add(bench.tasks, [flaky(now, 1), document(now, status="processing", lease=lease, attempts=1, crashes=1)])

    report, reclaimed = bench.execute(), bench.reclaim()

    assert (report["retried"], reclaimed["reclaimed"]) == (1, 1)
    assert read_retry_statistics(bench.db, since=now)[0].backoff_sec_sum >= 0


def test_statistics_that_cannot_be_written_keep_nobody_from_reclaiming(bench: Bench) -> None:
    now = bench.clock.now()
    odd = {"_id": {"queue": "default", "minute": now, "name": "noop"}, "minute": now, "lost": "many"}
    bench.db["queue_stats"].insert_one(odd)
    bench.db["control"].insert_one({"_id": "retries:default", "holds": {"owner": "dead"}})
    lease = {"token": "t", "owner": "dead", "expires_at": now + MINUTE}
    add(bench.tasks, [document(now, status="processing", lease=lease, attempts=1)])

    report = bench.reclaim(dead_owner="dead")

    assert (report["reclaimed"], report["errors"]) == (1, 1)


def test_what_was_stopped_on_request_counts_as_cancelled(bench: Bench) -> None:
    now = bench.clock.now()

    @bench.task("stops")
    def stops(_payload: dict[str, Any], ctx: Any) -> None:
        tasks.cancel(bench.tasks, ctx.task_id, now=now)
        assert eventually(ctx.cancelled)
        raise ValueError

    lease = {"token": "t", "owner": "dead", "expires_at": now - SECOND}
    asked = {"status": "processing", "lease": lease, "attempts": 1, "cancel_requested_at": now}
    add(bench.tasks, [document(now, name="stops"), document(now, name="stops", **asked)])

    report, _ = bench.execute(), bench.reclaim()

    counts = read_totals(bench.db, since=now)["default", "stops"]
    assert (report["cancelled"], report["retried"]) == (1, 0)
    assert (counts["cancelled"], counts["retried"], counts["snoozed"]) == (2, 0, 0)
    assert {raw["status"] for raw in bench.tasks.find()} == {"cancelled"}


def test_the_first_loss_of_a_worker_is_no_snooze(bench: Bench) -> None:
    now = bench.clock.now()
    lease = {"token": "t", "owner": "dead", "expires_at": now - SECOND}
    add(bench.tasks, [document(now, status="processing", lease=lease, attempts=1, lane="retry")])

    bench.reclaim()

    counts = read_totals(bench.db, since=now)["default", "noop"]
    assert (counts["lost"], counts["snoozed"], counts["retry_runs"]) == (1, 0, 0)
