"""Pages of dead letters: each letter on exactly one, at a bounded cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import add
from tests.buried import bury_tasks, failed
from tests.fixtures import T0
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.selection import POSITION_KEYS, DeadLetterFilter, build_walk
from tidemill.documents import decode
from tidemill.store.connection import Tasks
from tidemill.store.paging import Page, decode_cursor, encode_cursor, read_page

SECOND = timedelta(seconds=1)
SHOWN = {"dead_lettered_at": 1}


def walked(
    dead: Tasks, which: DeadLetterFilter, *, limit: int, newest_first: bool = False, **options: Any
) -> list[Any]:
    """The tasks of the letters on all pages, in order; each page goes on where a cursor says."""
    found: list[Any] = []
    after = None
    while True:
        walk = build_walk(which, shown=SHOWN, after=after, newest_first=newest_first, **options)
        page = read_page(dead, walk, limit=limit)
        found += [decode(raw)["_id"]["task"] for raw in page.found]
        if page.behind is None:
            return found
        after = decode_cursor(encode_cursor(page.behind), *POSITION_KEYS)


@pytest.fixture
def fingerprint(dead: Tasks) -> str:
    """That of 40 letters, of which 10 at a time died at once, 20 exported ones among 20 others."""
    for n in range(4):
        bury_tasks(dead, [failed(T0, _id=10 * n + one, name="noop") for one in range(10)], at=T0 + n * SECOND)
        bury_tasks(dead, [failed(T0, _id=f"{n}-{one}", name="other") for one in range(5)], at=T0 + n * SECOND)
    raw = dead.find_one({"name": "noop"})
    assert raw is not None
    return str(decode(raw)["fingerprint"])


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 10, 40, 100])
@pytest.mark.parametrize("walk", [1, 7, 60, 5000])
def test_every_letter_is_on_one_page_in_order(
    dead: Tasks, fingerprint: str, *, limit: int, walk: int, newest_first: bool
) -> None:
    ordered = list(range(40))[:: -1 if newest_first else 1]

    for which in (DeadLetterFilter(fingerprint=fingerprint), DeadLetterFilter(name="noop")):
        assert walked(dead, which, limit=limit, newest_first=newest_first, max_examined=walk) == ordered


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("is_by_fingerprint", [False, True])
def test_times_are_bounds(dead: Tasks, fingerprint: str, *, newest_first: bool, is_by_fingerprint: bool) -> None:
    group = DeadLetterFilter(fingerprint=fingerprint) if is_by_fingerprint else DeadLetterFilter(name="noop")

    def found(
        *, since: datetime | None = None, until: datetime | None = None, up_to: datetime | None = None
    ) -> set[int]:
        which = replace(group, since=since, until=until)
        return set(walked(dead, which, limit=7, newest_first=newest_first, up_to=up_to))

    assert found(since=T0 + SECOND) == set(range(10, 40))
    assert found(until=T0 + SECOND) == set(range(10))
    assert found(since=T0 + SECOND, until=T0 + 2 * SECOND) == set(range(10, 20))
    assert found(until=T0) == found(since=T0 + SECOND, until=T0) == found(since=T0, until=T0) == set()
    assert found(up_to=T0 + SECOND) == set(range(20))
    assert found(up_to=T0 + SECOND, until=T0 + SECOND) == set(range(10))
    assert found(up_to=T0, until=T0 + SECOND, since=T0 + SECOND) == set()


@pytest.mark.parametrize("newest_first", [False, True])
def test_letters_are_found_by_their_ids(dead: Tasks, *, newest_first: bool) -> None:
    tasks = [ObjectId(), "text", 7, {"a": 1}]
    ids = bury_tasks(dead, [failed(T0, _id=one) for one in tasks], at=T0)
    bury_tasks(dead, [failed(T0) for _ in range(5)], at=T0)
    which = DeadLetterFilter(
        ids=(*ids, DeadLetterId(task="nobody's", redrives=0), DeadLetterId(task="text", redrives=1))
    )

    found = walked(dead, which, limit=2, newest_first=newest_first)

    assert sorted(found, key=repr) == sorted(tasks, key=repr)


def test_a_cursor_behind_the_bounds_leads_to_nothing(dead: Tasks, fingerprint: str) -> None:
    first = read_page(dead, build_walk(DeadLetterFilter(fingerprint=fingerprint), shown=SHOWN), limit=30)
    earlier = DeadLetterFilter(fingerprint=fingerprint, until=T0)

    page = read_page(dead, build_walk(earlier, shown=SHOWN, after=first.behind), limit=30)

    assert page == Page(found=(), behind=None)


@pytest.mark.parametrize("newest_first", [False, True])
def test_letters_made_by_hand_have_a_place(dead: Tasks, *, newest_first: bool) -> None:
    odd: list[Any] = [None, 7, "yesterday", {"a": 1}, T0, bson.Timestamp(1, 1)]
    add(dead, [{"_id": {"task": n, "redrives": 0}, "dead_lettered_at": value} for n, value in enumerate(odd)])
    add(dead, [{"_id": {"task": 99, "redrives": 0}}])

    assert sorted(walked(dead, DeadLetterFilter(), limit=1, newest_first=newest_first)) == [*range(6), 99]


@pytest.mark.parametrize("which", ["fingerprint", "name"])
def test_a_page_examines_no_more_than_a_walk(db: Database[Any], dead: Tasks, fingerprint: str, which: str) -> None:
    meant = (
        DeadLetterFilter(fingerprint=fingerprint, queue="eu")
        if which == "fingerprint"
        else DeadLetterFilter(name="nobody's")
    )
    db.command("profile", 2)

    page = read_page(dead, build_walk(meant, shown=SHOWN, max_examined=20), limit=5)

    db.command("profile", 0)
    profile = [one for one in db["system.profile"].find() if "planSummary" in one]
    assert (page.found, page.behind is None) == ((), False)
    assert sorted(one["docsExamined"] for one in profile) == [0, 20]
    assert max(one["keysExamined"] for one in profile) <= 21
    assert not any(one.get("hasSortStage") for one in profile)
