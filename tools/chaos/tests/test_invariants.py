"""Each invariant is broken once, by hand; a day in the life of tasks breaks none."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import add, claim_one, document, lease
from tests.buried import failed, letter
from tests.features.conftest import Bench
from tests.fixtures import T0, ManualClock
from tidemill import Fail
from tidemill.store.connection import Tasks
from tools.chaos.invariants import broken

X = ObjectId()
SECOND = timedelta(seconds=1)


def done(now: datetime, **fields: Any) -> dict[str, Any]:
    return document(now, **({"status": "done", "finished_at": now, "retain_from": now} | fields))


def test_tasks_in_every_state_are_well(db: Database[Any], dead: Tasks, clock: ManualClock) -> None:
    bench, now = Bench(db=db, clock=clock), clock.now()

    def fails(_payload: Any, _ctx: Any) -> None:
        raise Fail("no")

    bench.task("fails")(fails)
    add(bench.tasks, [document(now), document(now, name="fails"), document(now, queue="other")])
    bench.execute(queues=["default"])
    add(bench.tasks, [document(now), failed(now, attempts=1)])
    claim_one(bench.tasks, now)
    add(dead, [letter(now), letter(now, redriven_at=now)])
    ids = [raw["_id"] for raw in bench.db["tasks"].find()]

    assert broken(bench.db, accepted=ids, now=now) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"lease": {"token": "t", "owner": "A", "expires_at": T0}},
            "is pending, and there is a lease",
        ),
        ({"status": "done"}, "is done, finished at None"),
        ({"finished_at": T0}, "is pending, finished at"),
        ({"retain_from": T0}, "is pending, and retained from"),
        ({"status": "failed", "finished_at": T0}, "is failed, for no reason"),
        ({"next_retry_at": T0 + SECOND}, "is pending, due at two times"),
        ({"attempts": 1}, "is pending with 1 attempts, where its log tells of 0"),
    ],
)
def test_a_task_that_is_not_well_is_told(
    db: Database[Any], tasks: Tasks, now: datetime, fields: dict[str, Any], said: str
) -> None:
    add(tasks, [document(now, _id=X, **fields)])

    [sentence, *_] = broken(db, now=now)

    assert sentence.startswith(f"{X!r} {said}")


def test_a_task_that_is_nowhere_or_in_two_places_is_told(
    db: Database[Any], tasks: Tasks, dead: Tasks, now: datetime
) -> None:
    add(tasks, [done(now, _id=X)])
    add(dead, [letter(now, _id=X), letter(now, _id="twice"), letter(now, _id="twice", redrives=1)])

    told = broken(db, accepted=[X, "lost"], now=now)

    assert told == [
        "'lost' was accepted and is nowhere",
        "'twice' is dead more than once: [0, 1]",
        f"{X!r} is done and a dead letter",
    ]


def test_what_is_half_way_is_well_but_not_at_rest(db: Database[Any], tasks: Tasks, dead: Tasks, now: datetime) -> None:
    add(
        tasks,
        [
            failed(now, _id=X, attempts=1),
            document(now, _id="due"),
            document(now, _id="held", status="processing", lease=asdict(lease(now)), attempts=1),
        ],
    )
    add(dead, [letter(now, _id=X), letter(now, _id="coming back", redrive_started_at=now)])

    assert broken(db, accepted=[X, "coming back"], now=now) == []
    assert broken(db, now=now + SECOND, at_rest=True) == [
        f"{X!r} is failed and a dead letter",
        f"{X!r} has failed and was not moved to the dead letters",
        "'due' is still due",
        "'held' is still processing",
        "the redrive of {'task': 'coming back', 'redrives': 0} was started and never ended",
    ]


def test_what_no_claim_and_no_sweep_sees_is_told(
    db: Database[Any], tasks: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tasks, [document(now, _id=X, lane="slow"), document(now, _id="seen", queue=7)])
    monkeypatch.setattr("tidemill.store.recovery._TYPES_BUT_TEXT", ["bool"])

    assert broken(db, now=now) == ["'seen' is pending, and no claim and no sweep will ever see it"]
