"""What a claim costs the server, in keys examined and entries stepped over: counted, not timed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, claim, document, lease
from tests.claimers import a_claimer
from tests.costs import explain, skipped, stages
from tests.databases import make
from tests.fixtures import T0
from tidemill import indexes
from tidemill.model import Succeeded
from tidemill.store import claims, settle
from tidemill.store.connection import open_tasks
from tidemill.store.scan import Key, Scan
from tidemill.store.settle import Settlement
from tidemill.testing import Mongod

BATCH = 100


@pytest.fixture
def db(client: MongoClient[dict[str, Any]]) -> Database[dict[str, Any]]:
    """A database that nobody had before: its indexes hold nothing of earlier tests that has to be stepped over."""
    return make(client)


@pytest.fixture(scope="module")
def crowded(mongod: Mongod) -> Iterator[Database[dict[str, Any]]]:
    """100,000 finished, 100,000 delayed and 10,000 due tasks."""
    now, tomorrow = T0, T0 + timedelta(days=1)
    finished = document(now, status="done", retain_from=tomorrow)
    delayed = document(now, due_at=tomorrow, next_retry_at=tomorrow)
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        db = client["crowded"]
        multiply(db, [finished] * 10 + [delayed] * 10 + [document(now)], by=10_000)
        indexes.create(db)
        yield db


def multiply(db: Database[dict[str, Any]], tasks: Iterable[Mapping[str, Any]], *, by: int) -> None:
    """Have the server make so many of each, which is quicker than sending them."""
    copies: list[dict[str, Any]] = [{"$set": {"_id": {"$range": [0, by]}}}, {"$unwind": "$_id"}, {"$unset": "_id"}]
    db.aggregate([{"$documents": list(tasks)}, *copies, {"$out": "tasks"}])


def test_a_claim_examines_one_key_a_task_and_fetches_and_sorts_nothing(  # F86
    crowded: Database[dict[str, Any]],
) -> None:
    now = T0

    plan = explain(crowded, Scan(queue="default", lanes=("fresh",)), limit=BATCH, now=now)

    assert plan["totalKeysExamined"] == BATCH
    assert plan["totalDocsExamined"] == 0
    assert plan["nReturned"] == BATCH
    assert stages(plan["executionStages"]) == {"LIMIT", "PROJECTION_COVERED", "IXSCAN"}


def test_a_later_claim_examines_no_more_than_the_keys_at_its_seams(crowded: Database[dict[str, Any]]) -> None:
    now = T0
    tasks = open_tasks(crowded)
    scan = Scan(queue="default", lanes=("fresh",))
    first = claims.claim(tasks, scan, limit=BATCH, lease=lease(now), now=now, rng=random.Random(1))

    plan = explain(crowded, first.scan, limit=BATCH, now=now)

    assert len(first.tasks) == BATCH
    assert plan["totalKeysExamined"] <= BATCH + 3
    assert plan["totalDocsExamined"] == 0
    assert stages(plan["executionStages"]).isdisjoint({"FETCH", "SORT", "COLLSCAN"})


def test_both_lanes_in_one_order_cost_one_key_a_task_and_are_merged_without_a_sort(
    crowded: Database[dict[str, Any]],
) -> None:
    now = T0
    both = Scan(queue="default", lanes=("fresh", "retry"))
    later = replace(both, after=Key(priority=0, due_at=now - timedelta(hours=1), id=ObjectId()))

    for scan, seams in ((both, 1), (later, 3)):
        plan = explain(crowded, scan, limit=BATCH, now=now)

        assert plan["totalKeysExamined"] <= BATCH + seams
        assert plan["totalDocsExamined"] == 0
        assert stages(plan["executionStages"]).isdisjoint({"FETCH", "SORT", "COLLSCAN"})


def test_between_two_looks_at_the_head_a_drain_steps_over_next_to_nothing(
    db: Database[dict[str, Any]], now: datetime
) -> None:
    tasks = open_tasks(db)
    total = 10_000
    add(tasks, [document(now) for _ in range(total)])
    claimer = a_claimer(tasks, monotonic=count(0.0, 0.0001).__next__)  # the whole drain takes less than one second
    before = stepped_over = skipped(db)
    drained = 0

    while claimed := claimer.claim(free=BATCH, slots=BATCH, now=now).tasks:
        stepped_over = skipped(db) - before
        done = [Settlement(task=task, outcome=Succeeded(result=None)) for task in claimed]
        drained += len(settle.settle(tasks, done, now=now).settled)

    assert drained == total
    assert stepped_over <= 100, "the last claim, which finds nothing and looks from the head, is not counted"


def test_the_looks_of_a_second_step_over_what_was_claimed_twice_and_claims_between_them_over_nothing(
    db: Database[dict[str, Any]], now: datetime
) -> None:
    tasks, dead = open_tasks(db), 500
    add(tasks, [document(now) for _ in range(dead + 3 * BATCH)])
    claim(tasks, now, limit=dead)
    moment = [0.0]
    claimer = a_claimer(tasks, monotonic=lambda: moment[0])

    def stepped_over() -> int:
        before = skipped(db)
        held = claimer.claim(free=BATCH, slots=BATCH, now=now, idle=moment[0] == 0).tasks
        assert len(held) == BATCH
        return skipped(db) - before

    assert stepped_over() <= 2 * dead + 50, "once for the queues, once for what comes first"
    moment[0] = 0.5
    assert stepped_over() <= 50
    moment[0] = 1.05
    assert stepped_over() <= 2 * (dead + 2 * BATCH) + 50, "once for the queues, once from the head"
