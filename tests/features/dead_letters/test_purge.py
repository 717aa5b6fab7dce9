"""Purge: what is deleted, and what never is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, all_of
from tests.buried import bury_tasks, failed
from tests.commands import Commands
from tests.faults import Beforehand, heard
from tests.fixtures import T0
from tests.redrives import EVER
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.selection import DeadLetterFilter, PurgeResult, purge
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import InvalidRequestError
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)


def purge_all(dead: Tasks, which: DeadLetterFilter | None = None, **options: Any) -> PurgeResult:
    asked: dict[str, Any] = {"limit": 10_000, "dry_run": False, "now": T0 + 9 * SECOND, "until": EVER} | options
    return purge(dead, which or DeadLetterFilter(), **asked)


def test_what_was_redriven_and_what_is_exported_goes_too(dead: Tasks) -> None:
    bury_tasks(dead, [failed(T0, _id=n) for n in range(4)], at=T0)
    dead.update_many({"_id.task": {"$lt": 2}}, {"$set": {"redriven_at": T0}})
    dead.update_many({"_id.task": {"$gt": 0}}, {"$set": {"archived_at": T0}})

    assert purge_all(dead) == PurgeResult(examined=4, purged=4, unexported=1)
    assert all_of(dead) == []


@pytest.mark.parametrize(
    ("which", "left"),
    [
        (DeadLetterFilter(ids=(DeadLetterId(task="a", redrives=0),)), ["b", "c"]),
        (DeadLetterFilter(ids=(DeadLetterId(task="a", redrives=0),), queue="eu"), ["a", "b", "c"]),
        (DeadLetterFilter(name="other"), ["a", "c"]),
        (DeadLetterFilter(queue="eu"), ["a", "b"]),
        (DeadLetterFilter(since=T0 + SECOND), ["a"]),
        (DeadLetterFilter(until=T0 + SECOND), ["b", "c"]),
        (DeadLetterFilter(since=T0 + SECOND, until=T0 + 2 * SECOND), ["a", "c"]),
        (DeadLetterFilter(since=T0 + SECOND, until=T0 + SECOND), ["a", "b", "c"]),
        (DeadLetterFilter(name="other", queue="eu"), ["a", "b", "c"]),
    ],
    ids=repr,
)
def test_what_is_meant_goes_and_nothing_else(dead: Tasks, which: DeadLetterFilter, left: list[str]) -> None:
    bury_tasks(dead, [failed(T0, _id="a")], at=T0)
    bury_tasks(dead, [failed(T0, _id="b", name="other")], at=T0 + SECOND)
    bury_tasks(dead, [failed(T0, _id="c", queue="eu")], at=T0 + 2 * SECOND)

    purge_all(dead, which)

    assert [one["_id"]["task"] for one in all_of(dead)] == left


def test_a_letter_on_its_way_back_is_kept(dead: Tasks) -> None:
    bury_tasks(dead, [failed(T0, _id=n) for n in range(3)], at=T0)
    dead.update_one({"_id.task": 1}, {"$set": {"redrive_started_at": T0 - timedelta(days=1)}})

    assert purge_all(dead) == PurgeResult(examined=3, purged=2, unexported=2, in_progress=1)
    assert [one["_id"]["task"] for one in all_of(dead)] == [1]


def test_a_letter_that_sets_out_after_the_look_at_it_is_kept(dead: Tasks) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    redrive = Beforehand("delete", lambda: dead.update_many({}, {"$set": {"redrive_started_at": T0}}))

    with heard(dead.database, redrive) as db:
        assert purge_all(open_tasks(db, DEAD_LETTERS)).purged == 0

    assert len(all_of(dead)) == 1


def test_what_dies_meanwhile_is_not_met(dead: Tasks) -> None:
    bury_tasks(dead, [failed(T0, _id=n) for n in range(2)], at=T0)
    done = purge_all(dead, limit=1, now=T0)
    bury_tasks(dead, [failed(T0, _id="new")], at=T0 + SECOND)

    rest = purge_all(dead, after=done.next, now=T0 + 2 * SECOND)

    assert (done.purged, rest.purged, rest.next) == (1, 1, None)
    assert [one["_id"]["task"] for one in all_of(dead)] == ["new"]


def test_a_purge_stops_in_time_and_goes_on(dead: Tasks) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(1001)], at=T0)

    done = purge_all(dead, until=0, monotonic=lambda: 1)
    rest = purge_all(dead, until=0, monotonic=lambda: 1, after=done.next)

    assert (done.purged, rest.purged, rest.next) == (1000, 1, None)


def test_a_dry_run_tells_the_same_and_writes_nothing(mongod: Mongod, db: Database[Any]) -> None:
    commands = Commands()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        dead = open_tasks(client[db.name], DEAD_LETTERS)
        bury_tasks(dead, [failed(T0, _id=n) for n in range(5)], at=T0)
        dead.update_one({"_id.task": 1}, {"$set": {"redrive_started_at": T0}})
        commands.names.clear()

        dry = purge_all(dead, dry_run=True)

        assert set(commands.names) == {"find"}
        assert dry == purge_all(dead)


def test_letters_made_by_hand_go_too(dead: Tasks) -> None:
    add(dead, [{"_id": "by hand"}, {"_id": 7, "dead_lettered_at": "yesterday"}])

    assert purge_all(dead).purged == 2


@pytest.mark.parametrize("cursor", ["", "?", "AAAA", "BQAAAAA"])
def test_a_text_that_is_no_cursor_is_refused(dead: Tasks, cursor: str) -> None:
    with pytest.raises(InvalidRequestError, match="cursor"):
        purge_all(dead, after=cursor)
