"""Dead letters are copied to S3, every one and once, whatever the bucket and the database do meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from tests.at_once import at_once
from tests.builders import MINUTE, add, stored
from tests.buried import letters
from tests.commands import Commands
from tests.conftest import T0, ManualClock
from tests.faults import failing
from tidemill import UnavailableError
from tidemill.dead_letters import CHANGING, LetterId, exporting, portions
from tidemill.documents import DEAD_LETTERS
from tidemill.export import Exported, ExportError, export, object_key, restored
from tidemill.export.putting import Putter
from tidemill.store import Tasks, open_tasks
from tidemill.testing import Mongod

DAY = timedelta(days=1)
DOWN = ExportError("InternalError", blame="bucket")
REFUSED = ExportError("InvalidArgument", blame="either")
TOO_LARGE = ExportError("EntityTooLarge", blame="object")


class Shelf:
    """A bucket in memory. ``fails`` are the errors of the puts to come, ``always`` is that of all of them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.always: ExportError | None = None
        self.refused: Callable[[str], ExportError | None] = lambda _: None
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes) -> None:
        with self._lock:
            self.keys.append(key)
            if error := self.always or self.refused(key):
                raise error
            assert self.objects.setdefault(key, body) == body, "it was put once more, and is another"


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def run(dead: Tasks, shelf: Shelf, clock: ManualClock, **options: Any) -> Exported:
    return export(dead, shelf.put, clock=clock, until=time.monotonic() + 60, **options)


def tasks_put(shelf: Shelf) -> list[int]:
    return [int(key.rsplit("/", 1)[1].split("-")[0]) for key in shelf.keys]


def test_every_letter_becomes_an_object_and_is_marked(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(1200), payload={"at": now, "n": 1.0}))
    before = {key_of(raw): bytes(raw.raw) for raw in dead.find()}

    assert run(dead, shelf, clock) == Exported(exported=1200)

    assert len(shelf.keys) == len(shelf.objects) == 1200
    assert {key: bytes(restored(body).raw) for key, body in shelf.objects.items()} == before
    assert dead.count_documents({"archived_at": now, "retain_from": now}) == 1200
    assert run(dead, shelf, clock) == Exported()


def key_of(raw: RawBSONDocument) -> str:
    return f"dlq/2031/07/01/{bson.decode(raw.raw)['_id']['task']}-0.json.gz"


def test_the_oldest_letters_are_exported_first_and_no_more_than_were_asked_for(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, reversed(letters(now, range(30))))

    assert run(dead, shelf, clock, limit=7) == Exported(exported=7, left=23)
    assert run(dead, shelf, clock, limit=7) == Exported(exported=7, left=16)

    assert (sorted(tasks_put(shelf)[:7]), sorted(tasks_put(shelf)[7:])) == ([*range(7)], [*range(7, 14)])


@pytest.mark.parametrize("mark", CHANGING)
def test_what_changes_of_a_letter_is_not_in_its_object(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, mark: str
) -> None:
    [plain] = letters(now, range(1))
    value = None if mark == "archived_at" else now
    add(dead, [plain | {mark: value}])

    run(dead, shelf, clock)

    [body] = shelf.objects.values()
    assert restored(body).raw == bson.encode(plain)


def test_the_bytes_of_a_letter_are_those_of_its_object(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    spoilt = bytearray(bson.encode(letters(now, range(1), payload={"text": "xxxx", "aa": 1, "ab": 2})[0]))
    spoilt[spoilt.index(b"xxxx")] = 0xFF
    spoilt[spoilt.index(b"ab\x00") + 1] = ord("a")
    add(dead, [RawBSONDocument(bytes(spoilt))])

    run(dead, shelf, clock)

    [body] = shelf.objects.values()
    assert restored(body).raw == bytes(spoilt)


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

    assert run(dead, shelf, clock) == Exported(exported=1)
    assert run(dead, shelf, clock) == Exported()

    [key] = shelf.keys
    assert key.isascii()
    assert len(key) <= 1024


def test_a_letter_whose_id_is_no_text_is_exported_once(dead: Tasks, shelf: Shelf, clock: ManualClock) -> None:
    ids = [
        bson.encode({"_id": {"task": "xx", "redrives": 0}}).replace(b"xx", spoilt) for spoilt in (b"\xffx", b"\xfex")
    ]
    add(dead, [RawBSONDocument(one) for one in ids])

    assert run(dead, shelf, clock) == Exported(exported=2)
    assert len(shelf.objects) == 2


def test_a_letter_that_s3_refuses_keeps_no_other_back_and_is_tried_less_and_less_often(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: TOO_LARGE if "/7-" in key else None

    assert run(dead, shelf, clock) == Exported(exported=9, refused=1, left=1)
    assert run(dead, shelf, clock) == Exported(left=1)

    found = stored(dead, {"task": 7, "redrives": 0})
    assert (found["export_attempts"], found["export_error"]) == (1, "EntityTooLarge")
    assert found["export_retry_at"] == now + 10 * MINUTE
    assert "archived_at" not in found
    waits = []
    for _ in range(10):
        clock.at = stored(dead, {"task": 7, "redrives": 0})["export_retry_at"]
        assert run(dead, shelf, clock) == Exported(refused=1, left=1)
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

    assert run(dead, shelf, clock) == Exported(exported=1)
    assert not stored(dead, {"task": 0, "redrives": 0}).keys() & {"export_attempts", "export_error", "export_retry_at"}


def test_a_bucket_that_is_away_is_given_up_soon_and_the_letters_are_as_they_were(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(400)))
    before = list(dead.find().sort("_id"))
    shelf.always = ExportError("AccessDenied", blame="either")

    done = run(dead, shelf, clock)

    assert done == Exported(failed=len(shelf.keys), left=400, trouble="AccessDenied")
    assert len(shelf.keys) < 3 * 16
    assert list(dead.find().sort("_id")) == before

    shelf.always = None
    assert run(dead, shelf, clock) == Exported(exported=400)


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

    assert done == Exported(exported=40, failed=len(shelf.keys) - 40, left=60, trouble="InternalError")

    shelf.refused = lambda _: None
    assert run(dead, shelf, clock) == Exported(exported=60)
    assert len(shelf.objects) == 100


def test_a_bucket_that_fails_now_and_then_is_not_given_up(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(300)))
    shelf.refused = lambda _: DOWN if len(shelf.keys) % 3 == 0 else None

    assert run(dead, shelf, clock) == Exported(exported=300, failed=149)


@pytest.mark.parametrize("options", [{}, {"limit": 40}], ids=["all", "as many as there are"])
def test_a_failure_that_passes_is_counted_and_no_trouble(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, options: dict[str, Any]
) -> None:
    add(dead, letters(now, range(40)))
    shelf.refused = lambda _: DOWN if len(shelf.keys) == 1 else None

    assert run(dead, shelf, clock, **options) == Exported(exported=40, failed=1)


def test_a_failure_that_passes_is_not_why_a_letter_is_left_that_was_refused(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: (
        TOO_LARGE if "/7-" in key else DOWN if "/3-" in key and tasks_put(shelf).count(3) == 1 else None
    )

    assert run(dead, shelf, clock) == Exported(exported=9, refused=1, failed=1, left=1)


def test_a_failure_is_why_letters_are_left_where_there_was_no_time_for_another_try(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: DOWN if "/9-" in key else None

    done = export(dead, shelf.put, clock=clock, until=10, monotonic=lambda: len(shelf.keys), threads=2)

    assert done == Exported(exported=9, failed=1, left=1, trouble="InternalError")


def test_a_failure_is_no_trouble_where_another_export_has_done_the_work(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(1)))

    def put(_key: str, _body: bytes) -> None:
        run(dead, shelf, clock)
        raise DOWN

    assert export(dead, put, clock=clock, until=time.monotonic() + 60) == Exported(failed=1)


def test_a_letter_that_only_fails_with_others_errors_does_not_keep_a_run_busy(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(5)))
    shelf.refused = lambda key: DOWN if "/3-" in key else None

    assert run(dead, shelf, clock) == Exported(exported=4, failed=2, left=1, trouble="InternalError")
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

    assert (done.refused, done.trouble) == (0, "SlowDown")
    assert dead.count_documents({"export_attempts": {"$exists": True}}) == 0


def test_a_letter_that_fails_twice_in_a_row_is_blamed_once(dead: Tasks, shelf: Shelf, now: datetime) -> None:
    add(dead, letters(now, [0]))
    shelf.always = REFUSED
    [raw] = dead.find()

    with Putter(shelf.put, threads=2, until=time.monotonic() + 60, monotonic=time.monotonic).open() as putter:
        putter.all([raw])
        putter.all([raw])
        assert putter.is_in_doubt
        assert len(putter.take_failed()) == 1


def test_what_was_refused_in_any_word_is_put_off_once_others_went_through(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, range(10)))
    shelf.refused = lambda key: REFUSED if "/0-" in key or "/1-" in key else None

    assert run(dead, shelf, clock, threads=1) == Exported(exported=8, refused=2, failed=2, left=2)

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

    assert done == Exported(exported=2, refused=1, failed=1, left=28)


def test_nothing_is_put_once_the_time_is_up(dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime) -> None:
    add(dead, letters(now, range(100)))

    done = export(dead, shelf.put, clock=clock, until=20, monotonic=lambda: len(shelf.keys), threads=1)

    assert done == Exported(exported=20, left=80)
    assert len(shelf.keys) == 20
    assert export(dead, shelf.put, clock=clock, until=0.0) == Exported(left=80)
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
    assert run(through, shelf, clock) == Exported(exported=3)
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
    assert export(dead, put, clock=clock, until=time.monotonic() + 60) == Exported(left=1)
    assert stored(dead, first["_id"]) == second

    shelf.always = None
    assert run(dead, shelf, clock) == Exported(exported=1)
    assert restored(shelf.objects[object_key(LetterId(task=0, redrives=0), now + DAY)]).raw == bson.encode(second)


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

    assert run(dead, shelf, clock) == (Exported(refused=1, left=1) if error else Exported(exported=1))


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
    assert run(dead, shelf, clock) == Exported(exported=300)
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
    """The first letter cannot be marked, as one that is as large as it may be already."""
    may_be_marked = {"$or": [{"_id.task": {"$ne": 0}}, {"archived_at": {"$exists": False}}]}
    dead.database.command("collMod", dead.name, validator=may_be_marked)
    yield
    dead.database.command("collMod", dead.name, validator={})


@pytest.mark.usefixtures("unmarkable")
def test_a_letter_that_cannot_be_marked_keeps_no_other_back(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "MAX_BYTES", 1)  # it comes alone
    add(dead, letters(now, range(4)))

    assert run(dead, shelf, clock) == Exported(exported=3, left=1)
    assert sorted(tasks_put(shelf)) == [0, 0, 1, 2, 3]


def test_large_letters_are_not_all_held_at_once(dead: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "MAX_BYTES", 16_000)
    add(dead, letters(now, range(12), payload={"filler": "x" * 3000}))

    held = exporting.unexported(dead, limit=100, batch=10, now=now)

    assert [len(one) for one in held] == [5, 5, 2]


def test_a_letter_that_may_expire_unexported_is_exported_all_the_same(
    dead: Tasks, shelf: Shelf, clock: ManualClock, now: datetime
) -> None:
    add(dead, [one | {"retain_from": now - DAY} for one in letters(now, range(2))])

    assert run(dead, shelf, clock) == Exported(exported=2)
    assert dead.count_documents({"archived_at": now, "retain_from": now}) == 2
