"""A letter that was exported comes back among the dead letters with the bytes that it had."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId, Regex

from tests.builders import MINUTE, add, document, stored
from tests.fixtures import ManualClock
from tests.unit.make import raw
from tidemill import TidemillError
from tidemill.dead_letters.documents import DeadLetterId, build_dead_letter
from tidemill.dead_letters.export import export
from tidemill.dead_letters.export_format import encode_object, restore
from tidemill.store.connection import Tasks

MARKS = {"archived_at": 0, "retain_from": 0}


def exported(dead: Tasks, clock: ManualClock) -> list[bytes]:
    objects: dict[str, bytes] = {}
    export(dead, objects.__setitem__, clock=clock, until=time.monotonic() + 60)
    return list(objects.values())


def test_a_task_that_died_was_exported_and_expired_is_restored_byte_for_byte(
    dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    payload = {
        "at": now, "bytes": b"\x00\xff", "big": 2**53 + 1, "float": 1.0, "id": ObjectId(), "money": Decimal128("1.10"),
        "pattern": Regex("a.*", "i"), "user.email": "a", "$gt": "", "": {"$date": "x"},
    }  # fmt: skip
    before = build_dead_letter(raw(document(now, status="failed", finished_at=now, payload=payload)), now=now)
    add(dead, [before])
    [body] = exported(dead, clock)
    dead.delete_many({})

    later = clock.move(MINUTE)
    letter_id = restore(dead, body, now=later)

    [after] = list(dead.find({}, MARKS))
    assert after.raw == before.raw
    assert letter_id is not None
    found = stored(dead, letter_id.document())
    assert (found["archived_at"], found["retain_from"]) == (later, later)
    assert exported(dead, clock) == []


def test_a_letter_that_is_there_is_left_as_it_is(dead: Tasks, clock: ManualClock, now: datetime) -> None:
    letter = {"_id": {"task": "a", "redrives": 2}, "dead_lettered_at": now, "payload": {}}
    add(dead, [letter])
    [body] = exported(dead, clock)
    dead.update_one({}, {"$set": {"redriven_at": now, "payload": {"n": 1}}})
    [before] = list(dead.find())

    assert restore(dead, body, now=now + MINUTE) is None
    assert list(dead.find()) == [before]

    dead.delete_many({})
    assert restore(dead, body, now=now + MINUTE) == DeadLetterId(task="a", redrives=2)
    assert "redriven_at" not in stored(dead, letter["_id"])


@pytest.mark.parametrize("body", [b"", b"{}", encode_object(raw({"a": 1}))])
def test_what_is_no_exported_letter_is_not_stored(dead: Tasks, now: datetime, body: bytes) -> None:
    with pytest.raises(TidemillError):
        restore(dead, body, now=now)

    assert dead.count_documents({}) == 0


def test_a_letter_as_large_as_a_document_can_be_is_restored(dead: Tasks, now: datetime) -> None:
    letter: dict[str, Any] = {"_id": {"task": "a", "redrives": 0}, "payload": {"filler": ""}}
    letter["payload"]["filler"] = "x" * (16 * 1024 * 1024 - len(bson.encode(letter)))

    assert restore(dead, encode_object(raw(letter)), now=now) == DeadLetterId(task="a", redrives=0)
    assert dead.find_one({}) == raw(letter)
