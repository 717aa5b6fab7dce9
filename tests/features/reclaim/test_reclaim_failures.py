"""One step of reclaim fails, or one document cannot be had: everything else is looked after all the same."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import MINUTE, add, document, stored
from tests.claimers import holds
from tests.commands import Commands
from tests.faults import failing
from tests.fixtures import ManualClock
from tests.keepers import a_keeper, lost, reclaimed
from tidemill import UnavailableError
from tidemill.control.semaphores import PermitOwner, acquire
from tidemill.control.task_types import Directory, resolve_task_policy
from tidemill.model import RetryPolicy, Task
from tidemill.policy.retry import DEFAULT
from tidemill.reclaim import BATCH_SIZE, reclaim
from tidemill.store import claims
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.counts import GAUGES
from tidemill.testing import Mongod

INTERRUPTED = 11601
FOREIGN = {"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}
MORE = BATCH_SIZE + 10


def one_of_each(tasks: Tasks, now: datetime) -> None:
    """Something to do for every step."""
    held = {"token": "t", "owner": "dead", "expires_at": now + MINUTE}
    add(
        tasks,
        [
            lost(now),
            lost(now, lease=None),
            document(now, status="processing", attempts=1, lease=held),
            document(now, expires_at=now),
            dict(FOREIGN),
        ],
    )


def test_lost_tasks_that_nobody_registered_cost_no_look_each(
    mongod: Mongod, db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    db["task_types"].insert_one({"_id": "noop"})
    add(tasks, [lost(now, crashes=1, name="gone") for _ in range(BATCH_SIZE)])
    noted = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[noted]) as client:
        directory = Directory(client[db.name])
        report = reclaimed(tasks, clock, policy=lambda task: resolve_task_policy(task, directory, deployment=DEFAULT))

    assert report["reclaimed"] == BATCH_SIZE
    assert noted.names.count("find") == 2  # types and queues


def test_however_long_judging_takes_what_was_judged_is_taken_back(
    tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    seconds = iter(range(10**9))
    add(tasks, [lost(now, crashes=1) for _ in range(BATCH_SIZE)])
    settled: list[int] = []

    def slow(_task: Task) -> RetryPolicy:
        settled.append(BATCH_SIZE - tasks.count_documents({"status": "processing"}))
        return DEFAULT

    reclaim_context = a_keeper(tasks, clock, policy=slow, monotonic=lambda: next(seconds) / 10)
    report = reclaim(reclaim_context, until=10**9)

    assert report["reclaimed"] == BATCH_SIZE
    assert len(set(settled)) > 2


@pytest.mark.parametrize(
    ("index", "report"),
    [
        ("none", {"reclaimed": 3, "expired": 1, "adopted": 1, "errors": 0}),
        ("leases", {"reclaimed": 2, "expired": 1, "adopted": 1, "errors": 2}),  # of the dead owner, by its name
        ("owners", {"reclaimed": 2, "expired": 1, "adopted": 1, "errors": 1}),
        ("expiry", {"reclaimed": 3, "expired": 0, "adopted": 1, "errors": 1}),
        ("claim", {"reclaimed": 3, "expired": 1, "adopted": 0, "errors": 2}),
    ],
)
def test_a_step_that_fails_keeps_no_other_from_being_done(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime, *, index: str, report: dict[str, int]
) -> None:
    one_of_each(tasks, now)
    if index != "none":
        db["tasks"].drop_index(index)

    done = reclaimed(tasks, clock, dead_owner="dead")

    assert {name: done[name] for name in report} == report
    assert (set(GAUGES) <= set(done)) == (index != "claim")


def test_a_step_that_fails_is_not_tried_again_in_the_same_run(
    mongod: Mongod, db: Database[Any], clock: ManualClock, now: datetime
) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, appname=db.name, event_listeners=[commands]) as client:
        mine = open_tasks(client[db.name])
        one_of_each(mine, now)
        with failing(mine, "aggregate", times=100, errorCode=INTERRUPTED):
            report = reclaimed(mine, clock)

    assert (report["errors"], report["expired"], report["reclaimed"]) == (6, 1, 0)
    assert commands.names.count("aggregate") == 6


def test_where_nothing_succeeds_it_says_why(mine: Tasks, clock: ManualClock) -> None:
    with failing(mine, "aggregate", "find", times=100, errorCode=INTERRUPTED), pytest.raises(UnavailableError):
        reclaimed(mine, clock)


def test_statistics_that_cannot_be_written_are_not_worth_the_report(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    db.command("collMod", "queue_stats", validator={"lost": 0})
    one_of_each(tasks, now)

    report = reclaimed(tasks, clock)

    assert (report["reclaimed"], report["errors"]) == (2, 1)
    assert set(GAUGES) <= set(report)


@pytest.mark.parametrize("dead_owner", [None, "dead"])
def test_lost_tasks_that_cannot_be_written_to_keep_no_other_waiting(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime, dead_owner: str | None
) -> None:
    add(tasks, [lost(now, note=3) for _ in range(MORE)])
    good = add(tasks, [lost(now, note=n % 3) for n in range(40)])
    db.command("collMod", "tasks", validator={"note": {"$ne": 3}})

    report = reclaimed(tasks, clock, dead_owner=dead_owner)

    assert (report["reclaimed"], report["write_rejected"], report["errors"]) == (40, MORE, 0)
    assert {stored(tasks, one)["status"] for one in good} == {"pending"}


def test_strays_that_cannot_be_written_to_keep_no_other_waiting(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    foreign = {name: value for name, value in FOREIGN.items() if name != "attempts"}
    for note, count in ((3, MORE), (0, 40)):
        add(tasks, [document(now, expires_at=now, note=note) for _ in range(count)])
        add(tasks, [FOREIGN | {"note": note} for _ in range(count)])
        add(tasks, [foreign | {"note": note} for _ in range(count)])
    db.command("collMod", "tasks", validator={"note": {"$ne": 3}})

    report = reclaimed(tasks, clock)

    assert (report["expired"], report["adopted"], report["quarantined"]) == (40, 40, 40)
    assert (report["write_rejected"], report["errors"]) == (3 * MORE, 0)


@pytest.mark.parametrize(
    "scraps",
    [
        {"expires_at": -1},
        {"expires_at": -1, "token": 5, "owner": "o"},
        {"expires_at": -1, "token": "t"},
        {"expires_at": -1, "token": ["t"], "owner": "o"},
        {"expires_at": 1, "owner": "dead"},
    ],
    ids=str,
)
def test_what_stands_for_a_lease_and_is_none_keeps_nobody_waiting(
    tasks: Tasks, clock: ManualClock, now: datetime, scraps: dict[str, Any]
) -> None:
    lease = scraps | {"expires_at": now + scraps["expires_at"] * MINUTE}
    add(tasks, [lost(now, lease=lease) for _ in range(MORE)])
    add(tasks, [lost(now, lease=lease, attempts="x")])
    add(tasks, [lost(now) for _ in range(40)])

    report = reclaimed(tasks, clock, dead_owner="dead")

    assert (report["reclaimed"], report["failed"], report["lost_race"]) == (MORE + 40, 1, 0)
    assert tasks.count_documents({"status": "processing"}) == 0
    assert tasks.count_documents({"lease": {"$exists": True}}) == 0


def test_the_first_loss_asks_for_no_policy_and_a_later_one_waits_for_its_own(
    tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    asked: list[Task] = []
    first = add(tasks, [lost(now) for _ in range(3)])
    later = add(tasks, [lost(now, crashes=1) for _ in range(3)])

    def away(task: Task) -> RetryPolicy:
        asked.append(task)
        raise UnavailableError("not now")

    report = reclaimed(tasks, clock, policy=away)

    assert (report["reclaimed"], report["errors"], len(asked)) == (3, 1, 1)
    assert {stored(tasks, one)["status"] for one in first} == {"pending"}
    assert {stored(tasks, one)["status"] for one in later} == {"processing"}
    assert reclaimed(tasks, clock)["reclaimed"] == 3


def test_a_lease_that_is_extended_before_it_is_taken_back_is_left_alone(
    tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    [task_id] = add(tasks, [lost(now, crashes=1)])

    def meanwhile(task: Task) -> RetryPolicy:
        assert claims.extend(tasks, [task], until=now + MINUTE) == []
        return DEFAULT

    report = reclaimed(tasks, clock, policy=meanwhile)

    assert (report["reclaimed"], report["lost_race"]) == (0, 1)
    assert stored(tasks, task_id)["status"] == "processing"


@pytest.mark.parametrize(("index", "left"), [("owners", 1), ("none", 0)])
def test_a_dead_owner_keeps_its_permits_while_it_may_still_hold_tasks(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime, *, index: str, left: int
) -> None:
    holder = PermitOwner(owner="dead", execution="1")
    acquire(db, "retries:default", holder, seq=1, held=0, wanted=1, limit=1, until=now + MINUTE, now=now)
    one_of_each(tasks, now)
    if index != "none":
        db["tasks"].drop_index(index)

    reclaimed(tasks, clock, dead_owner="dead")

    assert holds(db) == left


def test_what_was_claimed_again_is_no_longer_the_dead_owners(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    current = {"token": "t2", "owner": "living", "expires_at": now + MINUTE}
    [task_id] = add(tasks, [document(now, status="processing", attempts=1, lease=current, settled_by="t1")])
    before = stored(tasks, task_id)

    assert reclaimed(tasks, clock, dead_owner="dead")["reclaimed"] == 0
    assert stored(tasks, task_id) == before


def test_only_what_will_be_run_again_counts_as_reclaimed(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    add(tasks, [lost(now), lost(now, cancel_requested_at=now), lost(now, attempts="x")])
    add(tasks, [lost(now, crashes=1, max_retries=0), lost(now, crashes=1)])

    report = reclaimed(tasks, clock)

    assert (report["reclaimed"], report["cancelled"], report["failed"]) == (2, 1, 2)


def test_the_payloads_of_lost_tasks_are_not_read(
    db: Database[Any], tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    large = {"text": "x" * 1_000_000}
    ids = add(tasks, [lost(now, payload=large) for _ in range(5)])
    ids += add(tasks, [FOREIGN | {"payload": large} for _ in range(5)])
    db.command("profile", 2)

    report = reclaimed(tasks, clock)

    db.command("profile", 0)
    assert (report["reclaimed"], report["adopted"]) == (5, 5)
    assert max(one.get("responseLength", 0) for one in db["system.profile"].find()) < 100_000
    assert all(stored(tasks, one)["payload"] == large for one in ids)


@pytest.mark.parametrize("payload", ["text", None, [1], 5])
@pytest.mark.parametrize("make", [lost, document])
def test_a_payload_that_is_none_is_malformed_without_being_read(
    tasks: Tasks, clock: ManualClock, now: datetime, payload: object, make: Any
) -> None:
    [task_id] = add(
        tasks, [make(now, payload=payload, due_at="soon") if make is document else make(now, payload=payload)]
    )

    reclaimed(tasks, clock)

    found = stored(tasks, task_id)
    assert (found["status"], found["reason"], found["payload"]) == ("failed", "malformed", payload)


def test_a_lost_task_without_a_payload_says_so(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    without = lost(now)
    del without["payload"]
    [task_id] = add(tasks, [without])

    reclaimed(tasks, clock)

    assert stored(tasks, task_id)["error"]["message"] == "payload is missing"
