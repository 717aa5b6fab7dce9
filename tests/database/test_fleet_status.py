"""How executors stand, read from documents that others write, and people edit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.fixtures import T0
from tidemill.control.fleet import (
    ExecutorSlots,
    FleetStatus,
    Permit,
    Subscription,
    deregister,
    heartbeat,
    load_fleet_status,
)
from tidemill.control.semaphores import PermitOwner, acquire, release_all
from tidemill.policy.scheduling import BOTH, RETRY, Lanes

MINUTE = timedelta(minutes=1)


CHOSEN = Subscription(
    queues=("eu", "$us"), lanes=RETRY, asked="oldest_first", selection="retries_first", retry_share=0.7
)


def stand(db: Database[Any], *, now: datetime = T0) -> FleetStatus:
    return load_fleet_status(db, queue="eu", now=now)


def serving(db: Database[Any], queue: str, lane: str = "fresh") -> list[str]:
    return [one.owner for one in stand(db).serving(queue, lane)]


def workers(db: Database[Any], *, now: datetime = T0) -> list[str]:
    return [one.owner for one in stand(db, now=now).workers]


def come(db: Database[Any], owner: str, *queues: str, lanes: Lanes = BOTH) -> None:
    heartbeat(db, owner, Subscription(queues=queues, lanes=lanes), until=T0 + MINUTE, now=T0)


def sit(db: Database[Any], owner: str, *queues: str, lanes: Lanes = BOTH) -> None:
    holder, service = PermitOwner(owner=owner, execution=owner), Subscription(queues=queues, lanes=lanes)
    assert ExecutorSlots(db, limit=9).acquire(holder, until=T0 + MINUTE, now=T0, subscription=service)


def test_where_nobody_ever_came_nothing_is_known(db: Database[Any]) -> None:
    assert stand(db) == FleetStatus()


@pytest.mark.parametrize("arrive", [come, sit])
def test_executors_are_seen_by_the_queues_and_lanes_they_serve(db: Database[Any], arrive: Callable[..., None]) -> None:
    arrive(db, "all")
    arrive(db, "both", "eu", "us")
    arrive(db, "us", "us")
    arrive(db, "retries", lanes=RETRY)

    assert serving(db, "eu") == ["all", "both"]
    assert serving(db, "eu", "retry") == ["all", "both", "retries"]
    assert serving(db, "us") == ["all", "both", "us"]
    assert [one.owner for one in stand(db).at_work] == ["all", "both", "us", "retries"]


def test_what_an_executor_says_of_itself_is_read_as_it_was_said(db: Database[Any]) -> None:
    heartbeat(db, "W", CHOSEN, until=T0 + MINUTE, now=T0)
    ExecutorSlots(db, limit=3).acquire(
        PermitOwner(owner="A", execution="1"), until=T0 + MINUTE, now=T0, subscription=CHOSEN
    )

    found = stand(db)

    assert [one.subscription for one in found.at_work] == [CHOSEN, CHOSEN]
    assert found.last_request == CHOSEN


def test_who_is_turned_away_has_come_all_the_same_and_says_what_for(db: Database[Any]) -> None:
    for name, service in [("A", Subscription()), ("B", CHOSEN)]:
        ExecutorSlots(db, limit=1).acquire(
            PermitOwner(owner=name, execution=name), until=T0 + MINUTE, now=T0, subscription=service
        )

    assert (stand(db).last_request, [one.subscription for one in stand(db).slot_permits]) == (CHOSEN, [Subscription()])


def test_more_queues_than_an_event_may_name_are_not_kept(db: Database[Any]) -> None:
    come(db, "A", *(f"q{n}" for n in range(100)))
    come(db, "B", *(f"q{n}" for n in range(101)))

    assert serving(db, "other") == ["B"]  # as far as is known
    assert serving(db, "q99") == ["A", "B"]


def test_a_worker_that_comes_again_is_one(db: Database[Any]) -> None:
    for _ in range(3):
        come(db, "A")

    assert workers(db) == ["A"]


def test_a_worker_is_gone_when_it_says_so_or_its_time_is_over(db: Database[Any]) -> None:
    for name in ("A", "$B", "C"):
        come(db, name)

    deregister(db, "$B")
    release_all(db, "C")

    assert workers(db) == ["A"]
    assert workers(db, now=T0 + MINUTE) == []
    heartbeat(db, "D", Subscription(), until=T0 + 3 * MINUTE, now=T0 + MINUTE)
    [document] = db["control"].find({"_id": "workers"})
    assert [one["owner"] for one in document["holds"]] == ["D"]


def test_a_worker_that_never_came_may_go(db: Database[Any]) -> None:
    deregister(db, "A")

    assert db["control"].count_documents({"_id": "workers"}) == 0


def test_seats_and_permits_are_told_with_their_holders(db: Database[Any]) -> None:
    ExecutorSlots(db, limit=3).acquire(PermitOwner(owner="A", execution="1"), until=T0 + MINUTE, now=T0)
    permits: dict[str, Any] = {"seq": 1, "held": 0, "wanted": 2, "limit": 9, "until": T0 + MINUTE, "now": T0}
    acquire(db, "retries:eu", PermitOwner(owner="B", execution="2"), **permits)
    acquire(db, "retries:us", PermitOwner(owner="C", execution="3"), **permits)

    found = stand(db)

    assert found.slot_permits == (Permit(owner="A", n=1, until=T0 + MINUTE),)
    assert found.retries == (Permit(owner="B", n=2, until=T0 + MINUTE),)
    assert (found.slot_count, found.last_acquired_at) == (3, T0)
    over = stand(db, now=T0 + MINUTE)
    assert (over.slot_permits, over.retries, over.last_acquired_at) == ((), (), T0)


@pytest.mark.parametrize(
    "odd",
    [
        {}, {"holds": None}, {"holds": 7}, {"holds": [7, None, {}, {"until": "later"}, {"until": T0}]},
        {"holds": [{"until": T0 + MINUTE, "n": n, "queues": ["x"]} for n in (0, -1, "x", None, 1.5, True)]},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_as_good_as_nothing(db: Database[Any], odd: dict[str, Any]) -> None:
    db["control"].insert_many([{"_id": name} | odd for name in ("executor_slots", "retries:eu")])
    db["control"].update_one(
        {"_id": "executor_slots"}, {"$set": {"last_acquired_at": "never", "limit": "many", "last_request": 7}}
    )
    db["control"].insert_one({"_id": "workers", "holds": [7, None, {}, {"until": "later"}, {"until": T0}]})

    assert stand(db) == FleetStatus()
    come(db, "A")
    assert workers(db) == ["A"]
    deregister(db, "A")
    assert workers(db) == []


@pytest.mark.parametrize(
    "odd",
    [
        {}, {"queues": None}, {"queues": "eu"}, {"queues": [7, None]}, {"lanes": "fresh"}, {"asked": ["weighted"]},
        {"selection": "best"}, {"selection": 7}, {"retry_share": True}, {"retry_share": "half"}, {"retry_share": None},
    ],
)  # fmt: skip
def test_a_service_that_makes_no_sense_is_taken_for_all(db: Database[Any], odd: dict[str, Any]) -> None:
    db["control"].insert_one({"_id": "workers", "holds": [{"owner": "A", "until": T0 + MINUTE} | odd]})

    assert [one.subscription for one in stand(db).workers] == [Subscription()]
