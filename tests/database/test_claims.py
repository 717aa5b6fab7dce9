"""Claiming: who gets what, in which order, and what a stamp that fails leaves behind."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import MINUTE, add, claim, claim_one, document, lease, stored, whole
from tests.claimers import beaten
from tests.commands import Commands
from tidemill import MissingIndexError
from tidemill.model import LANES, Lane, Malformed, TaskId
from tidemill.store import claims
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import FIRST_CONTENDED_WIDTH, Scan, find_due_keys, find_first_due, list_heads, list_queues
from tidemill.testing import Mongod
from tidemill.testing.clock import LongestJitter

SECOND = timedelta(seconds=1)


def test_a_claimed_task_carries_a_lease_and_one_more_attempt(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now)])
    held = lease(now, owner="invocation-1")

    taken = claims.take(tasks, [task_id], lease=held, now=now)

    [task] = whole(taken.tasks)
    assert (task.status, task.attempts, task.lease) == ("processing", 1, held)
    assert stored(tasks, task_id)["lease"] == {"token": held.token, "owner": "invocation-1", "expires_at": now + MINUTE}


def test_the_order_is_priority_then_due_time_then_id(tasks: Tasks, now: datetime) -> None:
    ids = [ObjectId() for _ in range(4)]
    add(
        tasks,
        [
            document(now, _id=ids[0]),
            document(now, _id=ids[1], due_at=now - SECOND),
            document(now, _id=ids[2], priority=5),
            document(now, _id=ids[3]),
        ],
    )

    assert [task.id for task in claim(tasks, now).tasks] == [ids[2], ids[1], ids[0], ids[3]]


def test_what_is_not_due_yet_is_not_claimed(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, due_at=now + timedelta(milliseconds=1))])

    assert claim(tasks, now).tasks == ()
    assert len(claim(tasks, now + timedelta(milliseconds=1)).tasks) == 1


def test_a_delayed_task_is_claimed_once_when_its_time_has_come(tasks: Tasks, now: datetime) -> None:
    hours = now + timedelta(hours=6)
    add(tasks, [document(now, due_at=hours, next_retry_at=hours)])

    early = [claim(tasks, now + timedelta(minutes=5 * step)).tasks for step in range(72)]

    assert not any(early)
    assert len(claim(tasks, hours).tasks) == 1
    assert claim(tasks, hours).tasks == ()


def test_lanes_and_queues_are_apart(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue="eu"), document(now, lane="retry"), document(now)])

    for queue, lane in [("eu", "fresh"), ("default", "retry"), ("default", "fresh")]:
        [task] = whole(claim(tasks, now, queue=queue, lane=lane).tasks)  # type: ignore[arg-type]
        assert (task.queue, task.lane) == (queue, lane)


def test_a_task_that_was_put_off_between_read_and_stamp_is_left_alone(tasks: Tasks, now: datetime) -> None:
    # Another claimer was quicker, it failed there, and its retry is not due: the stamp must see that.
    [task_id] = add(tasks, [document(now, due_at=now + MINUTE)])

    taken = claims.take(tasks, [task_id], lease=lease(now), now=now)

    assert (taken.tasks, stored(tasks, task_id)["attempts"]) == ((), 0)


def test_a_task_that_another_holds_is_not_taken_over(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now)])
    held = claim_one(tasks, now, owner="A")

    taken = claims.take(tasks, [task_id], lease=lease(now, owner="B"), now=now)

    assert (taken.tasks, taken.lost) == ((), 1)
    assert held.lease is not None
    assert stored(tasks, task_id)["lease"]["token"] == held.lease.token


def test_a_claim_reads_stamps_and_reads_back_whatever_its_size(
    mongod: Mongod, db: Database[Any], now: datetime
) -> None:
    counter = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[counter]) as client:
        tasks = open_tasks(client[db.name])
        add(tasks, [document(now) for _ in range(250)])
        counter.names.clear()

        taken = claim(tasks, now, limit=200)
        commands = list(counter.names)

    assert len(taken.tasks) == 200
    assert commands == ["find", "update", "find"]


def test_a_scan_goes_on_behind_what_it_took(tasks: Tasks, now: datetime) -> None:
    ids = add(tasks, [document(now, priority=priority) for priority in (2, 1, 1, 1, 0, -1)])
    first = claims.claim(tasks, _fresh(), limit=3, lease=lease(now), now=now, rng=random.Random(1))

    second = claims.claim(tasks, first.scan, limit=10, lease=lease(now), now=now, rng=random.Random(1))

    assert [task.id for task in first.tasks] == ids[:3]
    assert [task.id for task in second.tasks] == ids[3:]
    assert second.dry


def test_what_comes_up_behind_a_scan_is_seen_by_a_full_look(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(3)])
    first = claims.claim(tasks, _fresh(), limit=3, lease=lease(now), now=now, rng=random.Random(1))
    claims.release(tasks, whole(first.tasks)[:1], now=now)
    [urgent] = add(tasks, [document(now, priority=9)])

    behind = claims.claim(tasks, first.scan, limit=3, lease=lease(now), now=now, rng=random.Random(1))
    full = claims.claim(tasks, first.scan.from_head(), limit=3, lease=lease(now), now=now, rng=random.Random(1))

    assert behind.tasks == ()
    assert [task.id for task in full.tasks] == [urgent, first.tasks[0].id]


def test_a_claimer_that_comes_too_late_looks_in_a_wider_window(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(100)])
    with beaten(tasks, now, times=1, most=6) as mine:
        late = claims.claim(mine, _fresh(), limit=10, lease=lease(now), now=now, rng=random.Random(1))

    free = [key["_id"] for key in find_due_keys(tasks, late.scan, limit=100, now=now)]
    spread = claims.claim(tasks, late.scan, limit=10, lease=lease(now), now=now, rng=random.Random(1))

    assert (len(late.tasks), late.lost, late.scan.width) == (4, 6, FIRST_CONTENDED_WIDTH)
    assert len(spread.tasks) == 10
    assert spread.scan.passed
    taken = [task.id for task in spread.tasks]
    start = free.index(taken[0])
    assert start > 0
    assert taken == free[start : start + 10], "next to one another: so the next claim examines one key a task"


def test_what_a_claimer_passed_over_it_comes_back_for_when_there_is_no_more(tasks: Tasks, now: datetime) -> None:
    ids = add(tasks, [document(now) for _ in range(300)])
    scan, rng = _wide(32), random.Random(1)
    taken: list[Any] = []

    while not (found := claims.claim(tasks, scan, limit=10, lease=lease(now), now=now, rng=rng)).dry:
        taken += [task.id for task in found.tasks]
        scan = found.scan
    taken += [task.id for task in found.tasks]

    assert taken != ids
    assert sorted(taken) == ids


@pytest.mark.parametrize(("count", "looks"), [(1, 6), (5, 5), (200, 3)])
def test_a_leap_beyond_the_last_task_is_shortened_until_it_finds_one(
    mongod: Mongod, db: Database[Any], now: datetime, count: int, looks: int
) -> None:
    counter = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[counter]) as client:
        tasks = open_tasks(client[db.name])
        add(tasks, [document(now) for _ in range(count)])
        counter.names.clear()

        found = claims.claim(tasks, _wide(128), limit=10, lease=lease(now), now=now, rng=LongestJitter())
        commands = list(counter.names)

    assert found.tasks
    assert found.scan.width <= max(count / 10, 1) * 4
    assert commands == ["find"] * looks + ["update", "find"]


def test_a_task_that_changed_its_lane_since_it_was_read_is_not_taken(tasks: Tasks, now: datetime) -> None:
    fresh, moved, retry = add(tasks, [document(now), document(now), document(now, lane="retry")])
    both = Scan(queue="default", lanes=("fresh", "retry"))

    def grant(retries: int) -> int:
        tasks.update_one({"_id": moved}, {"$set": {"lane": "retry"}})
        return retries

    taken = claims.claim(tasks, both, limit=3, lease=lease(now), now=now, rng=random.Random(1), grant=grant)

    assert {task.id for task in taken.tasks} == {fresh, retry}
    assert taken.retries == (retry,)


def test_in_an_empty_lane_a_wide_scan_is_dry(tasks: Tasks, now: datetime) -> None:
    found = claims.claim(tasks, _wide(128), limit=10, lease=lease(now), now=now, rng=random.Random(1))

    assert (found.tasks, found.dry, found.scan.after, found.scan.passed) == ((), True, None, False)


def test_a_claimer_that_is_alone_takes_all_in_order(tasks: Tasks, now: datetime) -> None:
    ids = add(tasks, [document(now) for _ in range(100)])
    scan, taken = _fresh(), list[Any]()

    while (found := claims.claim(tasks, scan, limit=10, lease=lease(now), now=now, rng=LongestJitter())).tasks:
        taken += [task.id for task in found.tasks]
        scan = found.scan

    assert (taken, scan.width) == (ids, 1)


def test_what_is_to_be_left_alone_is_left_alone_and_read_over(tasks: Tasks, now: datetime) -> None:
    *avoided, other = add(tasks, [document(now - SECOND), document(now - SECOND), document(now)])

    taken = claims.claim(tasks, _fresh(), limit=1, lease=lease(now), now=now, rng=random.Random(1), without=avoided)
    again = claims.claim(tasks, taken.scan, limit=1, lease=lease(now), now=now, rng=random.Random(1), without=avoided)

    assert [task.id for task in taken.tasks] == [other]
    assert (again.tasks, again.dry) == ((), True)
    assert {stored(tasks, one)["status"] for one in avoided} == {"pending"}


@pytest.mark.parametrize(("avoided", "other"), [(1, True), (0.0, False), (math.nan, 7)])
def test_ids_are_left_alone_by_their_bson_not_by_their_python_values(
    tasks: Tasks, now: datetime, avoided: TaskId, other: TaskId
) -> None:
    add(tasks, [document(now - SECOND, _id=avoided), document(now, _id=other)])

    first = find_first_due(tasks, ["default"], lanes=LANES, without=[avoided], now=now)
    taken = claims.claim(tasks, _fresh(), limit=2, lease=lease(now), now=now, rng=random.Random(1), without=[avoided])

    assert first is not None
    assert first["_id"] is other
    assert [task.id for task in taken.tasks] == [other]


@pytest.mark.parametrize("attempts", ["3", None, [3], True, -1, 2**31 - 1, 2**63 - 1, {"n": 1}])
def test_a_document_whose_attempts_cannot_be_counted_does_not_stop_the_stamp(
    tasks: Tasks, now: datetime, attempts: Any
) -> None:
    broken, *good = add(tasks, [document(now, attempts=attempts, due_at=now - SECOND), *(document(now) for _ in "123")])

    taken = claim(tasks, now)

    assert taken.error is None
    assert [task.id for task in taken.tasks] == good
    assert [one.id for one in taken.unclaimable] == [broken]
    assert stored(tasks, broken)["attempts"] == attempts


def test_a_document_without_attempts_is_reported(tasks: Tasks, now: datetime) -> None:
    broken = document(now)
    del broken["attempts"]
    add(tasks, [broken])

    [one] = claim(tasks, now).unclaimable

    assert (one.id, one.problem) == (broken["_id"], "attempts is missing")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"payload": "text"}, "payload"),
        ({"payload": None}, "payload"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"max_retries": "3"}, "max_retries"),
        ({"backoff_policy": {"base_sec": -1}}, "backoff_policy"),
        ({"timeout_sec": 0}, "timeout_sec"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_a_malformed_document_is_claimed_as_such_and_stops_nothing(
    tasks: Tasks, now: datetime, fields: dict[str, Any], problem: str
) -> None:
    add(tasks, [document(now, **fields), document(now), document(now)])

    taken = claim(tasks, now)

    [malformed] = [one for one in taken.tasks if isinstance(one, Malformed)]
    assert malformed.problem.startswith(problem)
    assert malformed.lease is not None
    assert len(taken.tasks) == 3


def test_ids_that_are_no_object_ids_and_fields_nobody_knows_are_fine(tasks: Tasks, now: datetime) -> None:
    ids = ["a string", 7, {"a": 1}]
    add(tasks, [document(now, _id=one, colour="blue") for one in ids])

    taken = whole(claim(tasks, now).tasks)

    assert sorted(map(str, (task.id for task in taken))) == sorted(map(str, ids))


def test_without_the_index_a_claim_says_what_to_run(db: Database[Any], tasks: Tasks, now: datetime) -> None:
    db["tasks"].drop_index("claim")

    with pytest.raises(MissingIndexError, match="tidemill indexes"):
        claim(tasks, now)


def test_the_queues_are_those_of_pending_tasks(tasks: Tasks, now: datetime) -> None:
    add(
        tasks,
        [document(now, queue="eu"), document(now), document(now, queue="us", status="done"), {"status": "pending"}],
    )

    assert sorted(list_queues(tasks), key=str) == [None, "default", "eu"]


def test_the_head_of_each_queue_is_its_first_pending_task_due_or_not(tasks: Tasks, now: datetime) -> None:
    first = document(now, priority=3, due_at=now + MINUTE)
    retry = document(now, queue="eu", lane="retry", priority=9)
    add(tasks, [document(now), first, document(now, lane="retry", priority=9), retry, {"status": "pending"}])

    heads = {head.pop("queue"): head for head in list_heads(tasks)}

    assert heads["default"] == {name: first[name] for name in ("_id", "lane", "priority", "due_at")}
    assert heads["eu"] == {name: retry[name] for name in ("_id", "lane", "priority", "due_at")}
    assert heads.keys() == {"default", "eu", None}


def test_what_comes_first_is_told_with_its_key(tasks: Tasks, now: datetime) -> None:
    later, urgent = document(now, queue="eu"), document(now, queue="eu", priority=3)
    add(tasks, [later, urgent, document(now, queue="us", due_at=now + MINUTE)])

    def first(queue: str, *without: TaskId) -> dict[str, Any] | None:
        return find_first_due(tasks, [queue], lanes=LANES, without=without, now=now)

    key = {name: urgent[name] for name in ("_id", "queue", "lane", "priority", "due_at")}
    assert first("eu") == key
    assert first("eu", urgent["_id"]) == key | {"_id": later["_id"], "priority": 0}
    assert first("us") is None


def test_a_claim_of_a_part_of_what_it_saw_has_not_emptied_the_lane(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(5)])
    wide = Scan(queue="default", lanes=("fresh",), width=4)

    part = claims.claim(tasks, wide, limit=2, lease=lease(now), now=now, rng=random.Random(1))

    assert (len(part.tasks), part.dry) == (2, False)


def _wide(width: float) -> Scan:
    return Scan(queue="default", lanes=("fresh",), width=width, was_contended=True)


def _fresh(lane: Lane = "fresh") -> Scan:
    return Scan(queue="default", lanes=(lane,))
