"""A worker that does not end: what goes wrong once is mended while it lives, and nothing runs twice in it."""

from __future__ import annotations

import threading
from datetime import timedelta
from time import sleep
from typing import Any

import pytest

from tests.builders import MINUTE, add, claim, document, stored, whole
from tests.claimers import a_claimer, holds
from tests.faults import failing
from tests.unit.make import eventually
from tests.use_cases.at_work import AtWork, Time
from tests.use_cases.conftest import Bench
from tidemill import UnavailableError
from tidemill.control import change_queue
from tidemill.executor import starting
from tidemill.executor.pace import Pace
from tidemill.policies import QueueOptions
from tidemill.store import Tasks, claims, lookups, settles

SECOND = timedelta(seconds=1)


class Waiting:
    """A function that waits until it is let go; ``begun`` counts its calls."""

    def __init__(self, bench: Bench) -> None:
        self.go = threading.Event()
        self.begun: list[Any] = []
        bench.task("wait", timeout=600)(self._call)

    def _call(self, payload: dict[str, Any], _ctx: Any) -> None:
        self.begun.append(payload.get("n"))
        self.go.wait(60)

    def begins(self, count: int) -> bool:
        return eventually(lambda: len(self.begun) >= count, within=20)


@pytest.fixture
def waiting(bench: Bench) -> Waiting:
    return Waiting(bench)


@pytest.fixture
def foresight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every executor holds four tasks more than it has slots, as where tasks are quick."""
    monkeypatch.setattr(Pace, "ahead", lambda *_, **__: 4)
    monkeypatch.setattr(starting, "HOLD_SEC", 60.0)


@pytest.mark.usefixtures("foresight")
def test_asked_to_stop_it_gives_back_at_once_what_waits_for_a_slot(bench: Bench, waiting: Waiting) -> None:
    add(bench.tasks, [document(bench.clock.now(), name="wait", payload={"n": n}) for n in range(6)])

    with AtWork(bench, concurrency=2) as worker:
        assert waiting.begins(2)
        assert eventually(lambda: bench.db["tasks"].count_documents({"status": "processing"}) == 6)
        worker.stop.set()

        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "pending", "attempts": 0}) == 4)
        assert bench.db["tasks"].count_documents({"status": "processing"}) == 2
        waiting.go.set()
        report = worker.ended()

    assert (report["claimed"], report["done"], report["released"]) == (6, 2, 4)
    assert sorted(waiting.begun) == [0, 1]


@pytest.mark.usefixtures("foresight")
def test_what_was_taken_away_while_it_waited_for_a_slot_is_not_started(bench: Bench, waiting: Waiting) -> None:
    ids = add(bench.tasks, [document(bench.clock.now(), name="wait", payload={"n": n}) for n in range(3)])

    with AtWork(bench, concurrency=1) as worker:
        assert waiting.begins(1)
        assert eventually(lambda: bench.db["tasks"].count_documents({"status": "processing"}) == 3)
        lookups.cancel(bench.tasks, ids[1], now=bench.clock.now(), force=True)
        assert worker.until(lambda: len(worker.execution._held) == 2)
        waiting.go.set()
        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "done"}) == 2)
        worker.ended()

    assert waiting.begun == [0, 2]


def test_a_task_that_it_lost_while_its_function_still_runs_is_left_to_others(bench: Bench, waiting: Waiting) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="wait")])

    with AtWork(bench, concurrency=2) as worker:
        assert waiting.begins(1)
        bench.reclaim(dead_owner="A")
        assert stored(bench.tasks, task_id)["status"] == "pending"

        assert worker.until(lambda: worker.execution._report["released"] > 0)
        assert stored(bench.tasks, task_id)["attempts"] == 0
        [elsewhere] = whole(claim(bench.tasks, bench.clock.now(), owner="B").tasks)
        waiting.go.set()
        report = worker.ended()

    assert elsewhere.id == task_id
    assert lookups.get(bench.tasks, task_id) == elsewhere
    assert (len(waiting.begun), report["lost"], report["done"]) == (1, 1, 0)


@pytest.mark.parametrize("late", [False, True])
def test_what_was_stamped_and_never_seen_is_given_back_while_it_lives(bench: Bench, *, late: bool) -> None:
    now = bench.clock.now()
    lease = {"token": "unseen", "owner": "A", "expires_at": now + MINUTE}
    stamped = document(now, status="processing", attempts=1, due_at=now + 10 * MINUTE, lease=lease)

    with AtWork(bench) as worker:
        worker.execution._giving_back.look_for(["unseen"])
        if late:  # the stamp was on its way for longer than anybody waited for it
            assert worker.until(lambda: worker.execution._giving_back._looked_for == 1)
        add(bench.tasks, [stamped])
        assert worker.until(lambda: stored(bench.tasks, stamped["_id"])["status"] == "pending")
        assert worker.until(lambda: worker.execution._giving_back._unseen == [])
        worker.ended()

    assert stored(bench.tasks, stamped["_id"])["attempts"] == 0


@pytest.mark.usefixtures("foresight")
def test_what_could_not_be_given_back_is_given_back_with_its_permit_while_it_lives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    [task_id] = add(bench.tasks, [document(now, lane="retry", attempts=1)])
    answers, release, is_back = iter([UnavailableError("not now")]), settles.release, threading.Event()

    def away_once(*given: Any, **named: Any) -> int:
        for error in answers:
            raise error
        is_back.wait(20)
        return release(*given, **named)

    monkeypatch.setattr(settles, "release", away_once)
    with AtWork(bench) as worker:
        monkeypatch.setattr(worker.execution._starting, "_starts", lambda _task, **_: False)
        assert worker.until(lambda: worker.execution._report["errors"] == 1)
        assert holds(bench.db) == 1
        is_back.set()

        assert worker.until(lambda: stored(bench.tasks, task_id)["status"] == "pending")
        assert worker.until(lambda: holds(bench.db) == 0)
        report = worker.ended()

    assert (stored(bench.tasks, task_id)["attempts"], report["released"]) == (1, 1)


def test_it_tells_what_keeps_it_from_its_work_until_that_is_over(bench: Bench, mine: Tasks) -> None:
    with AtWork(bench, tasks=mine) as worker:
        with failing(mine, "aggregate", "find", times=1_000_000, errorCode=11601):
            assert worker.until(lambda: isinstance(worker.worker.trouble, UnavailableError))
            worker.lives(5)
            assert isinstance(worker.worker.trouble, UnavailableError)
        add(bench.tasks, [document(bench.clock.now())])

        assert worker.until(lambda: worker.worker.trouble is None)
        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "done"}) == 1)
        worker.ended()


def test_outcomes_that_cannot_be_written_to_the_end_are_counted_and_left_to_their_leases(
    bench: Bench, mine: Tasks, waiting: Waiting
) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="wait")])

    with AtWork(bench, tasks=mine) as worker:
        assert waiting.begins(1)
        with failing(mine, "update", times=1_000_000, errorCode=11601):
            waiting.go.set()
            report = worker.ended()

    assert (report["unknown"], report["done"]) == (1, 0)
    assert stored(bench.tasks, task_id)["status"] == "processing"


def test_of_functions_that_ran_too_long_nothing_is_kept_once_they_ended(bench: Bench) -> None:
    def run_on(_payload: dict[str, Any], _ctx: Any) -> None:
        while True:
            sleep(0.001)

    bench.task("run_on", timeout=0.1)(run_on)
    with AtWork(bench) as worker:
        slots = worker.execution._slots
        for count in (10, 1):
            add(bench.tasks, [document(bench.clock.now(), name="run_on", max_retries=0) for _ in range(count)])
            assert worker.until(lambda: not bench.db["tasks"].count_documents({"status": {"$ne": "failed"}}))
            assert eventually(lambda: slots.leftovers() == 0)
        worker.ended()

    assert len(slots._abandoned) == 1


def test_a_look_that_failed_slowly_is_soon_taken_again(
    bench: Bench, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(bench.clock)
    claimer = a_claimer(tasks, monotonic=time)

    def hang(_tasks: Tasks) -> list[Any]:
        time.pass_(10)
        raise UnavailableError("not in time")

    with monkeypatch.context() as away:
        away.setattr(claims, "queues", hang)
        for _ in range(20):
            assert claimer.claim(free=1, slots=1, now=bench.clock.now(), idle=True) == []
            time.pass_(1)
    add(tasks, [document(bench.clock.now())])
    time.pass_(1)

    assert len(claimer.claim(free=1, slots=1, now=bench.clock.now(), idle=True)) == 1
