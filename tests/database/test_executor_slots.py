"""Seats that are never more than their limit, and knocks that nobody overhears."""

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

from tests.commands import Commands
from tests.fixtures import T0
from tidemill.control.fleet import ExecutorSlots, load_fleet_status
from tidemill.control.semaphores import PermitOwner, acquire, release_all
from tidemill.testing import Mongod
from tools.bench.simulated_executors import SimulatedSlots

MINUTE = timedelta(minutes=1)
MANY = 20


def holder(name: str) -> PermitOwner:
    return PermitOwner(owner=name, execution=f"{name}-1")


def take(executor_slots: ExecutorSlots, name: str, *, now: datetime = T0) -> bool:
    return executor_slots.acquire(holder(name), until=now + MINUTE, now=now)


def leave(executor_slots: ExecutorSlots, name: str, *, now: datetime = T0) -> bool:
    return executor_slots.release(holder(name), now=now)


@pytest.fixture
def executor_slots(db: Database[Any]) -> ExecutorSlots:
    return ExecutorSlots(db, limit=2)


@pytest.fixture
def databases(mongod: Mongod, db: Database[Any]) -> Iterator[list[Database[Any]]]:
    """The database through a client of its own for each of many."""
    clients = [MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) for _ in range(MANY)]
    yield [client[db.name] for client in clients]
    for client in clients:
        client.close()


def test_there_are_so_many_seats_and_no_more(executor_slots: ExecutorSlots) -> None:
    assert [take(executor_slots, name) for name in "ABC"] == [True, True, False]


def test_a_seat_that_was_left_can_be_taken(executor_slots: ExecutorSlots) -> None:
    for name in "AB":
        take(executor_slots, name)

    leave(executor_slots, "A")

    assert [take(executor_slots, name) for name in "CD"] == [True, False]


@pytest.mark.parametrize("limit", [1, 5])
def test_twenty_at_once_get_exactly_the_seats_there_are(databases: list[Database[Any]], limit: int) -> None:
    barrier = threading.Barrier(MANY)

    def come(number: int) -> bool:
        mine = ExecutorSlots(databases[number], limit=limit)
        mine.count_free(now=T0)  # and is connected
        barrier.wait(30)
        return take(mine, f"executor-{number}")

    with ThreadPoolExecutor(MANY) as pool:
        slot_permits = list(pool.map(come, range(MANY)))

    assert sum(slot_permits) == limit
    assert len(databases[0]["control"].find_one({"_id": "executor_slots"})["holds"]) == limit  # type: ignore[index]


def test_twenty_that_come_and_go_are_never_more_than_there_are_seats(databases: list[Database[Any]]) -> None:
    lock = threading.Lock()
    sitting, most, turns = [0], [0], [0]

    def come_and_go(number: int) -> None:
        mine = ExecutorSlots(databases[number], limit=3)
        for turn in range(10):
            if not take(mine, f"executor-{number}-{turn}"):
                continue
            with lock:
                sitting[0] += 1
                turns[0] += 1
                most[0] = max(most[0], sitting[0])
            with lock:
                sitting[0] -= 1
            leave(mine, f"executor-{number}-{turn}")

    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(come_and_go, range(MANY)))

    assert 1 <= most[0] <= 3
    assert turns[0] >= 10
    assert ExecutorSlots(databases[0], limit=3).count_free(now=T0) == 3


def test_the_seats_of_the_dead_are_free_after_their_time(executor_slots: ExecutorSlots) -> None:
    for name in "AB":
        take(executor_slots, name)
    late = T0 + MINUTE

    assert not take(executor_slots, "C", now=late - timedelta(milliseconds=1))
    assert [take(executor_slots, name, now=late) for name in "CDE"] == [True, True, False]


def test_the_seat_of_an_owner_who_is_known_to_be_dead_is_free_at_once(
    db: Database[Any], executor_slots: ExecutorSlots
) -> None:
    for name in "AB":
        take(executor_slots, name)

    release_all(db, "A")

    assert [take(executor_slots, name) for name in "CD"] == [True, False]


def test_two_executions_of_one_owner_sit_on_two_seats(executor_slots: ExecutorSlots) -> None:
    one, other = (PermitOwner(owner="A", execution=execution) for execution in "12")

    assert [executor_slots.acquire(each, until=T0 + MINUTE, now=T0) for each in (one, other)] == [True, True]
    assert not take(executor_slots, "B")
    executor_slots.release(one, now=T0)
    assert take(executor_slots, "B")


def test_a_repeat_takes_no_second_seat(executor_slots: ExecutorSlots) -> None:
    assert [take(executor_slots, name) for name in "AAB"] == [True, True, True]
    assert not take(executor_slots, "C")


def test_whoever_leaves_is_told_that_somebody_was_turned_away_and_only_the_first(executor_slots: ExecutorSlots) -> None:
    for name in "ABCD":
        take(executor_slots, name)

    assert [leave(executor_slots, name) for name in "AB"] == [True, False]


def test_nobody_knocks_who_finds_a_seat(executor_slots: ExecutorSlots) -> None:
    for name in "AB":
        take(executor_slots, name)

    assert [leave(executor_slots, name) for name in "AB"] == [False, False]


def test_who_comes_before_the_last_one_leaves_is_seated_or_heard(databases: list[Database[Any]]) -> None:
    """However the two fall together: that is what the one update is for."""
    heard_or_seated = []
    with ThreadPoolExecutor(2) as pool:
        for turn in range(100):
            one, other = (ExecutorSlots(databases[number], limit=1) for number in (0, 1))
            take(one, f"A-{turn}")
            barrier = threading.Barrier(2)

            def come(
                executor_slots: ExecutorSlots = other, name: str = f"B-{turn}", barrier: threading.Barrier = barrier
            ) -> bool:
                barrier.wait(30)
                return take(executor_slots, name)

            coming = pool.submit(come)
            barrier.wait(30)
            was_told = leave(one, f"A-{turn}")
            is_seated = coming.result(30)
            heard_or_seated.append((was_told, is_seated))
            leave(other, f"B-{turn}")

    assert set(heard_or_seated) <= {(True, False), (False, True)}


def test_a_knock_is_heard_where_nobody_leaves_once(executor_slots: ExecutorSlots, db: Database[Any]) -> None:
    assert not executor_slots.clear_waiter()
    for name in "ABC":
        take(executor_slots, name)
    release_all(db, "A")

    assert [executor_slots.clear_waiter(), executor_slots.clear_waiter(), leave(executor_slots, "B")] == [
        True,
        False,
        False,
    ]


def test_who_leaves_without_having_sat_changes_nothing(executor_slots: ExecutorSlots, db: Database[Any]) -> None:
    assert not leave(executor_slots, "A")
    assert db["control"].count_documents({"_id": "executor_slots"}) == 0


def test_free_seats_are_counted_without_those_whose_time_is_over(executor_slots: ExecutorSlots) -> None:
    assert executor_slots.count_free(now=T0) == 2
    take(executor_slots, "A")
    assert [executor_slots.count_free(now=now) for now in (T0, T0 + MINUTE)] == [1, 2]


def test_a_limit_that_was_lowered_throws_nobody_out(executor_slots: ExecutorSlots, db: Database[Any]) -> None:
    for name in "AB":
        take(executor_slots, name)
    fewer = ExecutorSlots(db, limit=1)

    assert (fewer.count_free(now=T0), take(fewer, "C")) == (0, False)
    leave(fewer, "A")
    assert not take(fewer, "C")


@pytest.mark.parametrize(
    "odd",
    [
        {"holds": None}, {"holds": "none"}, {"holds": [7, None, {"until": T0 + MINUTE}]}, {"holds": {}},
        {"holds": [{"n": "x", "until": T0 + MINUTE}, {"n": True, "until": T0 + MINUTE}, {"n": 1, "until": "later"}]},
    ],
)  # fmt: skip
def test_a_document_edited_into_nonsense_is_as_good_as_an_empty_one(
    executor_slots: ExecutorSlots, db: Database[Any], odd: dict[str, Any]
) -> None:
    db["control"].insert_one({"_id": "executor_slots", **odd})

    assert executor_slots.count_free(now=T0) == 2
    assert [take(executor_slots, name) for name in "ABC"] == [True, True, False]


def test_holds_of_other_names_take_no_seat(executor_slots: ExecutorSlots, db: Database[Any]) -> None:
    acquire(db, "retries:eu", holder("A"), seq=1, held=0, wanted=9, limit=9, until=T0 + MINUTE, now=T0)

    assert [take(executor_slots, name) for name in "AB"] == [True, True]


def test_whoever_comes_leaves_a_trace_seated_or_not(executor_slots: ExecutorSlots, db: Database[Any]) -> None:
    for second, name in enumerate("ABC"):
        take(executor_slots, name, now=T0 + timedelta(seconds=second))
        found = load_fleet_status(db, queue="default", now=T0)
        assert (found.last_acquired_at, found.slot_count) == (T0 + timedelta(seconds=second), 2)

    leave(executor_slots, "A")

    assert load_fleet_status(db, queue="default", now=T0).last_acquired_at == T0 + timedelta(seconds=2)


def test_each_operation_is_one_command(mongod: Mongod, db: Database[Any]) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        mine = ExecutorSlots(client[db.name], limit=1)
        for name in "AB":
            take(mine, name)
        leave(mine, "A")
        mine.count_free(now=T0)
        mine.clear_waiter()

    assert [name for name in commands.names if name != "endSessions"] == [
        "findAndModify", "findAndModify", "findAndModify", "find", "findAndModify"
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [1, 3])
def test_simulated_seats_answer_as_these_do(db: Database[Any], limit: int) -> None:
    rng = random.Random(20260701)
    executor_slots, simulated = ExecutorSlots(db, limit=limit), SimulatedSlots(limit)
    answers = []
    ends: dict[int, int] = {}  # who sits does not come again
    for step in range(200):
        now, number = T0 + timedelta(seconds=step), rng.randrange(6)
        if rng.random() < 0.6 and ends.get(number, 0) <= step:
            lasts = rng.choice([5, 30])
            real = executor_slots.acquire(holder(str(number)), until=now + timedelta(seconds=lasts), now=now)
            answers.append((real, simulated.acquire(number, until=step + lasts, now=step)))
            ends[number] = step + lasts if real else 0
        else:
            ends.pop(number, None)
            answers.append((executor_slots.release(holder(str(number)), now=now), simulated.release(number)))

    assert [real for real, _ in answers] == [made_up for _, made_up in answers]
    assert {real for real, _ in answers} == {True, False}
