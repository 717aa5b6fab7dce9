"""A crash before or after any call of the archive or of a redrive loses nothing, and makes nothing twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.builders import MINUTE, add, document
from tests.buried import failed, letter
from tests.crash_points import Point, calls, crash, points
from tests.features.dead_letters.graveyard import Graveyard, opened
from tests.fixtures import T0, ManualClock
from tidemill.dead_letters.documents import CHANGING_FIELDS, DeadLetterId
from tidemill.dead_letters.export_format import encode_object, read_object_key

pytestmark = pytest.mark.slow

DAY = timedelta(days=1)
PAYLOAD = RawBSONDocument(bson.encode({"": {"$gt": "a.b"}, "big": 2**53 + 1, "one": 1.0, "bytes": b"\xff"}))
NOT_UTF8 = RawBSONDocument(bson.encode({"text": "x"}).replace(b"x\x00", b"\xff\x00"))
BACK = {"to be inserted", "to be closed"}


@pytest.fixture
def graveyard(db: Database[Any], clock: ManualClock) -> Iterator[Graveyard]:
    with opened(db, clock) as graveyard:
        yield graveyard


def test_a_crash_anywhere_in_the_archive_loses_nothing_and_makes_nothing_twice(  # F55
    graveyard: Graveyard,
) -> None:
    now = graveyard.clock.now()
    add(graveyard.dead, [letter(now, _id=task, payload=PAYLOAD) for task in sorted(BACK)])
    for task in BACK:
        _cut_short(graveyard, task, after=task == "to be closed")
    add(
        graveyard.tasks,
        [
            failed(now, payload=NOT_UTF8),
            failed(now, _id="lost & found", reason="worker_lost", redrives=2),
            failed(now, _id=7, reason="malformed", payload="text"),
            failed(now, _id="moved by half"),
            failed(now, _id="lived before"),
            {"_id": ObjectId(), "status": "failed"},
        ],
    )
    add(graveyard.dead, [letter(now, _id="moved by half"), letter(now - DAY, _id="lived before", payload=PAYLOAD)])

    met = _crash_everywhere(replace(graveyard, put=None, batch_size=3), back=BACK)

    assert met >= {"insert tasks_dlq", "delete tasks", "insert tasks", "update tasks_dlq"}


def test_a_crash_anywhere_in_an_archive_with_a_bucket_leaves_one_object_a_death(
    graveyard: Graveyard,
) -> None:  # F55, F57
    now = graveyard.clock.now()
    add(graveyard.tasks, [failed(now), failed(now, payload=NOT_UTF8)])
    add(graveyard.dead, [letter(now, _id="exported by nobody", payload=PAYLOAD)])

    met = _crash_everywhere(graveyard, back=set())

    assert met >= {"insert tasks_dlq", "delete tasks", "PutObject", "update tasks_dlq"}


def _crash_everywhere(graveyard: Graveyard, *, back: set[str]) -> set[str]:
    """Crash at each call of the archive, let it run again a day later, and return the calls that were met."""
    tasks, letters = graveyard.holdings()
    deaths = {death(raw): payload(raw) for raw in [*tasks, *letters] if raw.get("status") == "failed"}

    def filled_anew() -> Graveyard:
        graveyard.fill(tasks, letters)
        graveyard.clock.at = T0 + 2 * MINUTE
        return graveyard

    met = set()
    for point, _ in points(Graveyard.archive, filled_anew):
        graveyard.clock.move(DAY)
        graveyard.archive()

        met.add(point.call)
        alive, dead = graveyard.holdings()
        assert [(raw["_id"], raw["redrives"]) for raw in alive] == [(task, 1) for task in sorted(back)], point
        assert [payload(raw) for raw in alive] == [bytes(PAYLOAD.raw)] * len(back), point
        assert {death(raw): payload(raw) for raw in dead} == deaths, point
        assert len(dead) == len(deaths), point
        if graveyard.put:
            _assert_exported_once(graveyard, point)
    return met


def _cut_short(graveyard: Graveyard, task: str, *, after: bool) -> None:
    def redrive(graveyard: Graveyard) -> None:
        graveyard.redrive(ids=(DeadLetterId(task=task, redrives=0),))

    as_it_is = graveyard.holdings()
    number = calls(redrive, graveyard).index("insert tasks") + 1
    graveyard.fill(*as_it_is)
    crash(redrive, graveyard, number=number, after=after)


def _assert_exported_once(graveyard: Graveyard, point: Point) -> None:
    unmarked = graveyard.dead.find({}, dict.fromkeys(CHANGING_FIELDS, 0))
    objects = {read_object_key(raw): f'"{hashlib.md5(encode_object(raw)).hexdigest()}"' for raw in unmarked}
    assert graveyard.etags() == objects, point


@pytest.mark.parametrize("next_to_run", [Graveyard.archive, Graveyard.redrive_all])
def test_a_crash_anywhere_in_a_redrive_leaves_every_task_alive_once(
    graveyard: Graveyard, next_to_run: Callable[[Graveyard], object]
) -> None:
    graveyard = replace(graveyard, put=None)
    now = graveyard.clock.now()
    back = {f"task {n}" for n in range(5)}
    add(graveyard.dead, [letter(now, _id=task, payload=PAYLOAD) for task in sorted(back)])
    add(
        graveyard.dead,
        [
            letter(now, _id="alive", payload=PAYLOAD),
            letter(now, _id="key held", payload=PAYLOAD, idempotency_key="k"),
            letter(now, _id="?", payload=PAYLOAD, name="?"),
        ],
    )
    add(graveyard.tasks, [document(now, _id="alive"), document(now, _id="other", idempotency_key="k")])
    tasks, letters = graveyard.holdings()

    def redrive(graveyard: Graveyard) -> None:
        graveyard.redrive_all(limit=3)

    def filled_anew() -> Graveyard:
        graveyard.fill(tasks, letters)
        graveyard.clock.at = T0 + 2 * MINUTE
        return graveyard

    met = set()
    for point, _ in points(redrive, filled_anew):
        graveyard.clock.move(2 * MINUTE)
        next_to_run(graveyard)
        redrive(graveyard)

        met.add(point.call)
        alive, dead = graveyard.holdings()
        assert Counter(raw["_id"] for raw in alive) == dict.fromkeys({*back, "alive", "other"}, 1), point
        came_back = [raw for raw in alive if raw["_id"] in back]
        assert {(raw["status"], raw["redrives"], payload(raw)) for raw in came_back} == {
            ("pending", 1, bytes(PAYLOAD.raw))
        }, point
        assert {raw["_id"]["task"] for raw in dead if "redriven_at" in raw} == back, point
        assert not any("redrive_started_at" in raw for raw in dead), point
        assert [payload(raw) for raw in dead] == [payload(raw) for raw in letters], point

    assert met >= {"update tasks_dlq", "insert tasks"}


def death(raw: RawBSONDocument) -> tuple[bytes, Any, Any]:
    """What tells one death from all others: whose, and when."""
    own = raw["_id"]
    task = own["task"] if isinstance(own, RawBSONDocument) else own
    return bson.encode({"": task}), raw.get("created_at"), raw.get("finished_at")


def payload(raw: RawBSONDocument) -> Any:
    value = raw.get("payload")
    return bytes(value.raw) if isinstance(value, RawBSONDocument) else value
