"""A worker that does not end: what goes wrong once is mended while it lives, and nothing runs twice in it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from time import sleep
from typing import Any

import pytest
from pymongo import MongoClient, monitoring

from tests.builders import add, claim, document, stored, whole
from tests.claimers import a_claimer, holds
from tests.faults import Beforehand, failing, heard
from tests.features.conftest import Bench
from tests.features.worker.at_work import AtWork, Time
from tests.unit.make import eventually
from tidemill import UnavailableError
from tidemill.control.queues import change_queue
from tidemill.executor.lifetime import Timing
from tidemill.model import QueueOptions
from tidemill.runner.worker_thread import WorkerThread
from tidemill.store import tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
INTERRUPTED = 11601


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
def foresight(bench: Bench) -> None:
    """Every executor claims four tasks more than it has slots, as where tasks are quick, and keeps them."""
    bench.prefetch, bench.timing = 4, Timing(slot_wait_sec=3600.0)


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
        tasks.cancel(bench.tasks, ids[1], now=bench.clock.now(), force=True)
        lease_end = stored(bench.tasks, ids[0])["lease"]["expires_at"]
        assert worker.until(lambda: stored(bench.tasks, ids[0])["lease"]["expires_at"] > lease_end)
        waiting.go.set()
        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "done"}) == 2)
        worker.ended()

    assert waiting.begun == [0, 2]


@pytest.mark.usefixtures("foresight")
def test_a_claim_that_was_lost_takes_the_next_claim_of_that_task_from_nobody(bench: Bench, waiting: Waiting) -> None:
    """The worker has lost a task that waits for a slot, and has claimed it again before it knows that."""
    now = bench.clock.now()
    add(bench.tasks, [document(now, name="wait", priority=1) for _ in range(4)])

    with AtWork(bench, concurrency=4) as worker:
        assert waiting.begins(4)
        [task_id] = add(bench.tasks, [document(now, name="wait", payload={"n": "again"})])
        assert worker.until(lambda: worker.report["claimed"] == 5)
        lost = stored(bench.tasks, task_id)["lease"]
        bench.tasks.update_one({"_id": task_id}, {"$set": {"status": "pending"}, "$unset": {"lease": ""}})
        assert worker.until(lambda: worker.report["claimed"] == 6)
        current = stored(bench.tasks, task_id)["lease"]
        assert worker.until(lambda: stored(bench.tasks, task_id)["lease"]["expires_at"] > current["expires_at"])
        waiting.go.set()
        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "done"}) == 5)
        report = worker.ended()

    assert lost["token"] != current["token"]
    assert waiting.begun.count("again") == 1
    assert (report["claimed"], report["released"], report["lost"], report["done"]) == (6, 0, 0, 5)


def test_a_task_that_it_lost_while_its_function_still_runs_is_left_to_others(bench: Bench, waiting: Waiting) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="wait")])

    with AtWork(bench, concurrency=2) as worker:
        assert waiting.begins(1)
        bench.reclaim(dead_owner="A")
        assert stored(bench.tasks, task_id)["status"] == "pending"

        assert worker.until(lambda: worker.report["released"] > 0)
        worker.lives(5)
        assert (worker.report["claimed"], worker.report["released"]) == (2, 1), "and not again and again"
        assert stored(bench.tasks, task_id)["attempts"] == 0
        [elsewhere] = whole(claim(bench.tasks, bench.clock.now(), owner="B").tasks)
        waiting.go.set()
        report = worker.ended()

    assert elsewhere.id == task_id
    assert tasks.get(bench.tasks, task_id) == elsewhere
    assert (len(waiting.begun), report["lost"], report["done"]) == (1, 1, 0)


def test_a_task_that_was_released_and_that_nobody_took_is_claimed_again_after_the_cool_down(
    bench: Bench, waiting: Waiting
) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="wait")])

    with AtWork(bench, concurrency=2) as worker:
        assert waiting.begins(1)
        bench.reclaim(dead_owner="A")
        assert worker.until(lambda: worker.report["released"] > 0)
        waiting.go.set()
        assert worker.until(lambda: worker.report["lost"] == 1)
        worker.lives(30)
        assert stored(bench.tasks, task_id)["status"] == "pending", "other executors may take it"

        assert worker.until(lambda: stored(bench.tasks, task_id)["status"] == "done")
        worker.ended()

    assert len(waiting.begun) == 2


def test_what_waited_too_long_for_a_slot_is_offered_to_others_for_that_long(bench: Bench, waiting: Waiting) -> None:
    bench.prefetch, bench.timing = 1, Timing(slot_wait_sec=5.0)
    add(bench.tasks, [document(bench.clock.now(), name="wait", priority=1)])

    with AtWork(bench, concurrency=1) as worker:
        assert waiting.begins(1)
        [behind] = add(bench.tasks, [document(bench.clock.now())])
        assert worker.until(lambda: stored(bench.tasks, behind)["status"] == "processing")
        assert worker.until(lambda: stored(bench.tasks, behind)["status"] == "pending")
        worker.lives(3)
        assert (worker.report["claimed"], worker.report["released"]) == (2, 1)

        assert worker.until(lambda: stored(bench.tasks, behind)["status"] == "processing")
        waiting.go.set()
        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "done"}) == 2)
        worker.ended()


class Searches(monitoring.CommandListener):
    """Counts the searches for the first token that was stamped. Calls *do* with it at the first search.

    With *late* that is after the server has answered the search, else before the search is sent.
    """

    def __init__(self, do: Callable[[str], object], *, late: bool) -> None:
        self.count = 0
        self._do = do
        self._late = late
        self._token: str | None = None
        self._first_search: int | None = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        for update in event.command.get("updates", []) if event.command_name == "update" else []:
            lease = update["u"].get("$set", {}).get("lease")
            self._token = lease["token"] if lease and self._token is None else self._token
            if "attempts" in update["q"] and self._token in update["q"].get("lease.token", {}).get("$in", ()):
                self.count += 1
                if self.count == 1:
                    self._first_search = event.request_id
                    self._insert_if(due=not self._late)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if event.request_id == self._first_search:
            self._insert_if(due=self._late)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass

    def _insert_if(self, *, due: bool) -> None:
        if due and self._token is not None:
            self._do(self._token)


@pytest.mark.parametrize("late", [False, True])
def test_what_was_stamped_and_never_seen_is_given_back_while_it_lives(
    bench: Bench, mongod: Mongod, *, late: bool
) -> None:
    """With *late* the stamp was on its way for longer than the first search for it."""
    now = bench.clock.now()
    [other] = add(bench.tasks, [document(now)])
    stamped = document(now, status="processing", attempts=1, due_at=now + HOUR)

    def stamp(token: str) -> None:
        add(bench.tasks, [stamped | {"lease": {"token": token, "owner": "A", "expires_at": now + HOUR}}])

    searches = Searches(stamp, late=late)
    with MongoClient[dict[str, Any]](
        mongod.uri, tz_aware=True, appname=bench.db.name, event_listeners=[searches]
    ) as client:
        mine = open_tasks(client[bench.db.name])
        with failing(mine, "update", times=1, closeConnection=True), AtWork(bench, tasks=mine) as worker:
            assert worker.until(lambda: stored(bench.tasks, other)["status"] == "done")
            assert worker.until(lambda: searches.count == 2)
            assert worker.until(lambda: stored(bench.tasks, stamped["_id"])["status"] == "pending")
            worker.lives(30)
            worker.ended()

    assert stored(bench.tasks, stamped["_id"])["attempts"] == 0
    assert searches.count == 2, "and not for ever"


def test_what_could_not_be_given_back_is_given_back_with_its_permit_while_it_lives(
    bench: Bench, mine: Tasks, waiting: Waiting
) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    bench.prefetch = 1
    add(bench.tasks, [document(now, name="wait", lane="retry", attempts=1, priority=9)])
    [task_id] = add(bench.tasks, [document(now, lane="retry", attempts=1)])

    with AtWork(bench, tasks=mine, concurrency=1) as worker:
        assert waiting.begins(1)
        assert eventually(lambda: stored(bench.tasks, task_id)["status"] == "processing")
        with failing(mine, "update", times=1000, errorCode=11601):  # it waits behind a slow function, and is offered
            assert worker.until(lambda: holds(bench.db) == 2 and worker.report["errors"] >= 2)
            assert (holds(bench.db), worker.report["released"]) == (2, 0)

        assert worker.until(lambda: holds(bench.db) == 1 and worker.report["released"] >= 1)
        waiting.go.set()
        assert worker.until(lambda: stored(bench.tasks, task_id)["status"] == "done")
        assert worker.until(lambda: holds(bench.db) == 0)
        worker.ended()

    assert stored(bench.tasks, task_id)["attempts"] == 2


def test_it_tells_what_keeps_it_from_its_work_until_that_is_over(bench: Bench, mine: Tasks) -> None:
    with AtWork(bench, tasks=mine) as worker:
        with failing(mine, "aggregate", "find", times=1_000_000, errorCode=11601):
            assert worker.until(lambda: isinstance(worker.worker.error, UnavailableError))
            worker.lives(5)
            assert isinstance(worker.worker.error, UnavailableError)
        add(bench.tasks, [document(bench.clock.now())])

        assert worker.until(lambda: worker.worker.error is None)
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


def test_a_task_whose_outcome_the_server_refuses_is_left_to_its_lease(bench: Bench, waiting: Waiting) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="wait", note="open")])

    with AtWork(bench) as worker:
        assert waiting.begins(1)
        rule = {"$or": [{"note": {"$ne": "open"}}, {"status": {"$in": ["pending", "processing"]}}]}
        bench.db.command("collMod", "tasks", validator=rule)
        waiting.go.set()
        assert worker.until(lambda: worker.report["write_rejected"] == 1)
        lease = stored(bench.tasks, task_id)["lease"]
        worker.lives(30)
        worker.ended()

    assert stored(bench.tasks, task_id)["lease"] == lease, "it is not extended any more"


def test_of_functions_that_ran_too_long_nothing_is_kept_once_they_ended(bench: Bench) -> None:
    def run_on(_payload: dict[str, Any], _ctx: Any) -> None:
        while True:
            sleep(0.001)

    bench.task("run_on", timeout=0.1)(run_on)

    def worker_threads() -> int:
        gc.collect()
        return sum(type(kept) is WorkerThread for kept in gc.get_objects())

    before = worker_threads()
    with AtWork(bench) as worker:
        for count in (10, 1):
            add(bench.tasks, [document(bench.clock.now(), name="run_on", max_retries=0) for _ in range(count)])
            assert worker.until(lambda: not bench.db["tasks"].count_documents({"status": {"$ne": "failed"}}))
        assert worker.until(lambda: worker_threads() - before <= 1), "the last one"
        worker.ended()


def test_a_look_that_failed_slowly_is_soon_taken_again(bench: Bench, tasks: Tasks) -> None:
    time, is_away = Time(bench.clock), threading.Event()

    def hang() -> None:
        if is_away.is_set():
            time.pass_(10)

    with heard(bench.db, Beforehand("aggregate", hang, always=True)) as db:
        claimer = a_claimer(open_tasks(db), monotonic=time)
        is_away.set()
        with failing(open_tasks(db), "aggregate", times=99, errorCode=INTERRUPTED):
            for _ in range(20):
                assert claimer.claim(free=1, slots=1, now=bench.clock.now(), idle=True).tasks == ()
                time.pass_(1)
        is_away.clear()
        add(tasks, [document(bench.clock.now())])
        time.pass_(1)

        assert len(claimer.claim(free=1, slots=1, now=bench.clock.now(), idle=True).tasks) == 1


def test_two_claims_of_a_task_that_wait_for_slots_do_not_run_at_the_same_time(bench: Bench, waiting: Waiting) -> None:
    """The first claim was lost while it waited, and this worker does not know yet."""
    bench.prefetch, bench.timing = 4, Timing(slot_wait_sec=3600.0)
    now, most = bench.clock.now(), list[int]()
    running: list[None] = []

    def count(_payload: dict[str, Any], _ctx: Any) -> None:
        running.append(None)
        most.append(len(running))
        sleep(0.3)
        running.pop()

    bench.task("count")(count)
    add(bench.tasks, [document(now, name="wait", payload={"n": n}, priority=9) for n in range(4)])
    [twice] = add(bench.tasks, [document(now, name="count")])

    with AtWork(bench, concurrency=4) as worker:
        assert waiting.begins(4)
        assert eventually(lambda: stored(bench.tasks, twice)["status"] == "processing")
        bench.db["tasks"].update_one(
            {"_id": twice}, {"$set": {"status": "pending", "attempts": 0}, "$unset": {"lease": ""}}
        )
        assert worker.until(lambda: stored(bench.tasks, twice)["status"] == "processing")
        waiting.go.set()
        assert worker.until(lambda: bench.db["tasks"].count_documents({"status": "done"}) == 5)
        worker.ended()

    assert max(most) == 1
