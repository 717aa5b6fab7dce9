"""Dead letters are copied to S3, every one and once, whatever the bucket and the database do meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.at_once import at_once
from tests.builders import MINUTE, add, stored
from tests.buried import letters
from tests.faults import failing
from tests.fixtures import T0, ManualClock
from tests.shelves import TOO_LARGE, Shelf, run, tasks_put
from tidemill import UnavailableError
from tidemill.dead_letters import export as dead_letters_export
from tidemill.dead_letters.documents import CHANGING_FIELDS
from tidemill.dead_letters.export import BATCH_SIZE, export
from tidemill.dead_letters.export_format import ExportError, ExportResult, decode_object, read_object_key
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.paging import MAX_BATCH_BYTES

DAY = timedelta(days=1)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_every_letter_becomes_an_object_and_is_marked(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(1200), payload={"at": now, "n": 1.0}))
    before = {key_of(raw): bytes(raw.raw) for raw in dead.find()}

    assert run(dead, shelf, clock) == ExportResult(exported=1200)

    assert len(shelf.keys) == len(shelf.objects) == 1200
    assert {key: bytes(decode_object(body).raw) for key, body in shelf.objects.items()} == before
    assert dead.count_documents({"archived_at": now, "retain_from": now}) == 1200
    assert run(dead, shelf, clock) == ExportResult()


def key_of(raw: RawBSONDocument) -> str:
    return f"dlq/2031/07/01/{bson.decode(raw.raw)['_id']['task']}-0.json.gz"


def test_the_oldest_letters_are_exported_first_and_no_more_than_were_asked_for(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, reversed(letters(now, range(30))))

    assert run(dead, shelf, clock, limit=7) == ExportResult(exported=7, left=23)
    assert run(dead, shelf, clock, limit=7) == ExportResult(exported=7, left=16)

    assert (sorted(tasks_put(shelf)[:7]), sorted(tasks_put(shelf)[7:])) == ([*range(7)], [*range(7, 14)])


@pytest.mark.parametrize("mark", CHANGING_FIELDS)
def test_what_changes_of_a_letter_is_not_in_its_object(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, mark: str
) -> None:
    [plain] = letters(now, range(1))
    value = None if mark == "archived_at" else now
    add(dead, [plain | {mark: value}])

    run(dead, shelf, clock)

    [body] = shelf.objects.values()
    assert decode_object(body).raw == bson.encode(plain)


def test_the_bytes_of_a_letter_are_those_of_its_object(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    spoilt = bytearray(bson.encode(letters(now, range(1), payload={"text": "xxxx", "aa": 1, "ab": 2})[0]))
    spoilt[spoilt.index(b"xxxx")] = 0xFF
    spoilt[spoilt.index(b"ab\x00") + 1] = ord("a")
    add(dead, [RawBSONDocument(bytes(spoilt))])

    run(dead, shelf, clock)

    [body] = shelf.objects.values()
    assert decode_object(body).raw == bytes(spoilt)


@pytest.mark.parametrize(
    "letter_id",
    [
        {"task": "é😀\n", "redrives": 0}, {"task": {"a": 1}, "redrives": 1}, {"task": b"\x00", "redrives": 0},
        "by hand", {"task": 1}, 7, {"redrives": 0, "task": "x" * 1100},
    ],
    ids=repr,
)  # fmt: skip
def test_a_letter_of_any_id_is_exported_once(dead: Tasks, shelf: Shelf, clock: ManualClock, letter_id: Any) -> None:
    add(dead, [{"_id": letter_id}])

    assert run(dead, shelf, clock) == ExportResult(exported=1)
    assert run(dead, shelf, clock) == ExportResult()

    [key] = shelf.keys
    assert key.isascii()
    assert len(key) <= 1024


def test_a_letter_whose_id_is_no_text_is_exported_once(dead: Tasks, shelf: Shelf, clock: ManualClock) -> None:
    ids = [
        bson.encode({"_id": {"task": "xx", "redrives": 0}}).replace(b"xx", spoilt) for spoilt in (b"\xffx", b"\xfex")
    ]
    add(dead, [RawBSONDocument(one) for one in ids])

    assert run(dead, shelf, clock) == ExportResult(exported=2)
    assert len(shelf.objects) == 2


def test_nothing_is_put_once_the_time_is_up(dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime) -> None:
    add(dead, letters(now, range(100)))

    done = export(dead, shelf.put, clock=clock, until=20, monotonic=lambda: len(shelf.keys), threads=1)

    assert done == ExportResult(exported=20, left=80)
    assert len(shelf.keys) == 20
    assert export(dead, shelf.put, clock=clock, until=0.0) == ExportResult(left=80)
    assert len(shelf.keys) == 20


def test_an_export_that_stopped_between_put_and_mark_puts_the_same_again(
    mine: Tasks, dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(3)))
    through = open_tasks(mine.database, DEAD_LETTERS)
    with failing(mine, "update", errorCode=11601), pytest.raises(UnavailableError):
        run(through, shelf, clock)
    assert (len(shelf.objects), dead.count_documents({"archived_at": None})) == (3, 3)

    clock.move(MINUTE)
    assert run(through, shelf, clock) == ExportResult(exported=3)
    assert (len(shelf.objects), len(shelf.keys)) == (3, 6)


@pytest.mark.parametrize("error", [None, TOO_LARGE])
def test_a_letter_that_took_the_place_of_another_meanwhile_is_exported_itself(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, error: ExportError | None
) -> None:
    [first] = letters(now, range(1))
    second = first | {"dead_lettered_at": now + DAY, "payload": {"n": 2}}
    add(dead, [first])

    def put(key: str, body: bytes) -> None:
        dead.delete_one({"_id": first["_id"]})
        add(dead, [second])
        shelf.put(key, body)

    shelf.always = error
    assert export(dead, put, clock=clock, until=time.monotonic() + 60) == ExportResult(left=1)
    assert stored(dead, first["_id"]) == second

    shelf.always = None
    assert run(dead, shelf, clock) == ExportResult(exported=1)
    key = read_object_key(RawBSONDocument(bson.encode(second)))
    assert decode_object(shelf.objects[key]).raw == bson.encode(second)


@pytest.mark.parametrize(
    "died_at",
    [None, "2031", 7, [], [T0, 7], Timestamp(1, 2), DatetimeMS(2**60), {}, Regex("a")],
    ids=repr,
)
@pytest.mark.parametrize("error", [None, TOO_LARGE])
def test_a_letter_of_any_day_is_marked_at_once(
    dead: Tasks, shelf: Shelf, clock: ManualClock, error: ExportError | None, died_at: Any
) -> None:
    add(dead, [{"_id": 1, "dead_lettered_at": died_at}])
    shelf.always = error

    assert run(dead, shelf, clock) == (ExportResult(refused=1, left=1) if error else ExportResult(exported=1))


def test_an_export_that_is_interrupted_puts_nothing_more(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(300)))

    def put(key: str, body: bytes) -> None:
        shelf.put(key, body)
        if len(shelf.keys) == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(dead, put, clock=clock, until=time.monotonic() + 60, threads=1)

    assert dead.count_documents({"archived_at": None}) == 300
    assert len(shelf.keys) == 50
    assert run(dead, shelf, clock) == ExportResult(exported=300)
    assert (len(shelf.objects), len(shelf.keys)) == (300, 350)


def test_two_exporters_at_once_make_one_object_a_letter(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(700)))

    done = at_once("AB", lambda _: run(dead, shelf, clock))

    assert sum(one.exported for one in done) == 700
    assert len(shelf.objects) == 700
    assert dead.count_documents({"archived_at": None}) == 0


@pytest.fixture
def unmarkable(dead: Tasks) -> Iterator[None]:
    """Letters of a whole batch cannot be marked, as one that is as large as it may be already."""
    may_be_marked = {"$or": [{"_id.task": {"$gte": BATCH_SIZE}}, {"archived_at": {"$exists": False}}]}
    dead.database.command("collMod", dead.name, validator=may_be_marked)
    yield
    dead.database.command("collMod", dead.name, validator={})


@pytest.mark.usefixtures("unmarkable")
def test_letters_that_cannot_be_marked_keep_no_other_back(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(BATCH_SIZE + 3)))

    assert run(dead, shelf, clock) == ExportResult(exported=3, left=BATCH_SIZE)
    assert sorted(tasks_put(shelf)) == sorted([*range(BATCH_SIZE), *range(BATCH_SIZE + 3)])


def test_large_letters_are_not_all_held_at_once(dead: Tasks, now: datetime) -> None:
    add(dead, letters(now, range(5), payload={"filler": "x" * (MAX_BATCH_BYTES // 3)}))

    held = dead_letters_export.find_unexported(dead, limit=100, batch=10, now=now)

    assert [len(one) for one in held] == [3, 2]


def test_a_letter_that_may_expire_unexported_is_exported_all_the_same(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, [one | {"retain_from": now - DAY} for one in letters(now, range(2))])

    assert run(dead, shelf, clock) == ExportResult(exported=2)
    assert dead.count_documents({"archived_at": now, "retain_from": now}) == 2
