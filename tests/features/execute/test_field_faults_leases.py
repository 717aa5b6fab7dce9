"""Faults that queues had with leases: two workers on one task, and whose word counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, claim, document, lease, stored, whole
from tests.claimers import a_claimer
from tests.features.conftest import LIFE, Bench
from tests.features.execute.containers import Container
from tidemill import Fail
from tidemill.dead_letters.archive import move_failed
from tidemill.executor.claimer import ClaimResult
from tidemill.executor.context import Report
from tidemill.model import Succeeded
from tidemill.store import settle, tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.settle import Settlement
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
PAST_ITS_LEASE = LIFE + 6 * SECOND
LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)


def returns(by: str) -> dict[str, str]:
    return {"by": by}


def raises(by: str) -> dict[str, str]:
    raise ValueError(by)


def gives_up(by: str) -> dict[str, str]:
    raise Fail(by)


@pytest.mark.parametrize("ends", [returns, raises, gives_up])
def test_a_worker_that_lost_its_lease_changes_nothing_and_counts_no_success(  # F01, F02
    bench: Bench, dead: Tasks, now: datetime, ends: Callable[[str], dict[str, str]]
) -> None:
    reports: list[Report] = []

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> dict[str, str]:
        if reports or len(bench.ran) > 1:
            return {"by": "B"}
        bench.clock.move(PAST_ITS_LEASE)
        assert bench.reclaim()["reclaimed"] == 1
        bench.clock.move(5 * SECOND)
        reports.append(bench.execute(owner="B"))
        return ends("A")

    [task_id] = add(bench.tasks, [document(now, name="slow", max_retries=0)])

    late = bench.execute(owner="A")

    found = stored(bench.tasks, task_id)
    assert (found["status"], found["result"], found["attempts"]) == ("done", {"by": "B"}, 1)
    assert (late["lost"], late["done"], late["retried"], late["failed"]) == (1, 0, 0, 0)
    assert (reports[0]["lost"], reports[0]["done"]) == (0, 1)
    counted = list(bench.db["queue_stats"].find())
    assert [sum(one.get(name, 0) for one in counted) for name in ("done", "failed", "retried")] == [1, 0, 0]
    assert move_failed(bench.tasks, dead, clock=bench.clock, until=1e12).moved == 0


def test_a_function_may_run_until_its_invocation_ends(bench: Bench, now: datetime) -> None:  # F04
    taken: list[int] = []

    @bench.task("slow", timeout=50)
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        for _ in range(12):
            bench.clock.move(10 * SECOND)
            taken.append(bench.reclaim()["reclaimed"])
        bench.clock.move(6 * SECOND)
        taken.append(bench.reclaim()["reclaimed"])

    add(bench.tasks, [document(now, name="slow")])

    bench.execute()

    assert taken == [0] * 12 + [1]


@pytest.mark.parametrize("owner", ["r-1", "r-2"])
def test_the_next_invocation_of_a_container_owns_nothing_of_the_last_one(  # F05, F93
    bench: Bench, now: datetime, owner: str
) -> None:
    ids = add(bench.tasks, [document(now, payload={"n": n}) for n in range(10)])
    held = whole(claim(bench.tasks, now, owner="r-1").tasks)  # and then it raised, or was killed
    settle.settle(bench.tasks, [Settlement(task=task, outcome=Succeeded(result="first")) for task in held[:5]], now=now)

    for _ in range(2):
        assert bench.execute(owner=owner)["claimed"] == 0
    bench.clock.move(MINUTE + SECOND)
    assert bench.reclaim()["reclaimed"] == 5
    bench.clock.move(5 * SECOND)
    for _ in range(2):
        bench.execute(owner=owner)

    assert sorted(bench.ran) == list(range(5, 10))
    assert [stored(bench.tasks, one)["result"] for one in ids] == ["first"] * 5 + [None] * 5


def test_a_task_for_later_is_handed_out_once_and_not_before(bench: Bench, now: datetime) -> None:  # F06
    later = now + timedelta(hours=6)
    add(bench.tasks, [document(now, due_at=later, next_retry_at=later, payload={"n": 1})])

    while bench.clock.at < later:
        assert bench.execute()["claimed"] == 0
        assert bench.reclaim()["reclaimed"] == 0
        bench.clock.move(5 * MINUTE)
    for _ in range(2):
        bench.execute(batch_size=100)

    assert bench.ran == [1]
    assert bench.tasks.count_documents({}) == 1


@pytest.mark.parametrize("at_once", [False, True])
def test_a_tick_that_comes_twice_does_everything_once(  # F07
    mongod: Mongod, db: Database[Any], *, at_once: bool
) -> None:
    over = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    tick = {"execute": {"source": "tick", "batch_size": 50}, "reclaim": {}, "archive": {}}

    def told(container: Container, function: str) -> Any:
        return container.done(tick[function], request_id="twice")

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2 if at_once else 1) as pool:
        pairs = {function: [stack.enter_context(_a_container(function, mongod, db)) for _ in "ab"] for function in tick}
        for function, pair in pairs.items():
            for one in pair:
                told(one, function)
        due = add(open_tasks(db), [document(LONG_AGO) for _ in range(200)])
        lost = add(
            open_tasks(db), [document(LONG_AGO, status="processing", attempts=1, lease=over) for _ in range(200)]
        )
        failed = add(open_tasks(db), [document(LONG_AGO, status="failed", finished_at=LONG_AGO) for _ in range(200)])
        reports = {function: list(pool.map(told, pair, [function] * 2)) for function, pair in pairs.items()}

    for function, name in (("execute", "done"), ("reclaim", "reclaimed"), ("archive", "moved")):
        assert sum(report[name] for report in reports[function]) == 200
    assert {(one["attempts"], len(one["attempt_log"])) for one in db["tasks"].find({"_id": {"$in": due}})} == {(1, 1)}
    assert {(one["attempts"], one["crashes"]) for one in db["tasks"].find({"_id": {"$in": lost}})} == {(0, 1)}
    assert sorted(one["_id"]["task"] for one in db["tasks_dlq"].find()) == sorted(failed)


def _a_container(function: str, mongod: Mongod, db: Database[Any]) -> Container:
    return Container(function, uri=mongod.uri, database=db.name, LINGER_SEC="0")


@pytest.mark.parametrize("ends", [returns, raises, gives_up])
def test_a_task_that_was_deleted_while_it_ran_stays_deleted(  # F08
    bench: Bench, now: datetime, ends: Callable[[str], dict[str, str]]
) -> None:
    @bench.task("deleted")
    def deleted(_payload: dict[str, Any], ctx: Any) -> dict[str, str]:
        bench.tasks.delete_one({"_id": ctx.task_id})
        return ends("A")

    add(bench.tasks, [document(now, name="deleted")])

    report = bench.execute()

    assert (report["lost"], report["done"], report["retried"], report["failed"]) == (1, 0, 0, 0)
    assert bench.tasks.count_documents({}) == 0


@pytest.mark.parametrize("ends", [returns, raises, gives_up])
def test_a_task_that_was_cancelled_by_force_while_it_ran_stays_cancelled(  # F08
    bench: Bench, now: datetime, ends: Callable[[str], dict[str, str]]
) -> None:
    @bench.task("cancelled")
    def cancelled(_payload: dict[str, Any], ctx: Any) -> dict[str, str]:
        tasks.cancel(bench.tasks, ctx.task_id, now=now, force=True)
        return ends("A")

    [task_id] = add(bench.tasks, [document(now, name="cancelled")])

    report = bench.execute()

    assert (report["lost"], stored(bench.tasks, task_id)["status"]) == (1, "cancelled")
    bench.clock.move(timedelta(days=1))
    assert (bench.reclaim()["reclaimed"], bench.execute()["claimed"]) == (0, 0)


def test_a_failure_keeps_what_an_operator_chose_while_it_ran(bench: Bench, now: datetime) -> None:  # F09
    chosen = {"priority": 9, "max_retries": 10, "timeout_sec": 7.0, "expires_at": now + timedelta(days=1)}

    @bench.task("edited")
    def edited(_payload: dict[str, Any], ctx: Any) -> None:
        bench.tasks.update_one({"_id": ctx.task_id}, {"$set": chosen})
        raise ValueError

    [task_id] = add(bench.tasks, [document(now, name="edited", max_retries=1)])

    assert bench.execute()["retried"] == 1

    found = stored(bench.tasks, task_id)
    assert {name: found[name] for name in chosen} == chosen


def test_many_that_claim_one_by_one_take_each_task_once(  # F11
    mongod: Mongod, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now, payload={"n": n}) for n in range(200)])

    def take_all(owner: int) -> list[Any]:
        taken: list[Any] = []
        with MongoClient[dict[str, Any]](mongod.uri) as client:
            claimer = a_claimer(open_tasks(client[db.name]), owner=str(owner))
            claimed = ClaimResult()
            while not claimed.exhausted or not taken:
                claimed = claimer.claim(free=1, slots=1, now=now, thorough=True)
                taken += [task.id for task in claimed.tasks]
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [one for part in pool.map(take_all, range(8)) for one in part]

    assert len(taken) == len(set(taken)) == 200


def test_what_others_left_behind_in_their_documents_stops_nobody(bench: Bench, now: datetime) -> None:  # F14
    ages_ago = now - timedelta(days=30)
    holds = [{"owner": "gone", "execution": "e", "n": 99, "until": ages_ago}]
    bench.db["control"].insert_many([{"_id": name, "holds": holds} for name in ("executor_slots", "retries:default")])
    bench.db["queues"].insert_one({"_id": "default", "max_in_flight_retries": 1})
    held = lease(ages_ago, owner="gone")
    over = {"token": held.token, "owner": held.owner, "expires_at": held.expires_at}
    add(bench.tasks, [document(now, lane="retry", attempts=1), document(now, status="processing", lease=over)])

    assert bench.reclaim()["reclaimed"] == 1
    assert bench.execute()["done"] == 1
