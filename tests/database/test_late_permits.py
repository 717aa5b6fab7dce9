"""Updates of permits that arrive late, twice or in another order than their numbers were computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest
from bson import Int64, MaxKey, Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from tests.commands import CapturedUpdates
from tests.fixtures import T0
from tidemill.control.fleet import ExecutorSlots, load_fleet_status
from tidemill.control.semaphores import PermitOwner, acquire
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LIMIT = 10
A, B = PermitOwner(owner="A", execution="A-1"), PermitOwner(owner="B", execution="B-1")
SLOT = "executor_slots"


@pytest.fixture
def captured(mongod: Mongod, db: Database[Any]) -> Iterator[tuple[Database[Any], CapturedUpdates]]:
    """The database through a client whose updates are captured."""
    listener = CapturedUpdates()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[listener]) as client:
        yield client[db.name], listener


def ask(db: Database[Any], *, seq: int, held: int, wanted: int = 0, owner: PermitOwner = A, **more: Any) -> int:
    """Set the permits of *owner*, and return how many it has then."""
    options: dict[str, Any] = {"limit": LIMIT, "now": T0, "until": T0 + MINUTE} | more
    return acquire(db, "it", owner, seq=seq, held=held, wanted=wanted, **options)


def entries(db: Database[Any], name: str = "it") -> list[tuple[str, int, int]]:
    """Owner, number and seq of each stored entry."""
    document = db["control"].find_one({"_id": name}) or {"holds": []}
    return [(one["owner"], one["n"], one["seq"]) for one in document["holds"]]


def retries(db: Database[Any], *, now: datetime = T0) -> list[tuple[str, int]]:
    """The holders that readers see."""
    db["control"].aggregate([{"$match": {"_id": "it"}}, {"$set": {"_id": "retries:it"}}, {"$merge": "control"}])
    return [(one.owner, one.n) for one in load_fleet_status(db, queue="it", now=now).retries]


def test_a_claim_and_a_settle_swapped_on_the_wire_leave_the_number_of_the_later_one(db: Database[Any]) -> None:
    ask(db, seq=1, held=0, wanted=10)  # ten are leased

    assert ask(db, seq=3, held=7) == 7  # a settle, computed after
    assert ask(db, seq=2, held=10, wanted=5) == 7  # this claim

    assert entries(db) == [("A", 7, 3)]


@pytest.mark.parametrize("order", list(permutations([(1, 0, 4), (2, 4, 3), (3, 2, 0), (4, 2, 1), (5, 0, 0)], 3)))
def test_the_newest_number_wins_whatever_the_order(db: Database[Any], order: Any) -> None:
    for seq, held, wanted in order:
        ask(db, seq=seq, held=held, wanted=wanted)

    seq, held, wanted = max(order)
    assert entries(db) == [("A", held + wanted, seq)]


def test_a_settle_that_releases_all_is_not_undone_by_its_claim(db: Database[Any]) -> None:
    assert ask(db, seq=2, held=0) == 0
    assert ask(db, seq=1, held=0, wanted=10) == 0

    assert ask(db, owner=B, seq=1, held=0, wanted=10) == 10
    assert retries(db) == [("B", 10)]


@pytest.mark.parametrize("later", [10 * SECOND, MINUTE - SECOND])
def test_an_update_that_is_applied_ten_seconds_late_changes_nothing(
    captured: tuple[Database[Any], CapturedUpdates], db: Database[Any], later: timedelta
) -> None:
    mine, listener = captured
    ask(mine, seq=1, held=0, wanted=8)
    [late] = listener.updates
    db["control"].delete_many({})  # so that it has not been applied yet
    ask(db, seq=2, held=0)
    ask(db, owner=B, seq=1, held=0, wanted=3, now=T0 + later, until=T0 + later + MINUTE)

    answer = db.command(late)

    assert entries(db) == [("A", 0, 2), ("B", 3, 1)]
    assert [(one["owner"], one["n"], one["seq"]) for one in answer["value"]["holds"]] == entries(db)


@pytest.mark.parametrize(("held", "wanted"), [(0, 4), (2, 3), (2, 0), (0, 0)])
def test_a_repeat_changes_nothing_though_it_could_have_more_by_now(db: Database[Any], held: int, wanted: int) -> None:
    ask(db, seq=1, held=0, wanted=2)
    ask(db, owner=B, seq=1, held=0, wanted=7)
    first = ask(db, seq=2, held=held, wanted=wanted)
    ask(db, owner=B, seq=2, held=0)
    before = db["control"].find_one({"_id": "it"})

    again = ask(db, seq=2, held=held, wanted=wanted, until=T0 + 2 * MINUTE)

    assert again == first
    assert db["control"].find_one({"_id": "it"}) == before


def test_a_limit_of_ten_never_lets_fifteen_run(db: Database[Any]) -> None:
    """Two executions compute in order and arrive in any: what each may run is what it was told, less what ended."""
    rng = random.Random(20260801)
    for _ in range(40):
        db["control"].delete_many({})
        running = {A: 0, B: 0}
        seqs = {A: 0, B: 0}
        late: list[dict[str, Any]] = []
        for _ in range(12):
            owner = rng.choice([A, B])
            seqs[owner] += 1
            update: dict[str, Any] = {
                "owner": owner,
                "seq": seqs[owner],
                "held": running[owner],
                "wanted": rng.randrange(8),
            }
            if rng.random() < 0.3:  # no answer: it may be applied later, and what it granted is not used
                late.append(update)
                continue
            running[owner] = max(ask(db, **update), running[owner])
            assert sum(running.values()) <= LIMIT
            running[owner] -= rng.randint(0, running[owner])
            seqs[owner] += 1
            assert ask(db, owner=owner, seq=seqs[owner], held=running[owner]) == running[owner]
            for old in rng.sample(late, rng.randint(0, len(late))):
                ask(db, **old)
            stored = dict(retries(db))
            assert all(stored.get(one.owner, 0) >= running[one] for one in running)


def test_executions_do_not_disturb_the_numbers_of_each_other(db: Database[Any]) -> None:
    again = PermitOwner(owner="A", execution="A-2")
    ask(db, seq=9, held=2)

    assert [ask(db, owner=owner, seq=1, held=0, wanted=3) for owner in (B, again)] == [3, 3]
    assert [ask(db, owner=owner, seq=2, held=1) for owner in (B, again)] == [1, 1]

    assert entries(db) == [("A", 2, 9), ("B", 1, 2), ("A", 1, 2)]


def test_a_hold_of_nothing_is_nobodys_and_is_gone_after_its_time(db: Database[Any]) -> None:
    ask(db, seq=1, held=0)

    assert entries(db) == [("A", 0, 1)]
    assert retries(db) == []
    ask(db, owner=B, seq=1, held=0, wanted=1, now=T0 + MINUTE - SECOND / 1000)
    assert ("A", 0, 1) in entries(db)
    ask(db, owner=B, seq=2, held=1, now=T0 + MINUTE, until=T0 + 2 * MINUTE)
    assert entries(db) == [("B", 1, 2)]


def test_a_hold_of_nothing_that_guards_against_nothing_is_not_kept(db: Database[Any]) -> None:
    ask(db, seq=1, held=0, wanted=2, zero_until=T0)
    assert entries(db) == [("A", 2, 1)]

    ask(db, seq=2, held=0, zero_until=T0)
    assert entries(db) == []

    ask(db, seq=3, held=0, zero_until=T0 + SECOND)
    document = db["control"].find_one({"_id": "it"})
    assert document is not None
    assert [one["until"] for one in document["holds"]] == [T0 + SECOND]


def test_a_refused_claim_keeps_its_place_in_the_order(db: Database[Any]) -> None:
    ask(db, owner=B, seq=1, held=0, wanted=LIMIT)
    assert ask(db, seq=2, held=0, wanted=4) == 0
    ask(db, owner=B, seq=2, held=0)

    assert ask(db, seq=1, held=0, wanted=4) == 0
    assert retries(db) == []


ODD_SEQ = [None, "9", 9.0, True, -1, [9], {"seq": 9}, T0]


@pytest.mark.parametrize("seq", ODD_SEQ)
def test_a_seq_that_makes_no_sense_is_an_older_one(db: Database[Any], seq: object) -> None:
    hold = {"owner": "A", "execution": "A-1", "n": 4, "seq": seq, "until": T0 + MINUTE}
    db["control"].insert_one({"_id": "it", "holds": [hold]})

    assert ask(db, owner=B, seq=1, held=0, wanted=LIMIT) == 6  # it holds nevertheless
    assert ask(db, seq=1, held=1) == 1
    assert sorted(entries(db)) == [("A", 1, 1), ("B", 6, 1)]


def test_the_hold_of_an_older_version_is_an_older_one(db: Database[Any]) -> None:
    db["control"].insert_one({"_id": "it", "holds": [{"owner": "A", "execution": "A-1", "n": 4, "until": T0 + MINUTE}]})

    assert ask(db, seq=1, held=4, wanted=2) == 6
    assert entries(db) == [("A", 6, 1)]


@pytest.mark.parametrize("seq", [5, Int64(2**40)])
def test_a_seq_of_either_whole_type_counts(db: Database[Any], seq: int) -> None:
    ask(db, seq=seq, held=3)

    assert ask(db, seq=seq - 1, held=0) == ask(db, seq=seq, held=0) == 3
    assert ask(db, seq=seq + 1, held=0) == 0


ODD_HOLDS = [
    "none", 7, None, {"execution": "A-1", "seq": 99, "n": 1, "until": T0 + MINUTE},
    [[{"execution": "A-1", "seq": 99, "n": 1, "until": T0 + MINUTE}]],
    *([{"execution": "A-1", "seq": 99, "until": T0 + MINUTE} | odd] for odd in (
        {}, {"n": 2.0}, {"n": "2"}, {"n": -1}, {"n": True}, {"n": [2]}, {"n": 2, "until": "later"},
        {"n": 2, "until": None}, {"n": 2, "until": T0}, {"n": 2, "execution": ["A-1"], "until": T0 - SECOND},
        {"n": 2, "until": Timestamp(2**32 - 1, 1)}, {"n": 2, "until": MaxKey()},
    )),
]  # fmt: skip


@pytest.mark.parametrize("holds", ODD_HOLDS)
def test_what_makes_no_sense_stops_nobody(db: Database[Any], holds: object) -> None:
    db["control"].insert_one({"_id": "it", "holds": holds})

    assert retries(db) == []
    assert ask(db, seq=1, held=0, wanted=4) == 4
    assert ask(db, owner=B, seq=1, held=0, wanted=LIMIT) == 6
    assert entries(db) == [("A", 4, 1), ("B", 6, 1)]


def test_nonsense_beside_a_newer_update_is_not_counted(db: Database[Any]) -> None:
    hold = {"owner": "A", "execution": "A-1", "n": 3, "seq": 9, "until": T0 + MINUTE}
    db["control"].insert_one({"_id": "it", "holds": [hold, hold | {"n": "3"}, hold | {"until": None}, 7]})

    assert ask(db, seq=1, held=0, wanted=4) == 3


# Executor slots


def release_late(db: Database[Any], executor_slots: ExecutorSlots, late: dict[str, Any]) -> None:
    """Have the acquire of *late* applied after its cancellation."""
    db["control"].delete_many({})
    executor_slots.cancel_acquire(A, until=T0 + MINUTE, now=T0)
    db.command(late)


@pytest.fixture
def late_acquire(captured: tuple[Database[Any], CapturedUpdates]) -> dict[str, Any]:
    mine, listener = captured
    ExecutorSlots(mine, limit=1).acquire(A, until=T0 + MINUTE, now=T0)
    [late] = listener.updates
    return late


def test_a_slot_is_not_taken_by_an_acquire_that_is_applied_after_its_release(
    db: Database[Any], late_acquire: dict[str, Any]
) -> None:
    executor_slots = ExecutorSlots(db, limit=1)

    release_late(db, executor_slots, late_acquire)

    assert executor_slots.count_free(now=T0) == 1
    assert load_fleet_status(db, queue="default", now=T0).slot_permits == ()
    assert executor_slots.acquire(B, until=T0 + MINUTE, now=T0)
    assert executor_slots.count_free(now=T0) == 0


def test_a_late_acquire_leaves_neither_a_refusal_nor_a_note(db: Database[Any], late_acquire: dict[str, Any]) -> None:
    executor_slots = ExecutorSlots(db, limit=0)

    release_late(db, executor_slots, late_acquire)

    document = db["control"].find_one({"_id": SLOT})
    assert document is not None
    assert set(document) == {"_id", "holds"}
    assert [set(one) for one in document["holds"]] == [{"owner", "execution", "n", "seq", "until"}]


def test_a_slot_that_was_taken_after_all_is_free_once_its_acquire_is_cancelled(db: Database[Any]) -> None:
    executor_slots = ExecutorSlots(db, limit=1)
    executor_slots.acquire(A, until=T0 + MINUTE, now=T0)
    assert not executor_slots.acquire(B, until=T0 + MINUTE, now=T0)

    executor_slots.cancel_acquire(A, until=T0 + MINUTE, now=T0)

    assert executor_slots.count_free(now=T0) == 1
    assert executor_slots.clear_waiter()  # the refusal is for the next one who asks


def test_refusals_and_releases_leave_no_entry_behind(db: Database[Any]) -> None:
    executor_slots = ExecutorSlots(db, limit=1)
    executor_slots.acquire(A, until=T0 + MINUTE, now=T0)
    for number in range(5):
        refused = PermitOwner(owner="late", execution=str(number))
        assert not executor_slots.acquire(refused, until=T0 + MINUTE, now=T0)
    assert entries(db, SLOT) == [("A", 1, 1)]

    assert executor_slots.release(A, now=T0)
    assert entries(db, SLOT) == []
    assert db["control"].count_documents({"_id": SLOT, "waiting_since": {"$exists": False}}) == 1


def test_a_release_that_comes_too_late_clears_no_refusal(db: Database[Any]) -> None:
    executor_slots = ExecutorSlots(db, limit=0)
    executor_slots.cancel_acquire(A, until=T0 + MINUTE, now=T0)
    executor_slots.acquire(B, until=T0 + MINUTE, now=T0)

    executor_slots.release(A, now=T0)

    assert executor_slots.clear_waiter()
