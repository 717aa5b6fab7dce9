"""Redrives that were cut short: the next run of the archive leaves every task in one place."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from bson import DatetimeMS
from pymongo.monitoring import CommandStartedEvent

from tests.at_once import at_once
from tests.builders import add, all_of, document
from tests.buried import bury_tasks, failed, letter_bytes
from tests.faults import failing
from tests.fixtures import T0, ManualClock
from tests.redrives import EVER, WEEK, acting, cut_short, finish, redrive_all, redriver
from tidemill.dead_letters.archive import move_failed
from tidemill.dead_letters.redrive import BATCH_SIZE, INSERT_TIMEOUT, complete
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import UnavailableError
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.paging import MAX_BATCH_BYTES

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


STEPS = [(step, after) for step in ("mark", "insert", "close") for after in (False, True)]


@pytest.mark.parametrize(("step", "after"), STEPS)
def test_a_redrive_that_was_cut_short_is_completed(
    tasks: Tasks, dead: Tasks, clock: ManualClock, step: str, *, after: bool
) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(3)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, step, after=after, per_sec=0.01)

    assert finish(on) == 0  # it may still be under way
    clock.move(MINUTE)
    completed = finish(on)
    rest = redrive_all(on, per_sec=0.01)

    assert completed + rest.redriven == (0 if (step, after) == ("close", True) else 3)
    assert [one["redrives"] for one in all_of(tasks)] == [1, 1, 1]
    assert all(one["redriven_at"] and not {"redrive_started_at", "redrive_token"} & one.keys() for one in all_of(dead))


def test_what_is_completed_is_due_when_it_was_to_be(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(3)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "mark", after=True, per_sec=0.01)
    now = clock.move(150 * timedelta(seconds=1))

    finish(on)

    assert sorted(one["due_at"] for one in all_of(tasks)) == [now, now, T0 + timedelta(seconds=200)]


@pytest.mark.parametrize("drop_expiry", [False, True])
def test_what_is_completed_has_an_expiry_only_where_it_was_to_have_one(
    tasks: Tasks, dead: Tasks, clock: ManualClock, *, drop_expiry: bool
) -> None:
    bury_tasks(dead, [failed(T0, expires_at=T0 + HOUR)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False, drop_expiry=drop_expiry)
    clock.move(MINUTE)

    assert finish(on) == 1
    assert [one["expires_at"] for one in all_of(tasks)] == [None if drop_expiry else T0 + HOUR]


def test_plans_of_both_kinds_are_completed_by_one_run(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    for drop_expiry in (False, True):
        bury_tasks(dead, [failed(T0, queue=str(drop_expiry), expires_at=T0 + HOUR) for _ in range(3)], at=T0)
        cut_short(redriver(tasks, dead, clock), "insert", after=False, drop_expiry=drop_expiry)
    clock.move(MINUTE)

    assert finish(redriver(tasks, dead, clock)) == 6
    assert {(one["queue"], one["expires_at"]) for one in all_of(tasks)} == {("False", T0 + HOUR), ("True", None)}


def test_a_task_that_died_again_is_not_brought_back_twice(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0, _id="x")], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "close", after=False)
    tasks.delete_many({})
    bury_tasks(dead, [failed(T0, _id="x", redrives=1)], at=T0)
    now = clock.move(MINUTE)

    assert finish(on) == 1

    assert all_of(tasks) == []
    assert [(one["_id"]["redrives"], one.get("redriven_at")) for one in all_of(dead)] == [(0, now), (1, None)]


@pytest.mark.parametrize("stage", ["alive", "dead"])
def test_a_redrive_finds_what_an_earlier_one_has_left(
    tasks: Tasks, dead: Tasks, clock: ManualClock, stage: str
) -> None:
    [first] = bury_tasks(dead, [failed(T0, _id="x")], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "close", after=False)
    if stage == "dead":
        tasks.update_many({}, {"$set": {"status": "failed", "finished_at": T0}})
        move_failed(tasks, dead, clock=clock, until=EVER)
    clock.move(MINUTE)

    redrive_all(on)

    assert [one["redrives"] for one in all_of(tasks)] == [1 if stage == "alive" else 2]
    assert all(one["redriven_at"] for one in all_of(dead))
    assert dead.count_documents({"_id": first.document()}) == 1


STANDS_AGAINST: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "id": ({"_id": "x"}, {"_id": "x"}),
    "key": ({"idempotency_key": "k"}, {"idempotency_key": "k"}),
    "expiry": ({"expires_at": T0 + MINUTE}, {}),
}


@pytest.mark.parametrize("what", STANDS_AGAINST)
def test_a_letter_against_which_something_stands_is_left_as_it_was_before(
    tasks: Tasks, dead: Tasks, clock: ManualClock, what: str
) -> None:
    fields, other = STANDS_AGAINST[what]
    bury_tasks(dead, [failed(T0, **fields)], at=T0)
    before = letter_bytes(dead)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False)
    add(tasks, [document(T0, **other)])
    clock.move(MINUTE)

    assert finish(on) == 0

    assert letter_bytes(dead) == before
    assert tasks.count_documents({}) == 1


@pytest.mark.parametrize(
    ("age", "back"), [(WEEK, 1), (WEEK + MINUTE, 0), (-MINUTE, 1), (-WEEK, 1), (-WEEK - MINUTE, 0)], ids=str
)
def test_a_task_that_may_have_been_done_and_removed_is_not_brought_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock, age: timedelta, *, back: int
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    before = letter_bytes(dead)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False)
    clock.move(age)

    assert finish(on) == back
    assert tasks.count_documents({}) == back
    assert dead.count_documents({"redrive_started_at": None}) == 1
    assert (letter_bytes(dead) == before) == (not back)


@pytest.mark.parametrize("started_at", [T0 + 50 * WEEK, DatetimeMS(10**15), DatetimeMS(-(10**15))], ids=str)
@pytest.mark.parametrize("step", ["insert", "close"])
def test_a_mark_that_makes_no_sense_stays_on_no_letter(
    tasks: Tasks, dead: Tasks, clock: ManualClock, started_at: object, *, step: str
) -> None:
    back = 1 if step == "close" else 0
    bury_tasks(dead, [failed(T0)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, step, after=False)
    dead.update_one({}, {"$set": {"redrive_started_at": started_at}})

    assert finish(on) == back

    assert (tasks.count_documents({}), dead.count_documents({"redriven_at": T0})) == (back, back)
    assert dead.count_documents({"redrive_started_at": None, "redrive_token": None}) == 1


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(seconds=59)])
def test_what_was_begun_by_a_clock_a_little_ahead_may_be_under_way(
    tasks: Tasks, dead: Tasks, clock: ManualClock, ahead: timedelta
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False)
    before = letter_bytes(dead)
    clock.move(-ahead)

    assert (finish(on), letter_bytes(dead)) == (0, before)


def test_what_is_cut_short_is_completed_in_time_or_left(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(BATCH_SIZE + 1)], at=T0)
    on = redriver(tasks, dead, clock)
    for _ in range(2):
        cut_short(on, "insert", after=False)
    clock.move(MINUTE)
    ticks = itertools.count()

    assert complete(on, until=1, monotonic=lambda: next(ticks), task_retention=WEEK) == BATCH_SIZE
    assert complete(on, until=0, monotonic=lambda: 0, task_retention=WEEK) == 0
    assert finish(on) == 1


def test_large_letters_are_completed_few_at_a_time(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0, payload={"x": "x" * (MAX_BATCH_BYTES // 2)}) for _ in range(2)], at=T0)
    on = redriver(tasks, dead, clock)
    for _ in range(2):
        cut_short(on, "insert", after=False)
    clock.move(MINUTE)

    assert complete(on, until=1, monotonic=iter((0, 1)).__next__, task_retention=WEEK) == 1
    assert finish(on) == 1


def test_nothing_is_inserted_long_after_its_mark(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)

    with acting(redriver(tasks, dead, clock), "mark", after=lambda _: clock.move(INSERT_TIMEOUT)) as on:
        done = redrive_all(on)

    assert (done.redriven, done.refused, all_of(tasks)) == (0, {"in_progress": 1}, [])
    clock.move(MINUTE - INSERT_TIMEOUT)
    assert finish(redriver(tasks, dead, clock)) == 1


def test_an_insert_that_was_made_already_is_no_conflict(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(3)], at=T0)

    def insert(event: CommandStartedEvent) -> None:
        tasks.insert_many(event.command["documents"])

    with acting(redriver(tasks, dead, clock), "insert", before=insert) as on:
        assert redrive_all(on).redriven == 3

    assert dead.count_documents({"redriven_at": T0}) == 3


@pytest.mark.parametrize("command", ["update", "insert"])
def test_a_redrive_that_the_database_left_is_completed(mine: Tasks, clock: ManualClock, command: str) -> None:
    dead = open_tasks(mine.database, DEAD_LETTERS)
    bury_tasks(dead, [failed(T0) for _ in range(3)], at=T0)
    on = redriver(mine, dead, clock)

    with failing(mine, command, errorCode=50), pytest.raises(UnavailableError):
        redrive_all(on)
    clock.move(MINUTE)

    assert finish(on) + redrive_all(on).redriven == 3
    assert mine.count_documents({"redrives": 1}) == 3


def test_two_runs_at_once_complete_each_redrive_once(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(200)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False)
    clock.move(MINUTE)

    assert sum(at_once([on, on], finish)) == 200
    assert tasks.count_documents({"redrives": 1}) == 200
