"""Faults that queues had with their dead letters: lost on the way, not to be read again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId, Regex
from pymongo.database import Database

from tests.builders import MINUTE, add, stored
from tests.buried import failed, letter
from tests.crash_points import calls, crash
from tests.faults import failing
from tests.features.dead_letters.graveyard import BUCKET, Graveyard, opened
from tests.fixtures import ManualClock
from tidemill.dead_letters.archive import ArchiveError, Report, move_failed
from tidemill.dead_letters.documents import CHANGING_FIELDS
from tidemill.dead_letters.export_format import ExportError, encode_object, restore
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks

DAY = timedelta(days=1)
INTERRUPTED = 11601


@pytest.fixture
def graveyard(db: Database[Any], clock: ManualClock) -> Iterator[Graveyard]:
    with opened(db, clock) as graveyard:
        yield graveyard


@pytest.mark.parametrize("call", ["insert tasks_dlq", "delete tasks", "PutObject", "update tasks_dlq"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_what_a_crash_left_is_finished_once_by_two_archivers_at_once(  # F55
    graveyard: Graveyard, call: str, side: str
) -> None:
    graveyard = replace(graveyard, batch_size=5)
    add(graveyard.tasks, [failed(graveyard.clock.now(), _id=n) for n in range(12)])
    as_it_was = graveyard.holdings()
    number = calls(Graveyard.archive, graveyard).index(call) + 1
    graveyard.fill(*as_it_was)
    crash(Graveyard.archive, graveyard, number=number, after=side == "after")

    graveyard.clock.move(DAY)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Graveyard.archive, [graveyard, graveyard]))

    alive, dead = graveyard.holdings()
    assert (alive, [raw["_id"]["task"] for raw in dead]) == ([], list(range(12)))
    assert sorted(raw["_id"]["task"] for raw in graveyard.objects().values()) == list(range(12))


def test_two_archivers_share_the_work(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:  # F55
    add(tasks, [failed(clock.now() + n * MINUTE) for n in range(1500)])

    def run(_: int) -> Report:
        return move_failed(tasks, dead, clock=clock, until=time.monotonic() + 60, batch_size=100)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, range(2)))

    assert sum(one.moved for one in done) == 1500
    assert (tasks.count_documents({}), dead.count_documents({})) == (0, 1500)
    assert sum(one.repeated for one in done) < 1500 / 4, done


@pytest.mark.parametrize("command", ["insert tasks_dlq", "delete tasks", "update tasks_dlq"])
def test_what_is_in_the_bucket_stays_one_object_though_the_database_was_away_behind_it(  # F57
    graveyard: Graveyard, mine: Tasks, command: str
) -> None:
    add(graveyard.tasks, [failed(graveyard.clock.now(), _id=n) for n in range(3)])
    name, collection = command.split()
    over_mine = replace(graveyard, db=mine.database)
    fault = {"errorCode": INTERRUPTED, "namespace": f"{mine.database.name}.{collection}"}
    with failing(mine, name, times=99, **fault), pytest.raises(ArchiveError):
        over_mine.archive()
    before = graveyard.objects()

    graveyard.clock.move(DAY)
    graveyard.archive()

    after = graveyard.objects()
    assert (graveyard.tasks.count_documents({}), len(after)) == (0, 3)
    assert before.items() <= after.items()
    assert graveyard.dead.count_documents({"archived_at": {"$type": "date"}}) == 3


@pytest.mark.parametrize("code", ["InternalError", "AccessDenied", "NoSuchBucket", "ReadTimeoutError"])
def test_a_bucket_that_is_away_holds_up_neither_the_move_nor_a_redrive(graveyard: Graveyard, code: str) -> None:  # F57
    def refuse(_key: str, _body: bytes) -> None:
        raise ExportError(code, blame="either")

    add(graveyard.tasks, [failed(graveyard.clock.now(), _id=n) for n in range(3)])

    report = replace(graveyard, put=refuse).archive()
    assert (report.moved, report.exported, report.unexported, report.export_error) == (3, 0, 3, code)
    graveyard.clock.move(MINUTE)
    assert graveyard.redrive(limit=1).redriven == 1

    assert graveyard.archive().exported == 3
    assert len(graveyard.objects()) == 3


def test_a_letter_comes_back_from_the_bucket_alone_with_the_bytes_that_were_enqueued(
    graveyard: Graveyard,
) -> None:  # F58
    now = graveyard.clock.now()
    payload = {
        "when": now,
        "bytes": b"\x00\xff",
        "big": 2**53 + 1,
        "float": 1.0,
        "nested": {"id": ObjectId(), "$gt": {"a.b": ""}},
        "money": Decimal128("1.10"),
        "pattern": Regex("a.*", "i"),
    }
    encoded = bson.encode(payload)
    [task_id] = add(graveyard.tasks, [failed(now, payload=payload)])
    graveyard.archive()
    [buried] = graveyard.dead.find({}, dict.fromkeys(CHANGING_FIELDS, 0))
    [copy] = graveyard.objects().values()
    assert bytes(copy.raw) == bytes(buried.raw)

    graveyard.dead.delete_many({})
    graveyard.clock.move(MINUTE)
    restore(graveyard.dead, encode_object(copy), now=graveyard.clock.now())
    graveyard.redrive_all()

    [back] = graveyard.tasks.find({"_id": task_id})
    assert bytes(back["payload"].raw) == encoded


@pytest.mark.parametrize(
    "task_id", ["../../x", "/a//b", "a: b", "envoi-é😀", "x" * 1100, "a\nb", "", ".", "~", b"\x00"]
)
def test_what_users_write_is_in_no_key_and_in_no_metadata(graveyard: Graveyard, task_id: Any) -> None:  # F59
    error = {"message": "no\nwith é😀", "code": "é\n"}
    add(graveyard.tasks, [failed(graveyard.clock.now(), _id=task_id, name="envoi-é😀", error=error)])

    assert graveyard.archive().exported == 1

    [key] = graveyard.objects()
    assert re.fullmatch(r"dlq/\d{4}/\d\d/\d\d/[A-Za-z0-9._~%-]+\.json\.gz", key)
    assert len(key) <= 1024
    assert graveyard.s3.head_object(Bucket=BUCKET, Key=key)["Metadata"] == {}
    assert graveyard.s3.get_object_tagging(Bucket=BUCKET, Key=key)["TagSet"] == []


def test_one_bad_task_holds_up_no_other_and_is_not_tried_all_the_time(graveyard: Graveyard) -> None:  # F60
    now = graveyard.clock.now()
    graveyard.db.command("collMod", DEAD_LETTERS, validator={"name": {"$ne": "barred"}})
    add(graveyard.tasks, [failed(now, _id=n, name="barred" if n == 7 else "noop") for n in range(10)])
    add(graveyard.dead, [letter(now, _id=4)])

    report = graveyard.archive()

    assert (report.moved, report.repeated, report.stuck, report.exported) == (9, 1, 1, 9)
    [left] = graveyard.tasks.find()
    assert (left["_id"], left["archive_attempts"], bool(left["archive_error"])) == (7, 1, True)
    assert graveyard.archive().stuck == 0
    graveyard.clock.move(10 * MINUTE)
    assert graveyard.archive().stuck == 1
    assert stored(graveyard.tasks, 7)["archive_attempts"] == 2
    graveyard.db.command("collMod", DEAD_LETTERS, validator={})


def test_one_letter_that_the_bucket_refuses_holds_up_no_other_and_is_tried_later(graveyard: Graveyard) -> None:  # F60
    tried: list[str] = []

    def put(key: str, _body: bytes) -> None:
        tried.append(key)
        if "/7-0" in key:
            raise ExportError("KeyTooLongError", blame="object")

    picky = replace(graveyard, put=put)
    add(graveyard.tasks, [failed(graveyard.clock.now(), _id=n) for n in range(10)])

    report = picky.archive()

    assert (report.moved, report.exported, report.export_refused, report.unexported) == (10, 9, 1, 1)
    assert (picky.archive().export_refused, len(tried)) == (0, 10)
    graveyard.clock.move(10 * MINUTE)
    assert (picky.archive().export_refused, len(tried)) == (1, 11)
    refused = stored(graveyard.dead, {"task": 7, "redrives": 0})
    assert (refused["export_attempts"], refused["export_error"]) == (2, "KeyTooLongError")
