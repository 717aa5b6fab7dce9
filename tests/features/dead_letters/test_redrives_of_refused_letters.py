"""Letters that the database refuses to change: each is told, and none keeps another back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.builders import all_of
from tests.buried import bury_tasks, failed, letter_bytes
from tests.fixtures import T0, ManualClock
from tests.redrives import acting, cut_short, finish, redrive_all, redriver
from tidemill.dead_letters.redrive import BATCH_SIZE
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks

MINUTE = timedelta(minutes=1)
RIGID = {"queue": {"$ne": "rigid"}}
NEVER_CLOSED = {"$or": [RIGID, {"redriven_at": {"$exists": False}}]}


def let_only(dead: Tasks, rule: dict[str, Any]) -> None:
    dead.database.command("collMod", DEAD_LETTERS, validator=rule, validationLevel="strict")


def bury_both(dead: Tasks, *, rigid: int, others: int) -> None:
    """Dead letters of which those that are not to be changed are the oldest."""
    bury_tasks(dead, [failed(T0, queue="rigid") for _ in range(rigid)], at=T0)
    bury_tasks(dead, [failed(T0) for _ in range(others)], at=T0)


@pytest.mark.parametrize("step", ["insert", "close"])
def test_what_was_cut_short_is_completed_behind_those_that_cannot_be(
    tasks: Tasks, dead: Tasks, clock: ManualClock, step: str
) -> None:
    bury_both(dead, rigid=5, others=3)
    on = redriver(tasks, dead, clock)
    cut_short(on, step, after=False)
    let_only(dead, RIGID)
    clock.move(MINUTE)

    assert finish(on) == 3
    assert finish(on) == 0

    assert dead.count_documents({"queue": "rigid", "redriven_at": None}) == 5
    assert dead.count_documents({"queue": "default", "redriven_at": clock.now(), "redrive_token": None}) == 3
    assert tasks.count_documents({"queue": "default"}) == 3


def test_letters_that_cannot_be_changed_are_refused_and_stay(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_both(dead, rigid=BATCH_SIZE + 1, others=2)
    before = letter_bytes(dead)
    let_only(dead, RIGID)

    done = redrive_all(redriver(tasks, dead, clock))

    assert (done.examined, done.redriven, done.refused) == (BATCH_SIZE + 3, 2, {"write_rejected": BATCH_SIZE + 1})
    assert {one.message for one in done.examples} == {"MongoDB refuses to change its letter"}
    assert {one["queue"] for one in all_of(tasks)} == {"default"}
    assert len(before.items() & letter_bytes(dead).items()) == BATCH_SIZE + 1


def test_letters_that_cannot_be_closed_are_refused_time_and_again_and_their_tasks_come_back_once(
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    bury_both(dead, rigid=BATCH_SIZE + 1, others=2)
    let_only(dead, NEVER_CLOSED)
    on = redriver(tasks, dead, clock)

    first = redrive_all(on)
    clock.move(MINUTE)
    second = redrive_all(on)

    assert (first.redriven, first.refused) == (2, {"write_rejected": BATCH_SIZE + 1})
    assert (second.redriven, second.refused) == (0, {"write_rejected": BATCH_SIZE + 1})
    assert {one.message for one in second.examples} == {"its task is back, but MongoDB refuses to change its letter"}
    assert finish(on) == 0
    assert tasks.count_documents({"redrives": 1}) == BATCH_SIZE + 3


def test_what_somebody_else_has_taken_is_told_apart_from_what_is_refused(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_both(dead, rigid=1, others=1)
    let_only(dead, RIGID)

    def take(_: object) -> None:
        dead.update_one({"queue": "default"}, {"$set": {"redrive_started_at": T0, "redrive_token": "theirs"}})

    with acting(redriver(tasks, dead, clock), "mark", before=take) as on:
        assert redrive_all(on).refused == {"write_rejected": 1, "in_progress": 1}


def test_what_somebody_else_had_in_hand_meanwhile_is_not_taken_for_refused(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)

    def take(_: object) -> None:
        dead.update_one({}, {"$set": {"redrive_token": "theirs"}})

    def leave(_: object) -> None:
        dead.update_one({}, {"$unset": {"redrive_token": ""}})

    with acting(redriver(tasks, dead, clock), "mark", before=take, after=leave) as on:
        assert redrive_all(on).refused == {"in_progress": 1}


@pytest.mark.parametrize("theirs", [{"redriven_at": T0}, {"redrive_token": "theirs"}], ids=repr)
def test_what_somebody_else_completes_is_neither_redriven_nor_refused(
    tasks: Tasks, dead: Tasks, clock: ManualClock, theirs: dict[str, Any]
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "close", after=False)
    clock.move(MINUTE)

    with acting(on, "close", before=lambda _: dead.update_one({}, {"$set": theirs})) as slower:
        done = redrive_all(slower)

    assert (done.examined, done.redriven, done.refused) == (1, 0, {})
