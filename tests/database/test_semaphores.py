"""Permits that are never more than their limit, whoever asks, and however often."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from pymongo.database import Database

from tests.fixtures import T0
from tidemill.control.semaphores import PermitOwner, acquire, release_all

MINUTE = timedelta(minutes=1)
SEQ = itertools.count(1)


def ask(db: Database[Any], owner: str, wanted: int, *, held: int = 0, limit: int = 5, now: datetime = T0) -> int:
    """Acquire permits with the next number, and return how many were granted beside the held ones."""
    number = acquire(
        db,
        "it",
        PermitOwner(owner=owner, execution=f"{owner}-1"),
        seq=next(SEQ),
        held=held,
        wanted=wanted,
        limit=limit,
        until=now + MINUTE,
        now=now,
    )
    return number - held


def held(db: Database[Any]) -> dict[str, int]:
    document = db["control"].find_one({"_id": "it"}) or {"holds": []}
    return {one["owner"]: one["n"] for one in document["holds"] if one["n"]}


def test_what_is_free_is_granted_and_no_more(db: Database[Any]) -> None:
    assert [ask(db, "A", 3), ask(db, "B", 4), ask(db, "C", 1)] == [3, 2, 0]
    assert held(db) == {"A": 3, "B": 2}


def test_what_is_given_back_can_be_had_by_another(db: Database[Any]) -> None:
    ask(db, "A", 5)

    assert ask(db, "A", 0, held=2) == 0
    assert ask(db, "B", 9) == 3
    assert held(db) == {"A": 2, "B": 3}


def test_an_owner_that_gives_all_back_leaves_nothing_behind(db: Database[Any]) -> None:
    ask(db, "A", 2)
    ask(db, "A", 0)

    assert held(db) == {}


def test_a_repeat_whose_first_answer_was_lost_grants_the_same_again(db: Database[Any]) -> None:
    assert [ask(db, "A", 3), ask(db, "A", 3)] == [3, 3]
    assert held(db) == {"A": 3}


def test_a_hold_ends_with_its_time(db: Database[Any]) -> None:
    ask(db, "A", 5)

    assert ask(db, "B", 2, now=T0 + MINUTE - timedelta(milliseconds=1)) == 0
    assert ask(db, "B", 2, now=T0 + MINUTE) == 2
    assert held(db) == {"B": 2}


def test_a_limit_that_was_lowered_takes_nothing_away_and_grants_nothing_more(db: Database[Any]) -> None:
    ask(db, "A", 4)

    assert ask(db, "A", 1, held=4, limit=2) == 0
    assert held(db) == {"A": 4}
    assert ask(db, "B", 1, limit=2) == 0


def test_what_a_dead_owner_held_is_free(db: Database[Any]) -> None:
    ask(db, "A", 3)
    ask(db, "B", 2)

    release_all(db, "A")

    assert held(db) == {"B": 2}


@pytest.mark.parametrize("holds", [None, "none", 3, {}])
def test_a_document_edited_into_nonsense_is_as_good_as_an_empty_one(db: Database[Any], holds: object) -> None:
    db["control"].insert_one({"_id": "it", "holds": holds})

    assert ask(db, "A", 3) == 3


def test_an_owner_whose_name_looks_like_a_field_is_a_name(db: Database[Any]) -> None:
    assert ask(db, "$_id", 3) == 3
    assert held(db) == {"$_id": 3}


def test_many_who_ask_in_the_same_instant_get_the_limit_together(db: Database[Any]) -> None:
    barrier = Barrier(8)

    def one(number: int) -> int:
        barrier.wait(30)
        return ask(db, f"owner-{number}", 3, limit=10)

    with ThreadPoolExecutor(8) as pool:
        granted = list(pool.map(one, range(8)))

    assert sum(granted) == 10
    assert sum(held(db).values()) == 10


def test_two_executions_of_one_owner_hold_side_by_side(db: Database[Any]) -> None:
    options = {"seq": 1, "held": 0, "limit": 5, "until": T0 + MINUTE, "now": T0}

    granted = [acquire(db, "it", PermitOwner(owner="A", execution=one), wanted=3, **options) for one in ("1", "2")]  # type: ignore[arg-type]

    assert granted == [3, 2]
    release_all(db, "A")
    assert held(db) == {}


@pytest.mark.parametrize(
    "odd",
    [7, {}, {"until": T0 + MINUTE}, {"n": "many", "until": T0 + MINUTE}, {"n": -3, "until": T0 + MINUTE},
     {"n": math.inf, "until": T0 + MINUTE}, {"owner": 7, "n": 1, "until": "later"}],
)  # fmt: skip
def test_an_element_edited_into_nonsense_is_dropped(db: Database[Any], odd: object) -> None:
    db["control"].insert_one({"_id": "it", "holds": [odd]})

    assert ask(db, "A", 3) == 3
    assert held(db) == {"A": 3}
    release_all(db, "B")


def test_letting_go_of_nonsense_is_no_error(db: Database[Any]) -> None:
    db["control"].insert_one({"_id": "it", "holds": {"owner": "A"}})

    release_all(db, "A")
