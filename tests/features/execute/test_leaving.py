"""An executor leaves no due work behind of which nobody is told, whatever failed on its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient, monitoring
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect

from tests.builders import add, document
from tests.commands import Commands
from tests.faults import failing
from tests.features.conftest import BRISK, Bench
from tests.features.execute.fleet import Fleet
from tests.unit.make import eventually
from tidemill import Retry
from tidemill.control.queues import change_queue
from tidemill.executor.invocation import needs_successor
from tidemill.executor.lifetime import TIMING
from tidemill.model import QueueOptions
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
INTERRUPTED = 11601
LINGERS = pytest.mark.parametrize("linger", [0, 10])


def states(bench: Bench) -> dict[str, int]:
    found = bench.tasks.aggregate([{"$group": {"_id": "$status", "n": {"$sum": 1}}}])
    return {one["_id"]: one["n"] for one in found}


class AfterStamp(monitoring.CommandListener):
    """Calls *do*, once it is armed, when the next stamp of a client has ended, well or not."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.is_armed = False
        self._do = do
        self._stamp: int | None = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        changes = [one["u"] for one in event.command.get("updates", [])] if event.command_name == "update" else []
        if self.is_armed and any("lease" in one.get("$set", {}) for one in changes if isinstance(one, dict)):
            self._stamp = event.request_id

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self._ended(event.request_id)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        self._ended(event.request_id)

    def _ended(self, request: int) -> None:
        if self.is_armed and request == self._stamp:
            self.is_armed = False
            self._do()


class Searches(Commands):
    """``ended`` tells that a search for unconfirmed claims has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._search: int | None = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        super().started(event)
        if any("lease.owner" in update["q"] for update in event.command.get("updates", [])):
            self._search = event.request_id

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if event.request_id == self._search:
            self.ended.set()


@contextmanager
def client_of(bench: Bench, mongod: Mongod, listener: monitoring.CommandListener) -> Iterator[Tasks]:
    with MongoClient[dict[str, Any]](mongod.uri, appname=bench.db.name, event_listeners=[listener]) as client:
        yield open_tasks(client[bench.db.name])


def fail_next(bench: Bench, *commands: str, times: int = 1) -> None:
    """Let the next *commands* of the client that goes by the name of the database fail."""
    data = {"failCommands": list(commands), "appName": bench.db.name, "errorCode": INTERRUPTED}
    bench.db.client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)


@pytest.fixture(autouse=True)
def nothing_fails_afterwards(bench: Bench) -> Iterator[None]:
    yield
    bench.db.client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may have two threads for functions."""
    start, slots = threading.Thread.start, []

    def refused(thread: threading.Thread) -> None:
        if thread.name == "tidemill-slot":
            slots.append(thread)
            if len(slots) > 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)


# What it gives back


def test_others_are_called_to_what_waited_behind_slow_functions(bench: Bench, now: datetime) -> None:
    bench.prefetch = 2
    let_go, fleet = threading.Event(), Fleet(bench=bench, max_executors=5)
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1), document(now, payload={"n": "behind"})])

    with ThreadPoolExecutor() as pool:
        held = pool.submit(fleet.come, source="wake", concurrency=1)
        was_called = eventually(lambda: fleet.launched > 0, within=20)
        let_go.set()
        held.result()

    assert was_called


@LINGERS
def test_what_waited_until_the_time_was_up_is_told(bench: Bench, now: datetime, linger: int) -> None:
    bench.prefetch = 1
    longest = 6 * SECOND
    bench.settings = replace(
        BRISK, linger=linger * SECOND, task_timeout=longest, max_task_timeout=longest, margin=SECOND
    )
    bench.task("slow")(lambda _payload, _ctx: time.sleep(2.8))
    add(bench.tasks, [document(now, name="slow", priority=1), document(now, payload={"n": "behind"})])

    report = bench.execute(remaining=9.5 * SECOND, concurrency=1)

    assert states(bench) == {"done": 1, "pending": 1}
    assert needs_successor(report, has_waiter=False)


@pytest.mark.usefixtures("few_threads")
def test_what_had_no_thread_is_told(bench: Bench, now: datetime) -> None:
    bench.task("short")(lambda _payload, _ctx: time.sleep(0.1))
    add(bench.tasks, [document(now, name="short") for _ in range(3)])

    report = bench.execute(concurrency=4)

    assert (report.spent, states(bench)) == (True, {"done": 2, "pending": 1})
    assert needs_successor(report, has_waiter=False)


@pytest.mark.usefixtures("few_threads")
def test_others_are_called_while_the_functions_of_a_process_without_threads_run(bench: Bench, now: datetime) -> None:
    let_go, fleet = threading.Event(), Fleet(bench=bench, max_executors=5)
    bench.task("long")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="long") for _ in range(12)])

    with ThreadPoolExecutor() as pool:
        held = pool.submit(fleet.come, source="wake", concurrency=4)
        was_called = eventually(lambda: fleet.launched > 0, within=20)
        let_go.set()
        held.result()

    assert was_called


# What it stamped unseen


@LINGERS
def test_what_was_stamped_unseen_is_run_by_the_one_that_gave_it_back(
    bench: Bench, mongod: Mongod, now: datetime, linger: int
) -> None:
    bench.settings = replace(BRISK, linger=linger * SECOND)
    let_go, after = threading.Event(), AfterStamp(lambda: fail_next(bench, "find"))
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1)])

    with client_of(bench, mongod, after) as tasks, ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, tasks=tasks, queues=["default"], concurrency=4)
        assert eventually(lambda: states(bench) == {"processing": 1})
        after.is_armed = True
        add(bench.tasks, [document(now, payload={"n": n}) for n in range(2)])
        is_run_beside = eventually(lambda: states(bench).get("done") == 2, within=20)  # not only once it is dry
        let_go.set()
        report = held.result()

    assert is_run_beside
    assert states(bench) == {"done": 3}
    assert report["released"] == 2


@LINGERS
def test_a_stamp_that_takes_effect_after_the_look_for_it_is_found(
    bench: Bench, mongod: Mongod, now: datetime, monkeypatch: pytest.MonkeyPatch, linger: int
) -> None:
    bench.settings = replace(BRISK, linger=linger * SECOND)
    let_go, update_many, armed, is_late = threading.Event(), Collection.update_many, threading.Event(), []
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1)])
    searches = Searches()

    def late(tasks: Tasks, where: Any, change: Any, **options: Any) -> Any:
        if armed.is_set() and isinstance(change, dict) and "lease" in change.get("$set", {}):
            armed.clear()
            is_late.append(lambda: update_many(tasks, where, change, **options))
            raise AutoReconnect("connection reset")
        return update_many(tasks, where, change, **options)

    monkeypatch.setattr(Collection, "update_many", late)
    with client_of(bench, mongod, searches) as mine, ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, tasks=mine, concurrency=4)
        assert eventually(lambda: states(bench) == {"processing": 1})
        armed.set()
        add(bench.tasks, [document(now, payload={"n": n}) for n in range(2)])
        assert searches.ended.wait(20)
        is_late[0]()
        before = len(searches.names)
        assert eventually(lambda: "aggregate" in searches.names[before:], within=20), "no queue has pending tasks"
        let_go.set()
        held.result()

    assert states(bench) == {"done": 3}


def test_a_search_for_a_stamp_gives_back_no_task_that_runs(
    bench: Bench, mongod: Mongod, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp takes effect, its answer is lost, and the read-back finds the task."""
    let_go, update_many, searches = threading.Event(), Collection.update_many, Searches()
    lost: list[Any] = []
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="slow")])

    def cut(tasks: Tasks, where: Any, change: Any, **options: Any) -> Any:
        result = update_many(tasks, where, change, **options)
        if not lost and "lease" in change.get("$set", {}):
            lost.append(result)
            raise AutoReconnect("connection reset")
        return result

    monkeypatch.setattr(Collection, "update_many", cut)
    with client_of(bench, mongod, searches) as mine, ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, tasks=mine, concurrency=1)
        assert searches.ended.wait(20)
        is_running = states(bench)
        let_go.set()
        report = held.result()

    assert is_running == {"processing": 1}
    assert (report["claimed"], report["released"], report["done"]) == (1, 0, 1)


# What it could not read


@LINGERS
def test_a_few_looks_that_fail_end_no_execution(bench: Bench, mine: Tasks, now: datetime, linger: int) -> None:
    bench.settings = replace(BRISK, linger=linger * SECOND)
    bench.task("first")(lambda _payload, _ctx: fail_next(bench, "find", "aggregate", times=6))
    add(bench.tasks, [document(now, name="first", priority=1)])
    add(bench.tasks, [document(now, payload={"n": n}) for n in range(20)])

    report = bench.execute(tasks=mine, batch_size=1, concurrency=1)

    assert states(bench) == {"done": 21}
    assert report["errors"] == 6


@LINGERS
def test_permits_that_cannot_be_had_twice_end_no_execution(
    bench: Bench, mine: Tasks, now: datetime, linger: int
) -> None:
    bench.settings = replace(BRISK, linger=linger * SECOND)
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(10)])

    with failing(mine, "findAndModify", times=2, errorCode=INTERRUPTED):
        bench.execute(tasks=mine)

    assert states(bench) == {"done": 10}


def test_a_last_look_that_failed_leaves_a_backlog(bench: Bench, mine: Tasks, now: datetime) -> None:
    bench.prefetch = 0
    bench.settings = replace(BRISK, task_timeout=SECOND, max_task_timeout=SECOND, margin=SECOND / 2)

    @bench.task("slow")
    def slow(payload: dict[str, Any], _ctx: Any) -> None:
        time.sleep(0.2)
        if payload["n"] == 7:
            fail_next(bench, "find", "aggregate")
            time.sleep(0.5)

    add(bench.tasks, [document(now, name="slow", payload={"n": n}) for n in range(60)])

    report = bench.execute(tasks=mine, remaining=2.1 * SECOND, concurrency=4)

    assert states(bench)["pending"] > 0
    assert needs_successor(report, has_waiter=False)


def test_one_that_was_woken_and_interrupted_looks_as_long_as_others_rely_on(
    bench: Bench, mongod: Mongod, now: datetime
) -> None:
    bench.settings = replace(BRISK, linger=10 * SECOND)
    [one] = add(bench.tasks, [document(now)])
    after = AfterStamp(lambda: bench.tasks.update_one({"_id": one}, {"$set": {"status": "done"}}))
    after.is_armed = True

    with client_of(bench, mongod, after) as tasks, failing(tasks, "update", errorCode=INTERRUPTED):
        began = time.monotonic()
        report = bench.execute(tasks=tasks, source="wake")

    assert report["claimed"] == 0
    assert time.monotonic() - began >= TIMING.linger_after_launch_sec


# What it waits for, and what it has the permit of


class SetBack:
    """A clock that is set back by 8 ms after a while."""

    def __init__(self, at: datetime, *, after: float) -> None:
        self._started, self._at, self._after = time.monotonic(), at, after

    def now(self) -> datetime:
        passed = time.monotonic() - self._started
        at = self._at + timedelta(seconds=passed - (0.008 if passed > self._after else 0))
        return at.replace(microsecond=at.microsecond // 1000 * 1000)


def test_a_clock_that_is_set_back_ends_no_wait(bench: Bench, now: datetime) -> None:
    bench.settings = replace(BRISK, linger=10 * SECOND)
    due = now + 2.5 * SECOND
    add(bench.tasks, [document(now), document(now, due_at=due, next_retry_at=due)])

    bench.execute(clock=SetBack(now, after=2.4))

    assert states(bench) == {"done": 2}


@LINGERS
@pytest.mark.parametrize("times", [1, 2])
def test_no_permit_is_left_behind_where_its_answer_was_lost(
    bench: Bench, mine: Tasks, now: datetime, linger: int, times: int
) -> None:
    bench.settings = replace(BRISK, linger=linger * SECOND)
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1)])
    unconfirmed = {"code": 64, "errmsg": "waiting for replication timed out"}
    with failing(mine, "findAndModify", times=times, writeConcernError=unconfirmed):
        bench.execute(tasks=mine)
    add(bench.tasks, [document(now, lane="retry", attempts=1)])

    bench.execute(owner="B")

    assert states(bench) == {"done": 2}


@LINGERS
def test_a_permit_that_could_not_be_given_back_is_given_back_at_the_end(
    bench: Bench, mine: Tasks, now: datetime, linger: int
) -> None:
    bench.settings = replace(BRISK, linger=linger * SECOND)
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    bench.task("cut")(lambda _payload, _ctx: fail_next(bench, "findAndModify"))
    add(bench.tasks, [document(now, name="cut", lane="retry", attempts=1)])
    bench.execute(tasks=mine)
    add(bench.tasks, [document(now, lane="retry", attempts=1)])

    bench.execute(owner="B")

    assert states(bench) == {"done": 2}


# What becomes pending in the step of the last claim


def test_a_last_task_that_is_due_again_at_once_is_run_though_the_claim_beside_it_found_nothing(
    bench: Bench, mongod: Mongod, now: datetime
) -> None:
    """Two slots: while the task runs, a claim for the other slot finds no queue with pending tasks. Then it fails."""
    assert not bench.settings.linger
    commands = Commands()

    def fail_once(_payload: dict[str, Any], ctx: Any) -> None:
        before = len(commands.names)
        if ctx.attempt == 1:
            assert eventually(lambda: "aggregate" in commands.names[before:], within=20)
            raise Retry("again", after=timedelta(0))

    bench.task("fail_once")(fail_once)
    add(bench.tasks, [document(now, name="fail_once")])
    with client_of(bench, mongod, commands) as mine:
        report = bench.execute(tasks=mine, concurrency=2)

    assert (report["claimed"], report["retried"], report["done"]) == (2, 1, 1)
    assert not report.backlog


def test_an_outcome_that_cannot_be_written_four_times_is_written_before_it_leaves(
    bench: Bench, mine: Tasks, now: datetime
) -> None:
    bench.task("last")(lambda _payload, _ctx: fail_next(bench, "update", times=4))
    add(bench.tasks, [document(now, name="last")])

    report = bench.execute(tasks=mine)

    assert (report["done"], report["unknown"], states(bench)) == (1, 0, {"done": 1})


def test_it_stops_trying_to_write_an_outcome_before_its_invocation_ends(
    bench: Bench, mine: Tasks, now: datetime
) -> None:
    bench.settings = replace(BRISK, task_timeout=SECOND, max_task_timeout=SECOND, margin=SECOND)
    bench.task("last")(lambda _payload, _ctx: fail_next(bench, "update", times=1_000_000))
    add(bench.tasks, [document(now, name="last")])
    began = time.monotonic()

    report = bench.execute(tasks=mine, remaining=5 * SECOND)

    assert time.monotonic() - began < 5
    assert (report["unknown"], states(bench)) == (1, {"processing": 1})
