"""Leases of a worker: extended while their tasks are in hand, given up as lost where others took over."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import MINUTE, add, claim, document, stored, whole
from tests.claimers import holds
from tests.commands import Commands
from tests.faults import failing
from tests.features.conftest import Bench
from tests.features.worker.at_work import AtWork, Time
from tests.fixtures import ManualClock
from tests.unit.make import eventually
from tidemill.control.queues import change_queue
from tidemill.executor.context import ExecutionContext, ExecutionOptions, Runtime
from tidemill.executor.heartbeat import Heartbeat
from tidemill.executor.lifetime import LEASE_EXTENSION_SEC, WORKER_LEASE, Invocation, Lifetime, Worker
from tidemill.executor.retry_permits import PERMIT_GRACE, RetryPermits
from tidemill.model import QueueOptions, Task
from tidemill.registry import Registry
from tidemill.runner.worker_thread import RunningTask
from tidemill.settings import Settings
from tidemill.store import tasks
from tidemill.store.claims import Claim
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import Scan
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Holding:
    """A worker of owner ``A`` that holds tasks, without an executor around it."""

    def __init__(self, tasks: Tasks, clock: ManualClock, lifetime: Lifetime | None = None) -> None:
        self.tasks = tasks
        self.time = Time(clock)
        self.held: list[Task] = []
        runtime = Runtime(
            tasks=tasks,
            registry=Registry(),
            settings=Settings(),
            clock=clock,
            options=lambda _: QueueOptions(),
            monotonic=self.time,
        )
        context = ExecutionContext(
            runtime=runtime,
            options=ExecutionOptions(owner="A", remaining=HOUR),
            lifetime=lifetime or Worker(threading.Event()),
        )
        self.report = context.report
        self.permits = RetryPermits(context)
        self._heartbeat = Heartbeat(context, permits=self.permits, find_leased=lambda: self.held)

    def beat(self, running: Sequence[RunningTask] = ()) -> None:
        """Do what is due, and hold no longer what was lost."""
        lost = self._heartbeat.beat(running, is_busy=bool(running)).lost
        self.held = [task for task in self.held if task not in lost]

    def take(self, count: int, **fields: Any) -> list[Task]:
        """Have so many tasks enqueued, claimed and held."""
        now = self.time.clock.now()
        add(self.tasks, [document(now, **fields) for _ in range(count)])
        claimed = whole(claim(self.tasks, now, limit=count).tasks)
        self.held += claimed
        return claimed

    def ends(self) -> set[datetime]:
        """When the leases end."""
        return {stored(self.tasks, one.id)["lease"]["expires_at"] for one in self.held}


@pytest.fixture
def holding(tasks: Tasks, clock: ManualClock) -> Holding:
    return Holding(tasks, clock)


def running(task: Task) -> RunningTask:
    """*task*, as its slot shows it."""
    return RunningTask(task=task, ctx=None, started_at=task.updated_at, started=0.0, cancel=threading.Event())  # type: ignore[arg-type]


def test_leases_are_left_alone_until_it_is_time(holding: Holding) -> None:
    holding.take(3)
    began = holding.time.clock.now()

    holding.time.pass_(LEASE_EXTENSION_SEC - 0.1)
    holding.beat()

    assert holding.ends() == {began + MINUTE}


def test_all_that_is_in_hand_is_extended_by_one_command(
    mongod: Mongod, holding: Holding, tasks: Tasks, clock: ManualClock
) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands], tz_aware=True) as client:
        own = Holding(open_tasks(client[tasks.database.name]), clock)
        own.held += holding.take(50)
        own.time.pass_(LEASE_EXTENSION_SEC)
        commands.names.clear()

        own.beat()
        own.beat()

        assert commands.names.count("update") == 1
    assert holding.ends() == {clock.now() + WORKER_LEASE}


def test_with_nothing_in_hand_nothing_is_asked(holding: Holding) -> None:
    with failing(holding.tasks, "update", times=1, closeConnection=True):
        holding.time.pass_(LEASE_EXTENSION_SEC)
        holding.beat()

    assert holding.report["errors"] == 0


def test_with_nothing_in_hand_no_cancellation_is_looked_for(mongod: Mongod, tasks: Tasks, clock: ManualClock) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands], tz_aware=True) as client:
        own = Holding(open_tasks(client[tasks.database.name]), clock)
        [task] = own.take(1)
        own.time.pass_(LEASE_EXTENSION_SEC)
        commands.names.clear()

        own.beat()
        assert "find" not in commands.names

        own.beat([running(task)])
        assert "find" in commands.names


def test_a_function_whose_lease_was_taken_away_is_asked_to_stop(holding: Holding) -> None:
    lost, kept, waiting = holding.take(3)
    tasks.cancel(holding.tasks, lost.id, now=holding.time.clock.now(), force=True)
    tasks.cancel(holding.tasks, waiting.id, now=holding.time.clock.now(), force=True)
    runs = [running(lost), running(kept)]

    holding.time.pass_(LEASE_EXTENSION_SEC)
    holding.beat(runs)

    assert [one.cancel.is_set() for one in runs] == [True, False]
    assert holding.held == [kept], "what is lost must not be started any more"


def test_a_lost_claim_stops_no_function_of_the_next_claim_of_that_task(holding: Holding) -> None:
    now = holding.time.clock.now()
    [first] = holding.take(1)
    holding.tasks.update_one({"_id": first.id}, {"$set": {"status": "pending"}, "$unset": {"lease": ""}})
    [second] = whole(claim(holding.tasks, now).tasks)
    holding.held.append(second)
    run = running(second)

    holding.time.pass_(LEASE_EXTENSION_SEC)
    holding.beat([run])

    assert not run.cancel.is_set()
    assert holding.held == [second]


def test_an_extension_that_fails_is_tried_again_soon(mine: Tasks, clock: ManualClock) -> None:
    own = Holding(mine, clock)
    own.take(2)
    own.time.pass_(LEASE_EXTENSION_SEC)
    with failing(mine, "update", times=100, errorCode=11601):
        own.beat()
    assert (own.report["errors"], len(own.held)) == (1, 2)

    own.time.pass_(LEASE_EXTENSION_SEC / 4)
    own.beat()

    assert own.ends() == {clock.now() + WORKER_LEASE}


def test_an_outage_of_forty_seconds_lets_nobody_take_over(bench: Bench, mine: Tasks) -> None:
    holding = Holding(mine, bench.clock)
    holding.take(2)
    holding.time.pass_(LEASE_EXTENSION_SEC)
    holding.beat()  # the last one before the outage, which begins right before the next

    holding.time.pass_(LEASE_EXTENSION_SEC)
    with failing(mine, "update", times=1000, errorCode=11601):
        for _ in range(39):
            holding.beat()
            holding.time.pass_(1)
    assert holding.report["errors"] > 1

    assert bench.reclaim()["reclaimed"] == 0
    holding.time.pass_(1)
    holding.beat()
    assert holding.ends() == {bench.clock.now() + WORKER_LEASE}


def test_permits_for_retries_are_extended_with_the_leases(bench: Bench, holding: Holding) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    [task] = holding.take(1)
    reservation = holding.permits.reserve("default", limit=4, now=now)
    reservation.grant(1)
    retry = Claim(scan=Scan(queue="default", lanes=("retry",)), tasks=(task,), retries=(task.id,))
    holding.permits.record_claim(reservation, retry, now=now)

    for _ in range(5):
        holding.time.pass_(LEASE_EXTENSION_SEC)
        holding.beat()

    [hold] = (bench.db["control"].find_one({"_id": "retries:default"}) or {})["holds"]
    assert (hold["n"], hold["until"]) == (1, bench.clock.now() + WORKER_LEASE + PERMIT_GRACE)
    assert holds(bench.db) == 1


def test_an_invocation_extends_nothing(tasks: Tasks, clock: ManualClock) -> None:
    began = clock.now()
    holding = Holding(tasks, clock, Invocation(MINUTE, reserve=SECOND, monotonic=Time(clock)))
    holding.take(1)

    holding.time.pass_(10_000)
    holding.beat()

    assert holding.ends() == {began + MINUTE}


def test_a_worker_that_lost_a_lease_is_refused_and_leaves_the_next_claim_alone(bench: Bench) -> None:  # F03
    begun, cancelled = threading.Event(), threading.Event()

    def wait(_payload: dict[str, Any], ctx: Any) -> str:
        begun.set()
        if eventually(ctx.cancelled, within=30):
            cancelled.set()
        return "late"

    bench.task("wait", timeout=600)(wait)
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="wait")])
    with AtWork(bench) as worker:
        assert begun.wait(10)
        bench.reclaim(dead_owner="A")  # as if the platform had said so
        bench.clock.move(6 * SECOND)
        current = whole(claim(bench.tasks, bench.clock.now(), owner="B").tasks)

        assert worker.until(cancelled.is_set)
        report = worker.ended()

    assert [one.id for one in current] == [task_id]
    assert (report["lost"], report["done"]) == (1, 0)
    assert tasks.get(bench.tasks, task_id) == current[0]
