"""How executors stand, read from documents that others write, and people edit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.conftest import T0
from tidemill.control import Held, Holder, Presence, Seats, Standing, be_gone, be_present, hold, let_go, standing

MINUTE = timedelta(minutes=1)


def stand(db: Database[Any], *, queue: str = "eu", lane: str = "fresh", now: Any = T0) -> Standing:
    return standing(db, queue=queue, lane=lane, now=now)


def come(db: Database[Any], owner: str, *queues: str, lanes: tuple[str, ...] = ("fresh", "retry")) -> None:
    be_present(db, Presence(owner=owner, queues=queues, lanes=lanes), until=T0 + MINUTE, now=T0)


def test_where_nobody_ever_came_nothing_is_known(db: Database[Any]) -> None:
    assert stand(db) == Standing()


def test_workers_are_seen_by_the_queues_and_lanes_they_serve(db: Database[Any]) -> None:
    come(db, "all")
    come(db, "eu", "eu", "us")
    come(db, "us", "us")
    come(db, "retries", lanes=("retry",))

    assert stand(db).workers == ("all", "eu")
    assert stand(db, lane="retry").workers == ("all", "eu", "retries")
    assert stand(db, queue="us").workers == ("all", "eu", "us")


def test_a_worker_that_comes_again_is_one(db: Database[Any]) -> None:
    for _ in range(3):
        come(db, "A")

    assert stand(db).workers == ("A",)


def test_a_worker_is_gone_when_it_says_so_or_its_time_is_over(db: Database[Any]) -> None:
    for name in ("A", "$B", "C"):
        come(db, name)

    be_gone(db, "$B")
    let_go(db, "C")

    assert stand(db).workers == ("A",)
    assert stand(db, now=T0 + MINUTE).workers == ()
    be_present(db, Presence(owner="D", queues=(), lanes=("fresh",)), until=T0 + 3 * MINUTE, now=T0 + 2 * MINUTE)
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
    db["control"].insert_many([{"_id": name} | odd for name in ("seats", "workers", "retries:eu")])
    db["control"].update_one({"_id": "seats"}, {"$set": {"came_at": "never", "limit": "many"}})

    assert stand(db) == Standing()
    come(db, "A")
    assert stand(db).workers == ("A",)
    be_gone(db, "A")
    assert stand(db).workers == ()
