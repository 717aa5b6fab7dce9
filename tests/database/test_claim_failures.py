"""The stamp fails before, half-way through and after its effect: nothing waits for a lease, nothing is charged."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import add, claim, document, lease, stored, whole
from tests.faults import failing
from tests.handlers.conftest import Watch
from tidemill import UnavailableError
from tidemill.store import claims
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import Scan
from tidemill.testing import Mongod

NOT_WRITABLE_PRIMARY = 10107
INTERRUPTED = 11601


@pytest.mark.parametrize(
    "how",
    [
        {"closeConnection": True},
        {"errorCode": NOT_WRITABLE_PRIMARY},
        {"errorCode": INTERRUPTED},
        {"errorCode": 2, "errorLabels": []},
    ],
)
def test_a_stamp_that_fails_before_its_effect_leaves_everything_as_it_was(
    tasks: Tasks, mine: Tasks, now: datetime, how: dict[str, Any]
) -> None:
    ids = add(tasks, [document(now) for _ in range(5)])

    with failing(mine, "update", **how):
        failed = claim(mine, now)
    repeated = claims.claim(mine, failed.scan, limit=100, lease=lease(now), now=now, rng=random.Random(1))

    assert (failed.tasks, failed.unresolved) == ((), False)
    assert failed.error is not None
    assert [task.id for task in repeated.tasks] == ids
    assert [task.attempts for task in whole(repeated.tasks)] == [1] * 5


def test_a_stamp_whose_confirmation_fails_after_its_effect_is_a_claim(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(5)])

    with failing(mine, "update", writeConcernError={"code": 64, "errmsg": "waiting for replication timed out"}):
        taken = claim(mine, now)

    assert taken.error is not None
    assert [task.attempts for task in whole(taken.tasks)] == [1] * 5


def test_what_is_read_back_after_a_failure_is_what_no_change_of_primary_takes_back(
    mongod: Mongod, tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now)])
    watch, name = Watch(), tasks.database.name
    with MongoClient[dict[str, Any]](mongod.uri, appname=name, tz_aware=True, event_listeners=[watch]) as client:
        mine = open_tasks(client[name])
        with failing(mine, "update", writeConcernError={"code": 64, "errmsg": "waiting for replication timed out"}):
            claim(mine, now)

    [read_back] = [sent for command, sent in watch.sent if command == "find"][-1:]
    assert read_back["readConcern"]["level"] == "majority"
    assert "afterClusterTime" in read_back["readConcern"]  # of all that the primary had by then


def test_a_stamp_that_fails_half_way_claims_its_first_half(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    ids = add(tasks, [document(now, note=number) for number in range(6)])
    # A rule that one document breaks: the server stamps those before it, refuses it, and stops.
    tasks.database.command("collMod", "tasks", validator={"note": {"$ne": 3}})

    first = claim(mine, now)

    assert [task.id for task in first.tasks] == ids[:3]
    assert [task.attempts for task in whole(first.tasks)] == [1] * 3
    assert [stored(tasks, one)["attempts"] for one in ids[3:]] == [0] * 3


def test_a_document_that_cannot_be_stamped_is_singled_out_and_the_others_are_claimed(
    tasks: Tasks, mine: Tasks, now: datetime
) -> None:
    ids = add(tasks, [document(now, note=number) for number in range(40)])
    tasks.database.command("collMod", "tasks", validator={"note": {"$ne": 3}})
    scan = Scan(queue="default", lanes=("fresh",))
    claimed: list[Any] = []
    unclaimable: list[Any] = []

    for _ in range(20):
        taken = claims.claim(mine, scan, limit=40, lease=lease(now), now=now, rng=random.Random(1))
        scan = taken.scan
        claimed += [task.id for task in taken.tasks]
        unclaimable += [one.id for one in taken.unclaimable]

    assert unclaimable == [ids[3]]
    assert sorted(claimed) == sorted(set(ids) - {ids[3]})


def test_a_stamp_that_was_never_read_back_is_given_back_by_its_token(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    ids = add(tasks, [document(now) for _ in range(5)])
    held = lease(now, owner="A")
    claims.take(mine, ids[:1], lease=lease(now, owner="A"), now=now)

    with failing(mine, "find", times=4, closeConnection=True):
        taken = claims.take(mine, ids[1:], lease=held, now=now)
    given_back = claims.release_unconfirmed(mine, owner="A", tokens=[held.token], started=[ids[1]], now=now)

    assert (taken.tasks, taken.unresolved, given_back) == ((), True, 3)
    assert [stored(tasks, one)["status"] for one in ids] == ["processing", "processing", *["pending"] * 3]
    assert [stored(tasks, one)["attempts"] for one in ids] == [1, 1, 0, 0, 0]


def test_ids_that_cannot_be_read_are_an_error_that_changed_nothing(tasks: Tasks, mine: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now)])

    with failing(mine, "find", times=4, closeConnection=True), pytest.raises(UnavailableError):
        claim(mine, now)

    assert stored(tasks, task_id)["status"] == "pending"
