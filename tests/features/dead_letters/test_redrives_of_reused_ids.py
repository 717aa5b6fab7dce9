"""Letters of several lives of one id: no letter is closed for what has become of another life."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.builders import add, all_of, document
from tests.buried import bury_tasks, failed, letter_bytes
from tests.fixtures import T0, ManualClock
from tests.redrives import acting, cut_short, finish, redrive_all, redriver
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
FIRST, SECOND = (DeadLetterFilter(ids=(DeadLetterId(task="a", redrives=n),)) for n in (0, 1))


def bury_two_lives(dead: Tasks) -> None:
    lives = [failed(T0, _id="a", redrives=n, created_at=T0 + n * HOUR, payload={"n": n}) for n in (0, 1)]
    bury_tasks(dead, lives, at=T0)


def test_a_letter_of_another_life_is_no_later_death(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_two_lives(dead)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False, which=FIRST)
    now = clock.move(MINUTE)

    assert finish(on) == 1

    assert [(one["payload"], one["redrives"]) for one in all_of(tasks)] == [({"n": 0}, 1)]
    assert [one.get("redriven_at") for one in all_of(dead)] == [now, None]


def test_a_living_task_of_another_life_stands_against_a_letter(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0, _id="a")], at=T0)
    before = letter_bytes(dead)
    on = redriver(tasks, dead, clock)
    cut_short(on, "insert", after=False)
    add(tasks, [document(T0, _id="a", created_at=T0 + HOUR, redrives=5)])
    clock.move(MINUTE)

    assert finish(on) == 0

    assert letter_bytes(dead) == before
    assert redrive_all(on).refused == {"conflict": 1}


def test_of_two_redrives_of_one_id_the_slower_one_is_refused(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_two_lives(dead)
    [first, _] = letter_bytes(dead).values()
    quicker = []

    def redrive_other(_: object) -> None:
        quicker.append(redrive_all(redriver(tasks, dead, clock), SECOND).redriven)

    with acting(redriver(tasks, dead, clock), "insert", before=redrive_other) as on:
        done = redrive_all(on, FIRST)

    assert quicker == [1]

    assert (done.redriven, done.refused) == (0, {"conflict": 1})
    assert [one["payload"] for one in all_of(tasks)] == [{"n": 1}]
    assert first in letter_bytes(dead).values()


@pytest.mark.parametrize("fields", [{"created_at": T0}, {"created_at": None}, {}], ids=repr)
@pytest.mark.parametrize("stage", ["alive", "dead"])
def test_a_task_without_a_time_is_told_by_having_none(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
    *,
    fields: dict[str, Any],
    stage: str,
) -> None:
    task = {name: value for name, value in failed(T0, _id="a").items() if name != "created_at"} | fields
    bury_tasks(dead, [task], at=T0)
    on = redriver(tasks, dead, clock)
    cut_short(on, "close", after=False)
    if stage == "dead":
        tasks.delete_many({})
        bury_tasks(dead, [task | {"redrives": 1}], at=T0)
    clock.move(MINUTE)

    assert finish(on) == 1
    assert tasks.count_documents({}) == (1 if stage == "alive" else 0)


@pytest.mark.parametrize(
    ("created_at", "redrives", "is_ours"),
    [(T0, 1, True), (T0, 0, False), (T0, 2, False), (T0 + HOUR, 1, False), (None, 1, False)],
)
def test_a_task_that_the_insert_finds_there_is_ours_only_in_its_life_and_with_its_number(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
    *,
    created_at: object,
    redrives: int,
    is_ours: bool,
) -> None:
    bury_tasks(dead, [failed(T0, _id="a"), failed(T0, _id="b")], at=T0)
    found = document(T0, _id="a", created_at=created_at, redrives=redrives)

    with acting(redriver(tasks, dead, clock), "insert", before=lambda _: add(tasks, [found])) as on:
        done = redrive_all(on)

    assert (done.redriven, done.refused) == ((2, {}) if is_ours else (1, {"conflict": 1}))
    assert dead.count_documents({"redriven_at": T0}) == done.redriven
    assert dead.count_documents({"redrive_started_at": None}) == 2
