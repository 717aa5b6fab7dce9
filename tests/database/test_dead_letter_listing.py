"""Pages of dead letters that neither repeat nor miss one, the newest death first."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.buried import bury, letter
from tests.ids import shown
from tidemill import InvalidRequestError
from tidemill.dead_letters.selection import MAX_WALKS, DeadLetterFilter, DeadLetterPage, list_dead_letters
from tidemill.model import Malformed, Task
from tidemill.store.connection import Tasks

SECOND = timedelta(seconds=1)
IDS: tuple[Any, ...] = (
    None, 1, 2.5, Decimal128("7.5"), "", "a", "a.c", {"a": 1}, {"$ref": "x", "$id": 1}, b"x", ObjectId(), True,
    datetime(2031, 7, 1, tzinfo=UTC),
)  # fmt: skip


def short_page(dead: Tasks, which: DeadLetterFilter, **asked: Any) -> DeadLetterPage:
    """A page whose walks are too short for a handful of letters."""
    return list_dead_letters(dead, which, max_examined=20, **asked)


def tasks_of(dead: Tasks, which: DeadLetterFilter | None = None, *, limit: int = 7, **asked: Any) -> list[Any]:
    """The ids of the tasks on all pages, in order."""
    found: list[Any] = []
    after: str | None = None
    for _ in range(1_000):
        page = short_page(dead, which or DeadLetterFilter(), limit=limit, after=after, **asked)
        found += [one.id.task for one in page.letters]
        after = page.next
        if after is None:
            return found
    pytest.fail("the pages have no end")


@pytest.mark.parametrize("limit", [1, 7, 50, 100])
@pytest.mark.parametrize("fingerprint", [None, "a"])
def test_letters_of_one_instant_are_each_on_one_page(
    dead: Tasks, now: datetime, limit: int, fingerprint: str | None
) -> None:
    made = bury(dead, [letter(now, fingerprint="a") for _ in range(50)])

    assert tasks_of(dead, DeadLetterFilter(fingerprint=fingerprint), limit=limit) == made[::-1]


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_the_newest_death_is_first_whatever_its_id_is(dead: Tasks, now: datetime, limit: int) -> None:
    made = bury(dead, [letter(now - n * SECOND, _id=one) for n, one in enumerate(IDS)])

    assert tasks_of(dead, limit=limit) == made


def test_what_dies_between_two_pages_moves_nothing(dead: Tasks, now: datetime) -> None:
    made = bury(dead, [letter(now - n * SECOND) for n in range(12)])
    first = list_dead_letters(dead, DeadLetterFilter(), limit=5)
    bury(dead, [letter(now + SECOND) for _ in range(7)])

    rest = list_dead_letters(dead, DeadLetterFilter(), limit=50, after=first.next)

    assert [one.id.task for one in (*first.letters, *rest.letters)] == made


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ["open", "on its way"]),
        ({"redriven": True}, ["back"]),
        ({"redriven": None}, ["open", "back", "on its way"]),
    ],
    ids=shown,
)
def test_open_letters_are_listed_or_those_that_went_back(
    dead: Tasks, now: datetime, asked: dict[str, Any], expected: list[str]
) -> None:
    bury(dead, [letter(now, _id="open"), letter(now - SECOND, _id="back", redriven_at=now)])
    bury(dead, [letter(now - 2 * SECOND, _id="on its way", redrive_started_at=now)])

    assert tasks_of(dead, **asked) == expected


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (DeadLetterFilter(fingerprint="b"), ["b"]),
        (DeadLetterFilter(name="a.c"), ["named"]),
        (DeadLetterFilter(name="(a+)+$"), []),
        (DeadLetterFilter(queue="eu", name="a.c"), []),
        (DeadLetterFilter(queue="eu"), ["eu"]),
        (DeadLetterFilter(fingerprint="a", queue="eu"), ["eu"]),
    ],
    ids=shown,
)
def test_filters_are_taken_to_the_letter_and_together(
    dead: Tasks, now: datetime, which: DeadLetterFilter, expected: list[str]
) -> None:
    bury(
        dead, [letter(now, _id="b", fingerprint="b", name="abc"), letter(now, _id="named", fingerprint="a", name="a.c")]
    )
    bury(
        dead, [letter(now, _id="eu", fingerprint="a", queue="eu"), letter(now, _id="exu", fingerprint="a", queue="exu")]
    )

    assert tasks_of(dead, which) == expected


@pytest.mark.parametrize("fingerprint", [None, "a"])
def test_a_time_range_has_its_beginning_and_not_its_end(dead: Tasks, now: datetime, fingerprint: str | None) -> None:
    bury(dead, [letter(now + n * SECOND, _id=n, fingerprint="a") for n in range(30)])

    which = DeadLetterFilter(fingerprint=fingerprint, since=now + 10 * SECOND, until=now + 13 * SECOND)

    assert tasks_of(dead, which, limit=2) == [12, 11, 10]


def test_a_page_that_took_long_goes_no_further_and_leads_on(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now, _id="rare", name="rare"), *(letter(now + SECOND) for _ in range(70))])
    seconds = itertools.count()

    late = short_page(dead, DeadLetterFilter(name="rare"), limit=5, monotonic=lambda: float(next(seconds)))
    patient = short_page(dead, DeadLetterFilter(name="rare"), limit=5, monotonic=lambda: 7.0)

    assert (late.letters, late.next is None) == ((), False)
    assert [one.id.task for one in patient.letters] == ["rare"]
    assert tasks_of(dead, DeadLetterFilter(name="rare"), monotonic=lambda: float(next(seconds))) == ["rare"]


def test_payloads_results_and_logs_stay_where_they_are(dead: Tasks, now: datetime) -> None:
    log = [{"attempt": 1, "status": "failed", "started_at": now, "duration_ms": 1, "note": "n"}]
    bury(dead, [letter(now, payload={"secret": 1}, result={"secret": 2}, attempt_log=log, archived_at=now)])

    [found] = list_dead_letters(dead, DeadLetterFilter(), limit=1).letters

    assert isinstance(found.task, Task)
    assert (found.task.payload, found.task.result, found.task.attempt_log) == ({}, None, ())
    assert (found.reason, found.archived_at, found.redriven_at) == ("exhausted", now, None)


def test_a_page_of_large_letters_is_small(dead: Tasks, now: datetime) -> None:
    large = "é" * 100_000
    error = {"message": "x" * 7_900, "code": "E", "at": now}
    bury(dead, [letter(now, payload={"x": large}, result=large, error=error) for _ in range(9)])
    bury(dead, [letter(now) | {name: large} for name in ("reason", "export_error", "name")])

    found = list_dead_letters(dead, DeadLetterFilter(), limit=100)

    assert len(found.letters) == 12
    assert len(repr(found)) < 30_000


def test_letters_that_people_wrote_are_listed_among_the_others(dead: Tasks, now: datetime) -> None:
    broken = bson.encode(letter(now, _id="text", name="???")).replace(b"???", b"\xff\xfe\xfd")
    dead.insert_one(RawBSONDocument(broken))
    dead.insert_many([{"_id": 7}, {"_id": {"task": 1, "redrives": "x"}, "dead_lettered_at": "yesterday"}])

    found = list_dead_letters(dead, DeadLetterFilter(), limit=20).letters

    assert [isinstance(one.task, Malformed) for one in found] == [False, True, True]


@pytest.mark.parametrize("cursor", ["x", "!", "null", "e30", "é"])
def test_what_no_page_has_named_is_no_cursor(dead: Tasks, cursor: str) -> None:
    with pytest.raises(InvalidRequestError, match="cursor: invalid"):
        list_dead_letters(dead, DeadLetterFilter(), limit=1, after=cursor)


@pytest.mark.parametrize(
    ("which", "fetched"),
    [
        (DeadLetterFilter(), 5 + 6),
        (DeadLetterFilter(fingerprint="a"), 5 + 6),
        (DeadLetterFilter(name="rare"), 10 * 20 + 5),
    ],
    ids=shown,
)
def test_a_page_examines_no_more_than_its_walks_are_long(
    db: Database[Any], dead: Tasks, now: datetime, which: DeadLetterFilter, fetched: int
) -> None:
    bury(dead, [letter(now + n * SECOND, fingerprint="a") for n in range(400)])
    db.command("profile", 2)

    short_page(dead, which, limit=5)

    db.command("profile", 0)
    profile = [one for one in db["system.profile"].find({"ns": f"{db.name}.tasks_dlq"}) if "planSummary" in one]
    assert "COLLSCAN" not in {one["planSummary"] for one in profile}
    assert not any(one.get("hasSortStage") for one in profile)
    assert sum(one["docsExamined"] for one in profile) <= fetched
    assert len(profile) <= 2 * MAX_WALKS + 1


def test_a_letter_whose_time_is_in_a_list_stands_in_nobodys_way(dead: Tasks, now: datetime) -> None:
    some = [letter(now + n * SECOND, _id=n) for n in range(6)]
    some[3]["dead_lettered_at"] = [some[3]["dead_lettered_at"]]
    bury(dead, some)

    assert tasks_of(dead, limit=1) == [5, 4, 3, 2, 1, 0]
