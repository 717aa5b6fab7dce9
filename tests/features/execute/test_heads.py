"""What a claim has seen to come first: a place to start from, and never one to miss something behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import Code, ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document
from tests.claimers import a_claimer, numbers
from tests.costs import skipped
from tests.databases import make
from tidemill.model import Malformed, Task
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import Scan, find_due_keys, list_heads, read_key

HOUR = timedelta(hours=1)


@pytest.fixture
def new_db(client: MongoClient[dict[str, Any]]) -> Database[dict[str, Any]]:
    """A database without entries of tasks that were claimed before."""
    return make(client)


def taken(tasks: Tasks, now: datetime, *, idle: bool = True, **choices: Any) -> Sequence[Task | Malformed]:
    """What a claimer brings that has just come: it looks at the queues, and at their heads."""
    return a_claimer(tasks, **choices).claim(free=10, slots=10, now=now, idle=idle).tasks


def drained(tasks: Tasks, now: datetime, *, idle: bool = True) -> list[Task | Malformed]:
    """What a claimer brings until it knows that nothing is left, as an execution asks it."""
    claimer = a_claimer(tasks)
    held: list[Task | Malformed] = []
    is_thorough = False
    while True:
        claimed = claimer.claim(free=10, slots=10, now=now, idle=idle, thorough=is_thorough)
        if claimed.exhausted:
            return held
        assert claimed.tasks or not is_thorough
        is_thorough = not claimed.tasks
        held += claimed.tasks


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize(
    "first",
    [
        {"due_at": "2020-01-01"},
        {"due_at": None, "priority": 9},
        {"priority": "high"},
        {"priority": None},
        {"priority": float("nan")},
        {"priority": True},
        {"priority": 2**62},
        {"lane": {"a": 1}},
        {"lane": ["fresh"]},
        {"lane": "another"},
        {"_id": {"a": 1}, "priority": 1},
        {"due_at": datetime(9999, 1, 1), "priority": 1},  # noqa: DTZ001 - a shell writes it
    ],
)
@pytest.mark.parametrize("selection", ["weighted", "retries_first", "oldest_first"])
def test_whatever_comes_first_in_the_index_hides_nothing(
    tasks: Tasks, now: datetime, first: dict[str, Any], selection: str, *, idle: bool
) -> None:
    add(tasks, [document(now, payload={"n": -1}) | {"_id": ObjectId()} | first])
    add(tasks, [document(now, lane=lane, payload={"n": n}) for n, lane in enumerate(("fresh", "fresh", "retry"))])

    found = numbers(taken(tasks, now, idle=idle, selection=selection))

    assert {0, 1, 2} <= set(found)


@pytest.mark.parametrize("idle", [True, False])
def test_what_a_look_found_keeps_the_order(tasks: Tasks, now: datetime, *, idle: bool) -> None:
    order = [(3, 1), (3, 2), (2, 0), (0, 0), (0, 5), (-1, 0)]
    late = [document(now, priority=p, due_at=now - HOUR + s * HOUR / 10, payload={"n": (p, s)}) for p, s in order]
    add(tasks, late[::-1])

    assert [tuple(n) for n in numbers(taken(tasks, now, idle=idle))] == order


@pytest.mark.parametrize("idle", [True, False])
def test_what_is_delayed_and_goes_first_is_passed_over(tasks: Tasks, now: datetime, *, idle: bool) -> None:
    add(tasks, [document(now, priority=5, due_at=now + HOUR, next_retry_at=now + HOUR, payload={"n": 9})])
    add(tasks, [document(now, payload={"n": n}) for n in range(3)])

    assert sorted(numbers(taken(tasks, now, idle=idle))) == [0, 1, 2]


def test_a_look_from_a_head_that_is_not_due_reads_none_that_is_not(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, priority=5, due_at=now + HOUR), document(now), document(now, due_at=now + HOUR)])
    [head] = list_heads(tasks)
    scan = Scan(queue="default", lanes=("fresh",), head=read_key(head))

    assert [key["due_at"] for key in find_due_keys(tasks, scan, limit=9, now=now)] == [now]


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize(
    "last", [{"priority": None}, {"priority": float("nan")}, {"priority": "high"}, {"lane": "retry"}]
)
def test_what_comes_last_is_found_behind_a_head_that_is_not_due(
    tasks: Tasks, now: datetime, last: dict[str, Any], *, idle: bool
) -> None:
    [_, task_id] = add(tasks, [document(now, due_at=now + HOUR, priority=2), document(now) | last])

    assert [one.id for one in drained(tasks, now, idle=idle)] == [task_id]


@pytest.mark.parametrize("queues", [(), ("eu",)])
@pytest.mark.parametrize("queue", [["eu"], Code("eu"), {"a": 1}, 7])
def test_a_queue_that_is_none_stops_no_claim(
    tasks: Tasks, now: datetime, queue: object, queues: tuple[str, ...]
) -> None:
    add(tasks, [document(now, queue=queue), document(now, queue="eu", priority=10, due_at=now + HOUR)])
    add(tasks, [document(now, queue="eu", payload={"n": 1})])

    assert 1 in numbers(taken(tasks, now, queues=queues))


def test_of_one_time_all_kinds_of_ids_are_found(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) | {"_id": one} for one in (ObjectId(), now, 7, "seven", {"a": 1})])

    assert len(drained(tasks, now)) == 5


def test_a_claimer_that_comes_steps_over_what_was_claimed_once(new_db: Database[dict[str, Any]], now: datetime) -> None:
    tasks = open_tasks(new_db)
    add(tasks, [document(now) for _ in range(1200)])
    claimer = a_claimer(tasks)
    for _ in range(10):
        claimer.claim(free=100, slots=100, now=now)
    before = skipped(new_db)

    assert len(taken(tasks, now)) == 10

    assert skipped(new_db) - before < 1.5 * 1000
