"""Leases of a worker: extended while their tasks are in hand, given up as lost where others took over."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import MINUTE, add, claim, document, stored, whole
from tests.claimers import holds
from tests.commands import Commands
from tests.conftest import ManualClock
from tests.faults import failing
from tests.unit.make import eventually
from tests.use_cases.at_work import AtWork, Time
from tests.use_cases.conftest import Bench
from tidemill.control import change_queue
from tidemill.executor import Report, Worker
from tidemill.executor.held import Held
from tidemill.executor.leases import Leases
from tidemill.executor.life import EXTEND_SEC, WORKER_LEASE, Invocation
from tidemill.executor.retry_caps import HOLD_GRACE, RetryCaps
from tidemill.model import Task
from tidemill.policies import QueueOptions
from tidemill.slots import Running
from tidemill.store import Tasks, lookups, open_tasks
from tidemill.store.claims import Claim
from tidemill.store.scans import Scan
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Holding:
    """A worker of owner ``A`` that holds tasks, without an executor around it."""

    def __init__(self, tasks: Tasks, clock: ManualClock) -> None:
        self.tasks = tasks
        self.time = Time(clock)
        self.held = Held()
        self.report = Report()
        life = Worker(threading.Event())
        self.caps = RetryCaps(
            tasks.database,
            owner="A",
            lease_until=lambda: life.lease_until(clock.now()),
            report=self.report,
            monotonic=self.time,
        )
        self.leases = Leases(
            tasks,
            life=life,
            held=self.held,
            caps=self.caps,
            clock=clock,
            report=self.report,
            monotonic=self.time,
        )

    def take(self, count: int, **fields: Any) -> list[Task]:
        """Have so many tasks enqueued, claimed and held."""
        now = self.time.clock.now()
        add(self.tasks, [document(now, **fields) for _ in range(count)])
        claimed = whole(claim(self.tasks, now, limit=count).tasks)
        self.held.add(claimed)
        return claimed

    def ends(self) -> set[datetime]:
        """When the leases end."""
        return {stored(self.tasks, one.id)["lease"]["expires_at"] for one in self.held.tasks}


@pytest.fixture
def holding(tasks: Tasks, clock: ManualClock) -> Holding:
    return Holding(tasks, clock)


def running(task: Task) -> Running:
    """*task*, as its slot shows it."""
    return Running(task=task, ctx=None, started_at=task.updated_at, started=0.0, cancel=threading.Event())  # type: ignore[arg-type]


def test_leases_are_left_alone_until_it_is_time(holding: Holding) -> None:
    holding.take(3)
    began = holding.time.clock.now()

    holding.time.pass_(EXTEND_SEC - 0.1)
    holding.leases.extend([])

    assert holding.ends() == {began + MINUTE}


def test_all_that_is_in_hand_is_extended_by_one_command(
    mongod: Mongod, holding: Holding, tasks: Tasks, clock: ManualClock
) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands], tz_aware=True) as client:
        own = Holding(open_tasks(client[tasks.database.name]), clock)
        own.held.add(holding.take(50))
        own.time.pass_(EXTEND_SEC)
        commands.names.clear()

        own.leases.extend([])
        own.leases.extend([])

        assert commands.names == ["update"]
    assert holding.ends() == {clock.now() + WORKER_LEASE}


def test_with_nothing_in_hand_nothing_is_asked(holding: Holding) -> None:
    with failing(holding.tasks, "update", times=1, closeConnection=True):
        holding.time.pass_(EXTEND_SEC)
        holding.leases.extend([])

    assert holding.report["errors"] == 0


def test_a_function_whose_lease_was_taken_away_is_asked_to_stop(holding: Holding) -> None:
    lost, kept, waiting = holding.take(3)
    lookups.cancel(holding.tasks, lost.id, now=holding.time.clock.now(), force=True)
    lookups.cancel(holding.tasks, waiting.id, now=holding.time.clock.now(), force=True)
    runs = [running(lost), running(kept)]

    holding.time.pass_(EXTEND_SEC)
    holding.leases.extend(runs)

    assert [one.cancel.is_set() for one in runs] == [True, False]
    assert holding.held.tasks == [kept], "what is lost must not be started any more"


def test_an_extension_that_fails_is_tried_again_soon(mine: Tasks, clock: ManualClock) -> None:
    own = Holding(mine, clock)
    own.take(2)
    own.time.pass_(EXTEND_SEC)
    with failing(mine, "update", times=100, errorCode=11601):
        own.leases.extend([])
    assert (own.report["errors"], len(own.held)) == (1, 2)

    own.time.pass_(EXTEND_SEC / 4)
    own.leases.extend([])

    assert own.ends() == {clock.now() + WORKER_LEASE}


def test_an_outage_of_forty_seconds_lets_nobody_take_over(bench: Bench, mine: Tasks) -> None:
    holding = Holding(mine, bench.clock)
    holding.take(2)
    holding.time.pass_(EXTEND_SEC)
    holding.leases.extend([])  # the last one before the outage, which begins right before the next

    holding.time.pass_(EXTEND_SEC)
    with failing(mine, "update", times=1000, errorCode=11601):
        for _ in range(39):
            holding.leases.extend([])
            holding.time.pass_(1)
    assert holding.report["errors"] > 1

    assert bench.reclaim()["reclaimed"] == 0
    holding.time.pass_(1)
    holding.leases.extend([])
    assert holding.ends() == {bench.clock.now() + WORKER_LEASE}


def test_permits_for_retries_are_extended_with_the_leases(bench: Bench, holding: Holding) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    [task] = holding.take(1)
    holding.caps.grant("default", 1, limit=4, now=now)
    retry = Claim(scan=Scan(queue="default", lanes=("retry",)), tasks=(task,), retries=(task.id,))
    holding.caps.took("default", retry, granted=1, limit=4, now=now)

    for _ in range(5):
        holding.time.pass_(EXTEND_SEC)
        holding.leases.extend([])

    [hold] = (bench.db["control"].find_one({"_id": "retries:default"}) or {})["holds"]
    assert (hold["n"], hold["until"]) == (1, bench.clock.now() + WORKER_LEASE + HOLD_GRACE)
    assert holds(bench.db) == 1


def test_an_invocation_extends_nothing(holding: Holding) -> None:
    invocation = Invocation(MINUTE, reserve=SECOND, monotonic=holding.time)
    began = holding.time.clock.now()
    leases = Leases(
        holding.tasks,
        life=invocation,
        held=holding.held,
        caps=holding.caps,
        clock=holding.time.clock,
        report=holding.report,
        monotonic=holding.time,
    )
    holding.take(1)

    holding.time.pass_(10_000)
    leases.extend([])

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
    assert lookups.get(bench.tasks, task_id) == current[0]
