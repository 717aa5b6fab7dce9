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
from tests.conftest import T0
from tidemill.control import Holder, Seats, hold, let_go, standing
from tidemill.simulation.containers import SimulatedSeats
from tidemill.testing import Mongod

MINUTE = timedelta(minutes=1)
MANY = 20


def holder(name: str) -> Holder:
    return Holder(owner=name, execution=f"{name}-1")


def take(seats: Seats, name: str, *, now: datetime = T0) -> bool:
    return seats.take(holder(name), until=now + MINUTE, now=now)


def leave(seats: Seats, name: str, *, now: datetime = T0) -> bool:
    return seats.leave(holder(name), now=now)


@pytest.fixture
def seats(db: Database[Any]) -> Seats:
    return Seats(db, limit=2)


@pytest.fixture
def databases(mongod: Mongod, db: Database[Any]) -> Iterator[list[Database[Any]]]:
    """The database through a client of its own for each of many."""
    clients = [MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) for _ in range(MANY)]
    yield [client[db.name] for client in clients]
    for client in clients:
        client.close()


def test_there_are_so_many_seats_and_no_more(seats: Seats) -> None:
    assert [take(seats, name) for name in "ABC"] == [True, True, False]


def test_a_seat_that_was_left_can_be_taken(seats: Seats) -> None:
    for name in "AB":
        take(seats, name)

    leave(seats, "A")

    assert [take(seats, name) for name in "CD"] == [True, False]


@pytest.mark.parametrize("limit", [1, 5])
def test_twenty_at_once_get_exactly_the_seats_there_are(databases: list[Database[Any]], limit: int) -> None:
    barrier = threading.Barrier(MANY)

    def come(number: int) -> bool:
        mine = Seats(databases[number], limit=limit)
        mine.free(now=T0)  # and is connected
        barrier.wait(30)
        return take(mine, f"executor-{number}")

    with ThreadPoolExecutor(MANY) as pool:
        seated = list(pool.map(come, range(MANY)))

    assert sum(seated) == limit
    assert len(databases[0]["control"].find_one({"_id": "seats"})["holds"]) == limit  # type: ignore[index]


def test_twenty_that_come_and_go_are_never_more_than_there_are_seats(databases: list[Database[Any]]) -> None:
    lock = threading.Lock()
    sitting, most, turns = [0], [0], [0]

    def come_and_go(number: int) -> None:
        mine = Seats(databases[number], limit=3)
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
    assert Seats(databases[0], limit=3).free(now=T0) == 3


def test_the_seats_of_the_dead_are_free_after_their_time(seats: Seats) -> None:
    for name in "AB":
        take(seats, name)
    late = T0 + MINUTE

    assert not take(seats, "C", now=late - timedelta(milliseconds=1))
    assert [take(seats, name, now=late) for name in "CDE"] == [True, True, False]


def test_the_seat_of_an_owner_who_is_known_to_be_dead_is_free_at_once(db: Database[Any], seats: Seats) -> None:
    for name in "AB":
        take(seats, name)

    let_go(db, "A")

    assert [take(seats, name) for name in "CD"] == [True, False]


def test_two_executions_of_one_owner_sit_on_two_seats(seats: Seats) -> None:
    one, other = (Holder(owner="A", execution=execution) for execution in "12")

    assert [seats.take(each, until=T0 + MINUTE, now=T0) for each in (one, other)] == [True, True]
    assert not take(seats, "B")
    seats.leave(one, now=T0)
    assert take(seats, "B")


def test_a_repeat_takes_no_second_seat(seats: Seats) -> None:
    assert [take(seats, name) for name in "AAB"] == [True, True, True]
    assert not take(seats, "C")


def test_whoever_leaves_is_told_that_somebody_was_turned_away_and_only_the_first(seats: Seats) -> None:
    for name in "ABCD":
        take(seats, name)

    assert [leave(seats, name) for name in "AB"] == [True, False]


def test_nobody_knocks_who_finds_a_seat(seats: Seats) -> None:
    for name in "AB":
        take(seats, name)

    assert [leave(seats, name) for name in "AB"] == [False, False]


def test_who_comes_before_the_last_one_leaves_is_seated_or_heard(databases: list[Database[Any]]) -> None:
    """However the two fall together: that is what the one update is for."""
    heard_or_seated = []
    with ThreadPoolExecutor(2) as pool:
        for turn in range(100):
            one, other = (Seats(databases[number], limit=1) for number in (0, 1))
            take(one, f"A-{turn}")
            barrier = threading.Barrier(2)

            def come(seats: Seats = other, name: str = f"B-{turn}", barrier: threading.Barrier = barrier) -> bool:
                barrier.wait(30)
                return take(seats, name)

            coming = pool.submit(come)
            barrier.wait(30)
            was_told = leave(one, f"A-{turn}")
            is_seated = coming.result(30)
            heard_or_seated.append((was_told, is_seated))
            leave(other, f"B-{turn}")

    assert set(heard_or_seated) <= {(True, False), (False, True)}


def test_a_knock_is_heard_where_nobody_leaves_once(seats: Seats, db: Database[Any]) -> None:
    assert not seats.answer_knock()
    for name in "ABC":
        take(seats, name)
    let_go(db, "A")

    assert [seats.answer_knock(), seats.answer_knock(), leave(seats, "B")] == [True, False, False]


def test_who_leaves_without_having_sat_changes_nothing(seats: Seats, db: Database[Any]) -> None:
    assert not leave(seats, "A")
    assert db["control"].count_documents({}) == 0


def test_free_seats_are_counted_without_those_whose_time_is_over(seats: Seats) -> None:
    assert seats.free(now=T0) == 2
    take(seats, "A")
    assert [seats.free(now=now) for now in (T0, T0 + MINUTE)] == [1, 2]


def test_a_limit_that_was_lowered_throws_nobody_out(seats: Seats, db: Database[Any]) -> None:
    for name in "AB":
        take(seats, name)
    fewer = Seats(db, limit=1)

    assert (fewer.free(now=T0), take(fewer, "C")) == (0, False)
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
    seats: Seats, db: Database[Any], odd: dict[str, Any]
) -> None:
    db["control"].insert_one({"_id": "seats", **odd})

    assert seats.free(now=T0) == 2
    assert [take(seats, name) for name in "ABC"] == [True, True, False]


def test_holds_of_other_names_take_no_seat(seats: Seats, db: Database[Any]) -> None:
    hold(db, "retries:eu", holder("A"), held=0, wanted=9, limit=9, until=T0 + MINUTE, now=T0)

    assert [take(seats, name) for name in "AB"] == [True, True]


def test_whoever_comes_leaves_a_trace_seated_or_not(seats: Seats, db: Database[Any]) -> None:
    for second, name in enumerate("ABC"):
        take(seats, name, now=T0 + timedelta(seconds=second))
        found = standing(db, queue="default", now=T0)
        assert (found.came_at, found.seats) == (T0 + timedelta(seconds=second), 2)

    leave(seats, "A")

    assert standing(db, queue="default", now=T0).came_at == T0 + timedelta(seconds=2)


def test_each_operation_is_one_command(mongod: Mongod, db: Database[Any]) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        mine = Seats(client[db.name], limit=1)
        for name in "AB":
            take(mine, name)
        leave(mine, "A")
        mine.free(now=T0)
        mine.answer_knock()

    assert [name for name in commands.names if name != "endSessions"] == [
        "findAndModify", "findAndModify", "findAndModify", "find", "findAndModify"
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [1, 3])
def test_simulated_seats_answer_as_these_do(db: Database[Any], limit: int) -> None:
    rng = random.Random(20260701)
    seats, simulated = Seats(db, limit=limit), SimulatedSeats(limit)
    answers = []
    for step in range(200):
        now, number = T0 + timedelta(seconds=step), rng.randrange(6)
        if rng.random() < 0.6:
            lasts = rng.choice([5, 30])
            real = seats.take(holder(str(number)), until=now + timedelta(seconds=lasts), now=now)
            answers.append((real, simulated.take(number, until=step + lasts, now=step)))
        else:
            answers.append((seats.leave(holder(str(number)), now=now), simulated.leave(number)))

    assert [real for real, _ in answers] == [made_up for _, made_up in answers]
    assert {real for real, _ in answers} == {True, False}
