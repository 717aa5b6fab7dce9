"""Faults that queues had with time: clocks that disagree, times of the wrong kind."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, claim, document, stored
from tests.features.conftest import Bench
from tests.features.execute.containers import Container
from tests.handlers.calls import answer, request
from tests.keepers import reclaimed
from tidemill import Queue
from tidemill.clock import ServerClock
from tidemill.store.connection import Tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)


def on_a_machine_that_is(db: Database[Any], seconds: float) -> ServerClock:
    """The clock of an executor whose machine believes that it is so much later."""
    return ServerClock(db, wall=lambda: time.time() + seconds)


def test_a_machine_whose_clock_is_ahead_takes_no_lease_from_a_living_worker(  # F28
    bench: Bench, tasks: Tasks
) -> None:
    true, ahead = on_a_machine_that_is(bench.db, 0), on_a_machine_that_is(bench.db, 90)
    now = true.now()
    add(tasks, [document(now)])
    claim(tasks, now)  # for a minute

    assert reclaimed(tasks, ahead)["reclaimed"] == 0
    assert bench.execute(clock=ahead)["claimed"] == 0


def test_a_machine_whose_clock_is_behind_delays_nothing_and_retries_nothing_early(bench: Bench) -> None:  # F28
    true, behind = on_a_machine_that_is(bench.db, 0), on_a_machine_that_is(bench.db, -600)
    bench.task("broken")(lambda _payload, _ctx: 1 / 0)
    thirty = {"strategy": "fixed", "base_sec": 30.0, "max_sec": 60.0, "jitter": "none"}
    queue = Queue(bench.db, clock=behind)
    done = queue.enqueue("noop", {})
    assert bench.execute(clock=true)["done"] == 1
    broken = queue.enqueue("broken", {})
    bench.tasks.update_one({"_id": broken}, {"$set": {"backoff_policy": thirty}})

    before = true.now()
    assert bench.execute(clock=behind)["retried"] == 1

    wait = stored(bench.tasks, broken)["next_retry_at"] - before
    assert 29 * SECOND < wait < 60 * SECOND
    assert stored(bench.tasks, done)["created_at"] > before - timedelta(minutes=5)


@pytest.mark.parametrize("aware", ["true", "false"])
def test_no_function_minds_what_its_uri_says_of_time_zones(  # F29
    mongod: Mongod, db: Database[Any], aware: str
) -> None:
    db["task_types"].insert_one({"_id": "noop", "http": True})
    over = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    add(db["tasks"], [document(LONG_AGO, status="processing", attempts=1, lease=over)])
    add(db["tasks"], [document(LONG_AGO, expires_at=LONG_AGO), document(LONG_AGO, status="failed")])
    given: dict[str, str] = {"uri": f"{mongod.uri}&tz_aware={aware}", "database": db.name, "LINGER_SEC": "0"}
    with Container("enqueue", **given) as front:
        told = answer(front.done(request(body={"name": "noop", "payload": {}})))
        with Container("reclaim", **given) as container:
            report = container.done()
            assert (report["reclaimed"], report["expired"], report["errors"]) == (1, 1, 0)
        with Container("execute", **given) as container:
            assert container.done()["done"] >= 1
        with Container("archive", **given) as container:
            assert container.done()["moved"] == 2
        found = answer(front.done(request("GET", f"/tasks/{told.id}")))

    assert found.body["status"] == "done"
    times = [value for name, value in found.body.items() if name.endswith("_at") and value is not None]
    assert len(times) >= 2
    assert all(datetime.fromisoformat(value).utcoffset() == timedelta(0) for value in times)


@pytest.mark.parametrize(("microsecond", "is_due"), [(122999, False), (123400, True), (123999, True), (124000, True)])
def test_a_time_between_two_milliseconds_is_due_in_its_own(  # F31
    tasks: Tasks, now: datetime, microsecond: int, *, is_due: bool
) -> None:
    add(tasks, [document(now.replace(microsecond=123999))])

    assert bool(claim(tasks, now.replace(microsecond=microsecond)).tasks) == is_due


@pytest.mark.parametrize(
    ("due_at", "status"),
    [(None, "done"), ("absent", "done"), ("2031-07-01T09:00:00Z", "failed"), (1940662800, "failed")],
)
def test_a_due_time_of_the_wrong_kind_is_seen_to_within_a_tick(  # F37
    bench: Bench, now: datetime, due_at: object, status: str
) -> None:
    odd = document(now) | {"due_at": due_at}
    if due_at == "absent":
        del odd["due_at"]
    [task_id] = add(bench.tasks, [odd])

    first = bench.reclaim()
    for _ in range(24):
        bench.execute()
        bench.clock.move(timedelta(hours=1))
        bench.reclaim()

    assert first["adopted"] + first["quarantined"] == 1
    found = stored(bench.tasks, task_id)
    assert (found["status"], found.get("reason")) == (status, "malformed" if status == "failed" else None)
