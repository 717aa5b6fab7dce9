"""How executors stand, read from documents that others write, and people edit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.conftest import T0
from tidemill.control import Held, Holder, Seats, Service, Standing, be_gone, be_present, hold, let_go, standing
from tidemill.selection import BOTH, RETRY, Lanes

MINUTE = timedelta(minutes=1)


CHOSEN = Service(queues=("eu", "$us"), lanes=RETRY, asked="oldest_first", selection="retries_first", retry_share=0.7)


def stand(db: Database[Any], *, now: datetime = T0) -> Standing:
    return standing(db, queue="eu", now=now)


def serving(db: Database[Any], queue: str, lane: str = "fresh") -> list[str]:
    return [one.owner for one in stand(db).serving(queue, lane)]


def workers(db: Database[Any], *, now: datetime = T0) -> list[str]:
    return [one.owner for one in stand(db, now=now).workers]


def come(db: Database[Any], owner: str, *queues: str, lanes: Lanes = BOTH) -> None:
    be_present(db, owner, Service(queues=queues, lanes=lanes), until=T0 + MINUTE, now=T0)


def sit(db: Database[Any], owner: str, *queues: str, lanes: Lanes = BOTH) -> None:
    holder, service = Holder(owner=owner, execution=owner), Service(queues=queues, lanes=lanes)
    assert Seats(db, limit=9).take(holder, until=T0 + MINUTE, now=T0, service=service)


def test_where_nobody_ever_came_nothing_is_known(db: Database[Any]) -> None:
    assert stand(db) == Standing()


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
    be_present(db, "W", CHOSEN, until=T0 + MINUTE, now=T0)
    Seats(db, limit=3).take(Holder(owner="A", execution="1"), until=T0 + MINUTE, now=T0, service=CHOSEN)

    found = stand(db)

    assert [one.service for one in found.at_work] == [CHOSEN, CHOSEN]
    assert found.came == CHOSEN


def test_who_is_turned_away_has_come_all_the_same_and_says_what_for(db: Database[Any]) -> None:
    for name, service in [("A", Service()), ("B", CHOSEN)]:
        Seats(db, limit=1).take(Holder(owner=name, execution=name), until=T0 + MINUTE, now=T0, service=service)

    assert (stand(db).came, [one.service for one in stand(db).seated]) == (CHOSEN, [Service()])


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

    be_gone(db, "$B")
    let_go(db, "C")

    assert workers(db) == ["A"]
    assert workers(db, now=T0 + MINUTE) == []
    be_present(db, "D", Service(), until=T0 + 3 * MINUTE, now=T0 + MINUTE)
    [document] = db["control"].find({"_id": "workers"})
    assert [one["owner"] for one in document["holds"]] == ["D"]


def test_a_worker_that_never_came_may_go(db: Database[Any]) -> None:
    be_gone(db, "A")

    assert db["control"].count_documents({}) == 0


def test_seats_and_permits_are_told_with_their_holders(db: Database[Any]) -> None:
    Seats(db, limit=3).take(Holder(owner="A", execution="1"), until=T0 + MINUTE, now=T0)
    hold(db, "retries:eu", Holder(owner="B", execution="2"), held=0, wanted=2, limit=9, until=T0 + MINUTE, now=T0)
    hold(db, "retries:us", Holder(owner="C", execution="3"), held=0, wanted=2, limit=9, until=T0 + MINUTE, now=T0)

    found = stand(db)

    assert found.seated == (Held(owner="A", n=1, until=T0 + MINUTE),)
    assert found.retries == (Held(owner="B", n=2, until=T0 + MINUTE),)
    assert (found.seats, found.came_at) == (3, T0)
    over = stand(db, now=T0 + MINUTE)
    assert (over.seated, over.retries, over.came_at) == ((), (), T0)


@pytest.mark.parametrize(
    "odd",
    [
        {}, {"holds": None}, {"holds": 7}, {"holds": [7, None, {}, {"until": "later"}, {"until": T0}]},
        {"holds": [{"until": T0 + MINUTE, "n": n, "queues": ["x"]} for n in (0, -1, "x", None, 1.5, True)]},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_as_good_as_nothing(db: Database[Any], odd: dict[str, Any]) -> None:
    db["control"].insert_many([{"_id": name} | odd for name in ("seats", "retries:eu")])
    db["control"].update_one({"_id": "seats"}, {"$set": {"came_at": "never", "limit": "many", "came": 7}})
    db["control"].insert_one({"_id": "workers", "holds": [7, None, {}, {"until": "later"}, {"until": T0}]})

    assert stand(db) == Standing()
    come(db, "A")
    assert workers(db) == ["A"]
    be_gone(db, "A")
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

    assert [one.service for one in stand(db).workers] == [Service()]
