"""What keeps letters from the bucket: letters that it refuses, and a bucket that is away."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import MINUTE, add, stored
from tests.buried import letters
from tests.commands import Commands
from tests.fixtures import ManualClock
from tests.shelves import DOWN, REFUSED, TOO_LARGE, Shelf, run, tasks_put
from tidemill.dead_letters.export import CircuitBreaker, Uploader, export
from tidemill.dead_letters.export_format import ExportError, ExportResult
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

DAY = timedelta(days=1)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_letter_that_s3_refuses_keeps_no_other_back_and_is_tried_less_and_less_often(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: TOO_LARGE if "/7-" in key else None

    assert run(dead, shelf, clock) == ExportResult(exported=9, refused=1, left=1)
    assert run(dead, shelf, clock) == ExportResult(left=1)

    found = stored(dead, {"task": 7, "redrives": 0})
    assert (found["export_attempts"], found["export_error"]) == (1, "EntityTooLarge")
    assert found["export_retry_at"] == now + 10 * MINUTE
    assert "archived_at" not in found
    waits = []
    for _ in range(10):
        clock.at = stored(dead, {"task": 7, "redrives": 0})["export_retry_at"]
        assert run(dead, shelf, clock) == ExportResult(refused=1, left=1)
        waits.append((stored(dead, {"task": 7, "redrives": 0})["export_retry_at"] - clock.at) / MINUTE)
    assert waits == [20, 40, 80, 160, 320, 640, 1280, 1440, 1440, 1440]


def test_a_letter_that_was_refused_is_exported_once_it_can_be(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(1)))
    shelf.always = ExportError("$name", blame="object")
    run(dead, shelf, clock)
    assert stored(dead, {"task": 0, "redrives": 0})["export_error"] == "$name"
    shelf.always = None
    clock.move(DAY)

    assert run(dead, shelf, clock) == ExportResult(exported=1)
    assert not stored(dead, {"task": 0, "redrives": 0}).keys() & {"export_attempts", "export_error", "export_retry_at"}


def test_a_bucket_that_is_away_is_given_up_soon_and_the_letters_are_as_they_were(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(400)))
    before = list(dead.find().sort("_id"))
    shelf.always = ExportError("AccessDenied", blame="either")

    done = run(dead, shelf, clock)

    assert done == ExportResult(failed=len(shelf.keys), left=400, last_error="AccessDenied")
    assert len(shelf.keys) < 3 * 16
    assert list(dead.find().sort("_id")) == before

    shelf.always = None
    assert run(dead, shelf, clock) == ExportResult(exported=400)


@pytest.mark.parametrize(("trouble", "finds"), [(DOWN, 1), (REFUSED, 2)], ids=["busy", "in any word"])
def test_no_more_letters_are_read_once_the_bucket_was_given_up(
    mongod: Mongod, dead: Tasks, clock: ManualClock, trouble: ExportError, finds: int
) -> None:
    add(dead, letters(clock.now(), range(1100)))
    shelf = Shelf()
    shelf.always = trouble
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        run(open_tasks(client[dead.database.name], DEAD_LETTERS), shelf, clock)

    assert [name for name in commands.names if name in {"find", "getMore", "update"}] == ["find"] * finds


def test_what_was_put_before_the_bucket_went_away_is_marked(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(100)))
    shelf.refused = lambda _: DOWN if len(shelf.objects) >= 40 else None

    done = run(dead, shelf, clock)

    assert done == ExportResult(exported=40, failed=len(shelf.keys) - 40, left=60, last_error="InternalError")

    shelf.refused = lambda _: None
    assert run(dead, shelf, clock) == ExportResult(exported=60)
    assert len(shelf.objects) == 100


def test_a_bucket_that_fails_now_and_then_is_not_given_up(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(300)))
    shelf.refused = lambda _: DOWN if len(shelf.keys) % 3 == 0 else None

    assert run(dead, shelf, clock) == ExportResult(exported=300, failed=149)


@pytest.mark.parametrize("options", [{}, {"limit": 40}], ids=["all", "as many as there are"])
def test_a_failure_that_passes_is_counted_and_no_trouble(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, options: dict[str, Any]
) -> None:
    add(dead, letters(now, range(40)))
    shelf.refused = lambda _: DOWN if len(shelf.keys) == 1 else None

    assert run(dead, shelf, clock, **options) == ExportResult(exported=40, failed=1)


def test_a_failure_that_passes_is_not_why_a_letter_is_left_that_was_refused(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: (
        TOO_LARGE if "/7-" in key else DOWN if "/3-" in key and tasks_put(shelf).count(3) == 1 else None
    )

    assert run(dead, shelf, clock) == ExportResult(exported=9, refused=1, failed=1, left=1)


def test_a_failure_is_why_letters_are_left_where_there_was_no_time_for_another_try(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: DOWN if "/9-" in key else None

    done = export(dead, shelf.put, clock=clock, until=10, monotonic=lambda: len(shelf.keys), threads=2)

    assert done == ExportResult(exported=9, failed=1, left=1, last_error="InternalError")


def test_a_failure_is_no_trouble_where_another_export_has_done_the_work(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(1)))

    def put(_key: str, _body: bytes) -> None:
        run(dead, shelf, clock)
        raise DOWN

    assert export(dead, put, clock=clock, until=time.monotonic() + 60) == ExportResult(failed=1)


def test_a_letter_that_only_fails_with_others_errors_does_not_keep_a_run_busy(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(5)))
    shelf.refused = lambda key: DOWN if "/3-" in key else None

    assert run(dead, shelf, clock) == ExportResult(exported=4, failed=2, left=1, last_error="InternalError")
    assert tasks_put(shelf).count(3) == 2


@pytest.mark.parametrize("refused", [range(16), range(40), [*range(20), *range(52, 60)]], ids=["16", "40", "both ends"])
def test_letters_that_s3_refuses_one_by_one_in_any_word_keep_no_other_back(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, refused: list[int]
) -> None:
    add(dead, letters(now, range(60)))
    bad = {f"/{n}-" for n in refused}
    shelf.refused = lambda key: REFUSED if any(one in key for one in bad) else None

    done = run(dead, shelf, clock)

    assert (done.exported, done.left) == (60 - len(bad), len(bad))


def test_no_letter_is_blamed_where_the_bucket_is_busy(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(60)))
    slow_down = ExportError("SlowDown", blame="bucket")
    shelf.refused = lambda key: slow_down if any(f"/{n}-" in key for n in range(20)) else None

    done = run(dead, shelf, clock)

    assert (done.refused, done.last_error) == (0, "SlowDown")
    assert dead.count_documents({"export_attempts": {"$exists": True}}) == 0


def test_a_letter_that_fails_twice_in_a_row_is_blamed_once(dead: Tasks, shelf: Shelf, now: datetime) -> None:
    add(dead, letters(now, [0]))
    shelf.always = REFUSED
    [raw] = dead.find()

    breaker = CircuitBreaker(2)
    with ThreadPoolExecutor() as pool:
        uploader = Uploader(
            put=shelf.put, pool=pool, breaker=breaker, until=time.monotonic() + 60, monotonic=time.monotonic
        )
        uploader.upload([raw])
        uploader.upload([raw])

    assert breaker.is_open
    assert len(breaker.half_open()) == 1
    assert not breaker.is_open


def test_what_was_refused_in_any_word_is_put_off_once_others_went_through(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: REFUSED if "/0-" in key or "/1-" in key else None

    assert run(dead, shelf, clock, threads=1) == ExportResult(exported=8, refused=2, failed=2, left=2)

    assert tasks_put(shelf) == [0, 9, 1, 8, *range(2, 8)]
    for n in (0, 1):
        found = stored(dead, {"task": n, "redrives": 0})
        assert (found["export_attempts"], found["export_error"]) == (1, "InvalidArgument")
        assert found["export_retry_at"] == now + 10 * MINUTE


def test_no_more_are_exported_than_were_asked_for_where_others_are_tried(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(30)))
    shelf.refused = lambda key: REFUSED if "/1-" in key else None

    done = run(dead, shelf, clock, threads=1, limit=3)

    assert done == ExportResult(exported=2, refused=1, failed=1, left=28)
