"""Permits of one execution that claims on one thread and settles on another, whatever arrives first."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import AutoReconnect
from pymongo.monitoring import CommandListener

from tests.claimers import the_caps
from tests.commands import CapturedUpdates
from tests.faults import failing
from tests.fixtures import T0
from tests.unit.make import Moved, a_claimed_task
from tidemill.executor.context import Report
from tidemill.executor.lifetime import Worker
from tidemill.executor.retry_permits import PERMIT_GRACE, Reservation, RetryPermits
from tidemill.model import Task
from tidemill.store.claims import Claim
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import Scan
from tidemill.testing import Mongod

HOUR = timedelta(hours=1)
UNKNOWN: dict[str, Any] = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}
"""The update is applied, and its answer does not say so."""


class Gate(CommandListener):
    """Holds back one update of one thread, before it is sent or after it is answered."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._thread: int | None = None
        self._when = ""

    def hold_back(self, when: str) -> None:
        """Hold back the next update of this thread."""
        self._thread, self._when = threading.get_ident(), when

    def started(self, event: Any) -> None:
        self._pass(event, "sent")

    def succeeded(self, event: Any) -> None:
        self._pass(event, "answered")

    def failed(self, event: Any) -> None:
        pass

    def _pass(self, event: Any, when: str) -> None:
        if event.command_name == "findAndModify" and threading.get_ident() == self._thread and when == self._when:
            self._thread = None
            self.reached.set()
            assert self.opened.wait(30)


class Jitter(CommandListener):
    """Delays updates and their answers, so that those of several threads overtake each other."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._never = threading.Event()

    def started(self, event: Any) -> None:
        self._delay(event)

    def succeeded(self, event: Any) -> None:
        self._delay(event)

    def failed(self, event: Any) -> None:
        pass

    def _delay(self, event: Any) -> None:
        if event.command_name == "findAndModify":
            self._never.wait(self._rng.random() * 0.005)


@contextmanager
def connected(mongod: Mongod, db: Database[Any], listener: CommandListener) -> Iterator[Database[Any]]:
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, appname=db.name, event_listeners=[listener]) as client:
        yield client[db.name]


def the_permits(
    db: Database[Any],
    *,
    owner: str = "A",
    report: Report | None = None,
    lifetime: Worker | None = None,
    monotonic: Callable[[], float] | None = None,
) -> RetryPermits:
    return the_caps(
        open_tasks(db),
        owner=owner,
        lifetime=lifetime or Worker(threading.Event(), lease=HOUR),
        report=report,
        monotonic=monotonic or Moved(),
    )


def lease(permits: RetryPermits, reservation: Reservation, count: int, *, now: datetime) -> list[Task]:
    """Have the claim of *reservation* lease so many retries."""
    tasks = [a_claimed_task(lane="retry") for _ in range(count)]
    claim = Claim(scan=Scan(queue="eu", lanes=("retry",)), tasks=tuple(tasks), retries=tuple(task.id for task in tasks))
    permits.record_claim(reservation, claim, now=now)
    return tasks


def take(permits: RetryPermits, count: int, *, limit: int, now: datetime) -> list[Task]:
    """Claim and lease so many retries, as far as they are granted."""
    reservation = permits.reserve("eu", limit=limit, now=now)
    return lease(permits, reservation, reservation.grant(count), now=now)


def entries(db: Database[Any]) -> list[tuple[str, int]]:
    """Owner and number of each stored entry."""
    document = db["control"].find_one({"_id": "retries:eu"}) or {"holds": []}
    return [(one["owner"], one["n"]) for one in document["holds"]]


@pytest.mark.parametrize("when", ["sent", "answered"])
@pytest.mark.parametrize(("limit", "granted"), [(20, 5), (10, 3), (11, 4)])
def test_a_settle_that_overtakes_a_claim_leaves_what_runs_in_the_document(
    mongod: Mongod, db: Database[Any], *, when: str, limit: int, granted: int
) -> None:
    now = T0
    gate = Gate()
    with connected(mongod, db, gate) as mine, ThreadPoolExecutor(1) as pool:
        permits = the_permits(mine)
        held = take(permits, 10, limit=limit, now=now)
        claim = permits.reserve("eu", limit=limit, now=now)

        def grant() -> int:
            gate.hold_back(when)
            return claim.grant(5)

        granting = pool.submit(grant)
        assert gate.reached.wait(10)
        assert permits.release_ended(held[:3], now=now)  # the claim computed 15, this one computes 7
        assert dict(entries(db))["A"] >= 7
        gate.opened.set()

        assert granting.result(10) == granted
        assert entries(db) == [("A", 7 + granted)]
        lease(permits, claim, granted, now=now)
        permits.renew(now=now)
        assert entries(db) == [("A", 7 + granted)]
        assert len(take(the_permits(db, owner="B"), 99, limit=limit, now=now)) == limit - 7 - granted


def test_a_settle_of_all_that_overtakes_a_claim_keeps_what_that_will_get(
    mongod: Mongod, db: Database[Any], now: datetime
) -> None:
    gate = Gate()
    with connected(mongod, db, gate) as mine, ThreadPoolExecutor(1) as pool:
        permits = the_permits(mine)
        held = take(permits, 2, limit=2, now=now)

        def grant() -> int:
            gate.hold_back("sent")
            return permits.reserve("eu", limit=2, now=now).grant(5)

        granting = pool.submit(grant)
        assert gate.reached.wait(10)
        permits.release_ended(held, now=now)
        gate.opened.set()

        assert granting.result(10) == 2
        assert entries(db) == [("A", 2)]


def test_what_was_granted_is_held_before_its_claim_is_recorded(db: Database[Any], now: datetime) -> None:
    permits = the_permits(db)
    held = take(permits, 2, limit=9, now=now)
    reservation = permits.reserve("eu", limit=9, now=now)
    assert reservation.grant(3) == 3

    permits.release_ended(held[:1], now=now)  # by another thread, while the claim stamps its tasks

    assert entries(db) == [("A", 4)]
    lease(permits, reservation, 2, now=now)
    assert entries(db) == [("A", 3)]


def test_the_answer_of_an_overtaken_claim_is_no_reason_to_ask_once_more(
    mongod: Mongod, db: Database[Any], now: datetime
) -> None:
    gate, report = Gate(), Report()
    with connected(mongod, db, gate) as mine, ThreadPoolExecutor(1) as pool:
        permits = the_permits(mine, report=report)
        held = take(permits, 10, limit=20, now=now)
        claim = permits.reserve("eu", limit=20, now=now)

        def grant() -> int:
            gate.hold_back("answered")
            return claim.grant(5)

        granting = pool.submit(grant)
        assert gate.reached.wait(10)
        permits.release_ended(held[:3], now=now)
        gate.opened.set()
        lease(permits, claim, granting.result(10), now=now)

        with failing(open_tasks(mine), "findAndModify", errorCode=50):
            permits.close(now=now)

    assert report["errors"] == 0


def test_number_and_seq_are_drawn_by_one_thread_at_a_time(db: Database[Any], now: datetime) -> None:
    inside, overlaps = threading.Lock(), threading.Event()
    is_drawing = threading.Event()

    def monotonic() -> float:
        if not inside.acquire(blocking=False):
            overlaps.set()
            return 1000.0
        is_drawing.set()
        overlaps.wait(0.2)  # for the other thread, which must not come
        inside.release()
        return 1000.0

    permits = the_permits(db, monotonic=monotonic)
    held = take(permits, 2, limit=9, now=now)
    is_drawing.clear()
    with ThreadPoolExecutor(1) as pool:
        granting = pool.submit(permits.reserve("eu", limit=9, now=now).grant, 3)
        assert is_drawing.wait(10)
        permits.release_ended(held, now=now)
        assert granting.result(10) == 3

    assert not overlaps.is_set()
    assert entries(db) == [("A", 3)]


def test_what_a_settle_kept_for_a_claim_that_failed_is_given_back_at_the_end(
    mongod: Mongod, db: Database[Any], now: datetime
) -> None:
    gate = Gate()
    with connected(mongod, db, gate) as mine, ThreadPoolExecutor(1) as pool:
        permits = the_permits(mine)
        held = take(permits, 10, limit=20, now=now)

        def grant() -> int:
            gate.hold_back("sent")
            return permits.reserve("eu", limit=20, now=now).grant(5)

        granting = pool.submit(grant)
        assert gate.reached.wait(10)
        permits.release_ended(held, now=now)
        assert entries(db) == [("A", 5)]
        with failing(open_tasks(mine), "findAndModify", errorCode=50):
            gate.opened.set()
            assert granting.result(10) == 0

        permits.close(now=now)

        assert entries(db) == [("A", 0)]


def test_claims_and_settles_of_three_executions_never_run_more_than_the_limit(
    mongod: Mongod, db: Database[Any], now: datetime
) -> None:
    limit, rounds = 5, 30
    lock = threading.Lock()
    running, most, all_granted = [0], [0], [0]

    def execute(number: int) -> None:
        with connected(mongod, db, Jitter(number)) as mine:
            permits = the_permits(mine, owner=f"executor-{number}")
            in_hand: list[Task] = []
            is_over = threading.Event()

            def settle() -> None:
                rng = random.Random(number)
                while in_hand or not is_over.is_set():
                    with lock:
                        ended = [in_hand.pop() for _ in range(min(len(in_hand), rng.randint(1, 3)))]
                        running[0] -= len(ended)
                    permits.release_ended(ended, now=now)

            settling = threading.Thread(target=settle)
            settling.start()
            rng = random.Random(100 + number)
            for _ in range(rounds):
                reservation = permits.reserve("eu", limit=limit, now=now)
                granted = reservation.grant(rng.randint(1, 4))
                leased = rng.randint(0, granted)  # others were faster
                with lock:
                    running[0] += leased
                    all_granted[0] += leased
                    most[0] = max(most[0], running[0])
                tasks = lease(permits, reservation, leased, now=now)
                with lock:
                    in_hand.extend(tasks)
            is_over.set()
            settling.join(60)
            permits.close(now=now)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(execute, number) for number in range(3)]:
            done.result(120)

    assert all_granted[0] > limit
    assert most[0] <= limit
    assert [n for _, n in entries(db) if n] == []


def test_an_answered_execution_leaves_no_entry_behind(db: Database[Any], now: datetime) -> None:
    permits, other = the_permits(db), the_permits(db, owner="B")
    held = take(permits, 2, limit=2, now=now)
    assert [take(other, 1, limit=2, now=now) for _ in range(3)] == [[], [], []]
    assert entries(db) == [("A", 2)]

    permits.release_ended(held, now=now)
    permits.close(now=now)

    assert entries(db) == []


def test_a_claim_without_an_answer_is_not_applied_after_its_execution_gave_all_back(
    mongod: Mongod, db: Database[Any], now: datetime
) -> None:
    captured = CapturedUpdates()
    report = Report()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, appname=db.name, event_listeners=[captured]) as client:
        mine: Tasks = open_tasks(client[db.name])
        permits = the_permits(mine.database, report=report)
        reservation = permits.reserve("eu", limit=3, now=now)
        with failing(mine, "findAndModify", errorCode=50):
            assert reservation.grant(3) == 0
        assert (reservation.failed, report["errors"]) == (True, 1)
        [late] = captured.updates
        permits.record_claim(reservation, Claim(scan=Scan(queue="eu", lanes=("retry",))), now=now)

        permits.close(now=now)
        db.command(late)

        assert entries(db) == [("A", 0)]
        assert len(take(the_permits(db, owner="B"), 9, limit=3, now=now)) == 3


def test_a_claim_that_took_effect_without_an_answer_gives_all_back_at_the_end(
    mine: Tasks, db: Database[Any], now: datetime
) -> None:
    permits = the_permits(mine.database)
    reservation = permits.reserve("eu", limit=3, now=now)
    with failing(mine, "findAndModify", **UNKNOWN):
        assert reservation.grant(3) == 0
    assert entries(db) == [("A", 3)]

    permits.close(now=now)

    assert entries(db) == [("A", 0)]


def test_a_claim_without_an_answer_asks_nothing_more(mine: Tasks, now: datetime) -> None:
    report = Report()
    permits = the_permits(mine.database, report=report)
    reservation = permits.reserve("eu", limit=3, now=now)
    reservation.grant(2)
    lost = Claim(scan=Scan(queue="eu", lanes=("retry",)), error=AutoReconnect("lost"))

    with failing(mine, "findAndModify", errorCode=50):
        permits.record_claim(reservation, lost, now=now)

    assert report["errors"] == 0


def test_an_end_that_nothing_is_unknown_of_asks_nothing(mine: Tasks, now: datetime) -> None:
    report = Report()
    permits = the_permits(mine.database, report=report)
    held = take(permits, 2, limit=3, now=now)
    permits.release_ended(held, now=now)

    with failing(mine, "findAndModify", errorCode=50):
        permits.close(now=now)
        permits.renew(now=now)
        assert not permits.release_ended(held, now=now)

    assert report["errors"] == 0


def test_the_guard_against_a_late_claim_lasts_as_long_as_that_could(
    mine: Tasks, db: Database[Any], now: datetime
) -> None:
    ends = iter([now + HOUR, now + HOUR / 2, now + HOUR / 2, now + 2 * HOUR])

    class Changing(Worker):
        def lease_until(self, _now: datetime) -> datetime:
            return next(ends)

    permits = the_permits(mine.database, lifetime=Changing(threading.Event()))
    with failing(mine, "findAndModify", errorCode=50):
        assert permits.reserve("eu", limit=3, now=now).grant(3) == 0

    held = take(permits, 1, limit=3, now=now)
    untils = []
    for tasks, at in [([], now), (held, now + timedelta(minutes=59))]:
        permits.release_ended(tasks, now=at)
        [entry] = (db["control"].find_one({"_id": "retries:eu"}) or {})["holds"]
        untils.append((entry["n"], entry["until"] - now))

    assert untils == [(1, HOUR + PERMIT_GRACE), (0, HOUR + PERMIT_GRACE)]


def test_several_queues_are_released_by_one_number(db: Database[Any], now: datetime) -> None:
    permits = the_permits(db)
    tasks: list[Task] = []
    for queue in ("eu", "us"):
        reservation = permits.reserve(queue, limit=3, now=now)
        assert reservation.grant(2) == 2
        tasks += lease(permits, reservation, 2, now=now)

    permits.release_ended([tasks[0], tasks[2]], now=now)

    stored = {one["_id"]: one["holds"] for one in db["control"].find({"_id": {"$regex": "^retries"}})}
    assert {name: [hold["n"] for hold in holds] for name, holds in stored.items()} == {
        "retries:eu": [1],
        "retries:us": [1],
    }
    assert stored["retries:eu"][0]["seq"] == stored["retries:us"][0]["seq"] == 3


def test_a_claim_without_a_limit_needs_no_permit(db: Database[Any], now: datetime) -> None:
    permits = the_permits(db)
    reservation = permits.reserve("eu", limit=None, now=now)

    assert (reservation.grant(7), reservation.granted, reservation.failed) == (7, 7, False)
    lease(permits, reservation, 7, now=now)
    assert entries(db) == []
