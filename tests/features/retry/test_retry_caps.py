"""``max_in_flight_retries``: so many retries are leased at once, exactly, whatever the executors do."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document, whole
from tests.claimers import a_claimer, holds, leased_retries, the_caps
from tests.commands import Commands
from tests.features.conftest import Bench
from tests.fixtures import ManualClock
from tidemill import Retry, TaskContext
from tidemill.control.queues import change_queue
from tidemill.executor.retry_permits import PERMIT_GRACE
from tidemill.model import SELECTIONS, Failure, Malformed, QueueOptions, Retried, Selection, Succeeded, Task
from tidemill.store import settle
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.settle import Settlement
from tidemill.testing import Mongod

CLAIMERS = 8
LIMIT = 5
HOUR = timedelta(hours=1)


@pytest.fixture
def claimers_tasks(mongod: Mongod, db: Database[Any]) -> Iterator[list[Tasks]]:
    """The tasks, through a client of its own for each claimer."""
    clients = [MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) for _ in range(CLAIMERS)]
    yield [open_tasks(client[db.name]) for client in clients]
    for client in clients:
        client.close()


@pytest.mark.parametrize("selection", SELECTIONS)
def test_eight_claimers_at_once_lease_exactly_the_limit(
    claimers_tasks: list[Tasks], tasks: Tasks, now: datetime, selection: Selection
) -> None:
    add(tasks, [document(now, lane="retry", attempts=1, due_at=now - HOUR) for _ in range(200)])
    add(tasks, [document(now) for _ in range(200)])
    barrier = threading.Barrier(CLAIMERS)

    def claim_four_times(number: int) -> list[Task | Malformed]:
        mine = claimers_tasks[number]
        claimer = a_claimer(mine, owner=f"executor-{number}", selection=selection, max_in_flight_retries=LIMIT)
        barrier.wait(30)
        rounds = [claimer.claim(free=6, slots=6, now=now, thorough=True).tasks for _ in range(4)]
        return [one for held in rounds for one in held]

    with ThreadPoolExecutor(CLAIMERS) as pool:
        held = [one for part in pool.map(claim_four_times, range(CLAIMERS)) for one in part]

    retries = [one for one in held if isinstance(one, Task) and one.lane == "retry"]
    assert len(retries) == leased_retries(tasks) == LIMIT
    assert holds(tasks.database) == LIMIT
    after = a_claimer(tasks, owner="one more", selection=selection, max_in_flight_retries=LIMIT)
    fresh = after.claim(free=6, slots=6, now=now).tasks
    assert [one.lane for one in whole(fresh)] == ["fresh"] * 6  # not kept waiting behind what may not be taken


def test_eight_claimers_that_settle_never_hold_more_than_the_limit_and_finish_all(
    claimers_tasks: list[Tasks], tasks: Tasks, now: datetime
) -> None:
    total = 300
    add(tasks, [document(now, lane="retry", attempts=1, due_at=now - HOUR) for _ in range(total)])
    lock = threading.Lock()
    leased = [0]
    most = [0]
    left = [total]

    def work(number: int) -> None:
        mine = claimers_tasks[number]
        caps = the_caps(mine, owner=f"executor-{number}")
        claimer = a_claimer(mine, owner=f"executor-{number}", caps=caps, max_in_flight_retries=LIMIT)
        rng = random.Random(number)
        while left[0] > 0:
            held = claimer.claim(free=rng.randint(1, 4), slots=4, now=now, thorough=True).tasks
            with lock:
                leased[0] += len(held)
                most[0] = max(most[0], leased[0])
            in_database = leased_retries(mine)
            with lock:
                most[0] = max(most[0], in_database)
                leased[0] -= len(held)
            done = [Settlement(task=task, outcome=Succeeded(result=None)) for task in held]
            settled = settle.settle(mine, done, now=now).settled
            caps.release_ended([one.task for one in settled], now=now)
            with lock:
                left[0] -= len(settled)

    with ThreadPoolExecutor(CLAIMERS) as pool:
        for future in [pool.submit(work, number) for number in range(CLAIMERS)]:
            future.result(120)

    assert most[0] == LIMIT
    assert tasks.count_documents({"status": "done"}) == total
    assert holds(tasks.database) == 0


def test_an_execution_runs_no_more_retries_at_once_and_fresh_tasks_beside_them(bench: Bench) -> None:
    running: list[int] = [0]
    most: list[int] = [0]
    lock = threading.Lock()
    both = threading.Barrier(2)

    def counted(payload: dict[str, Any], _ctx: Any) -> None:
        if payload["n"] == "fresh":
            return
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        both.wait(30)
        with lock:
            running[0] -= 1

    bench.task("counted")(counted)
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=2, selection="retries_first"), now=now)
    add(
        bench.tasks, [document(now, name="counted", lane="retry", attempts=1, payload={"n": "retry"}) for _ in range(8)]
    )
    add(bench.tasks, [document(now, name="counted", payload={"n": "fresh"}) for _ in range(20)])

    report = bench.execute(concurrency=8)

    assert report["done"] == 28
    assert most[0] == 2
    assert holds(bench.db) == 0


def test_what_becomes_a_retry_is_held_only_once_it_is_claimed_again(bench: Bench) -> None:
    def flaky(_payload: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt < 3:
            raise Retry("again", after=timedelta(0))

    bench.task("flaky")(flaky)
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    add(bench.tasks, [document(now, name="flaky") for _ in range(6)])

    report = bench.execute()

    assert (report["done"], report["retried"]) == (6, 12)
    assert holds(bench.db) == 0


def test_a_retry_beyond_the_limit_is_left_to_a_later_execution(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1)])
    other = a_claimer(bench.tasks, owner="other", max_in_flight_retries=1)
    add(bench.tasks, [document(now - HOUR, lane="retry", attempts=1)])
    [held] = other.claim(free=1, slots=1, now=now).tasks

    full = bench.execute()
    settle.settle(bench.tasks, [Settlement(task=held, outcome=Succeeded(result=None))], now=now)
    bench.reclaim(dead_owner="other")
    free = bench.execute()

    assert (full["claimed"], full.backlog, free["done"]) == (0, False, 1), "a successor would get no permit either"


def test_the_permits_of_a_dead_executor_are_free_once_its_death_is_known(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=2), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(2)])
    dead = a_claimer(bench.tasks, owner="dead", max_in_flight_retries=2)
    assert len(dead.claim(free=2, slots=2, now=now).tasks) == 2
    assert holds(bench.db) == 2

    bench.reclaim(dead_owner="dead")

    assert holds(bench.db) == 0


def test_permits_end_with_the_lease_where_nobody_reports_the_death(bench: Bench, clock: ManualClock) -> None:
    now = clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=2), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(4)])
    a_claimer(bench.tasks, owner="dead", max_in_flight_retries=2).claim(free=2, slots=2, now=now)

    before = bench.execute()
    clock.move(timedelta(minutes=2) + PERMIT_GRACE)
    after = bench.execute()

    assert (before["claimed"], after["done"]) == (0, 2)


def test_permits_that_were_not_needed_go_back_at_once(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(3)])
    claimer = a_claimer(bench.tasks, owner="A", max_in_flight_retries=5)

    held = claimer.claim(free=10, slots=10, now=now).tasks

    assert len(held) == holds(bench.db) == 3


def test_an_uncapped_queue_asks_for_no_permits(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(3)])

    bench.execute()

    assert bench.db["control"].count_documents({"_id": {"$ne": "tidemill"}}) == 0


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("queues", [(), ("default",)])
def test_a_cap_of_zero_starts_no_retry_and_every_fresh_task(
    bench: Bench, selection: Selection, queues: tuple[str, ...]
) -> None:
    # S10
    now = bench.clock.now()
    paused = QueueOptions(selection=selection, max_in_flight_retries=0)
    change_queue(bench.db, "default", paused, now=now)
    add(bench.tasks, [document(now - HOUR, lane="retry", attempts=1, payload={"n": "retry"}) for _ in range(40)])
    add(bench.tasks, [document(now, payload={"n": "fresh"}) for _ in range(40)])

    first = bench.execute(queues=queues)
    ran, at_first = set(bench.ran), len(bench.ran)
    change_queue(bench.db, "default", QueueOptions(selection=selection), now=now)
    second = bench.execute(queues=queues)

    assert (first["done"], at_first, ran) == (40, 40, {"fresh"})
    assert (first["claimed"], first["released"], first.backlog) == (40, 0, False)
    assert second["done"] == 40
    assert bench.db["control"].count_documents({"_id": "retries:default"}) == 0  # no permit was asked for


def test_an_executor_of_retries_alone_leaves_at_once_where_they_are_paused(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=0), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1)])

    report = bench.execute(lanes=("retry",))

    assert (report["claimed"], report.backlog, bench.ran) == (0, False, [])


def test_a_pause_of_retries_stops_those_of_its_queue_alone(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=0), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1, queue=queue) for queue in ("default", "eu")])

    assert bench.execute()["done"] == 1
    assert [raw["queue"] for raw in bench.db["tasks"].find({"status": "pending"})] == ["default"]


def test_a_task_that_fails_while_retries_are_paused_waits_for_their_end(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=0), now=now)

    @bench.task("fails_once")
    def _(_: Any, ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            raise Retry("busy", after=timedelta(0))

    add(bench.tasks, [document(now, name="fails_once")])

    assert (bench.execute()["retried"], bench.execute()["claimed"]) == (1, 0)
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    assert bench.execute()["done"] == 1


def test_retries_that_fail_again_give_their_permits_back(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now, lane="retry", attempts=1)])
    caps = the_caps(bench.tasks)
    claimer = a_claimer(bench.tasks, caps=caps, max_in_flight_retries=1)
    [task] = claimer.claim(free=1, slots=1, now=now).tasks
    again = Retried(failure=Failure(message="no", code="no"), next_retry_at=now + HOUR)

    settle.settle(bench.tasks, [Settlement(task=task, outcome=again)], now=now)
    caps.release_ended([task], now=now)

    assert holds(bench.db) == 0


def test_a_full_cap_is_asked_for_once_a_claim_and_then_left_alone_for_a_moment(
    mongod: Mongod, tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(9)])
    a_claimer(tasks, owner="other", max_in_flight_retries=2).claim(free=9, slots=9, now=now)
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        mine = open_tasks(client[tasks.database.name])
        claimer = a_claimer(mine, selection="retries_first", max_in_flight_retries=2)
        for _ in range(3):
            assert claimer.claim(free=9, slots=9, now=now).tasks == ()

    assert commands.names.count("findAndModify") == 1


def test_fresh_tasks_that_end_give_back_no_permits(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(2)])
    add(bench.tasks, [document(now) for _ in range(2)])
    caps = the_caps(bench.tasks)
    claimer = a_claimer(bench.tasks, caps=caps, max_in_flight_retries=2)
    held = whole(claimer.claim(free=9, slots=9, now=now).tasks)

    caps.release_ended([one for one in held if one.lane == "fresh"], now=now)

    assert (len(held), holds(bench.db)) == (4, 2)
