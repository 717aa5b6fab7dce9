"""A write that is refused beside others says nothing of these: no majority has them until it says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, UpdateOne
from pymongo.errors import BulkWriteError

from tests.builders import MINUTE, add, document
from tests.faults import failing
from tests.handlers import wire
from tidemill import UnavailableError
from tidemill.dead_letters.archive import insert_dead_letters
from tidemill.store import tasks as store_tasks
from tidemill.store import writes
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.writes import find_refused_writes, write_each
from tidemill.testing import Mongod

UNCONFIRMED = {"code": 64, "errmsg": "waiting for replication timed out"}
STEPPED_DOWN = {"code": 189, "errmsg": "primary stepped down", "errorLabels": ["RetryableWriteError"]}


def _raw(fields: dict[str, Any]) -> RawBSONDocument:
    return RawBSONDocument(bson.encode(fields))


def _letter(task: str) -> dict[str, Any]:
    return {"task": task, "redrives": 0}


WRITES: dict[str, tuple[str, Callable[[Tasks, datetime], object]]] = {
    "bury": (
        "insert",
        lambda tasks, now: insert_dead_letters(tasks, [_raw(document(now, _id=_letter(n))) for n in ("there", "new")]),
    ),
    "insert": (
        "insert",
        lambda tasks, now: writes.insert_each(tasks, [_raw(document(now, _id=n)) for n in ("there", "new")]),
    ),
    "add_in_order": (
        "insert",
        lambda tasks, now: writes.insert_in_order(tasks, [document(now, _id=n) for n in ("new", "there")]),
    ),
    "write_each": (
        "update",
        lambda tasks, _now: write_each(
            tasks,
            [UpdateOne({"_id": "there"}, {"$set": {"_id": 7}}), UpdateOne({"_id": "there"}, {"$set": {"priority": 7}})],
        ),
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_that_no_majority_has_confirmed_are_not_taken_for_done(mine: Tasks, now: datetime, write: str) -> None:
    command, do = WRITES[write]
    add(mine, [document(now, _id=there) for there in ("there", _letter("there"))])

    with failing(mine, command, writeConcernError=UNCONFIRMED), pytest.raises(UnavailableError):
        do(mine, now)

    do(mine, now)  # and with nothing to fear it is no error


CHANGES: dict[str, Callable[[Tasks, Any, datetime], object]] = {
    "add_once": lambda tasks, _id, now: writes.insert_once(tasks, document(now, idempotency_key="order-7")),
    "cancel": lambda tasks, task_id, now: store_tasks.cancel(tasks, task_id, now=now),
    "retry_now": lambda tasks, task_id, now: store_tasks.retry_now(tasks, task_id, now=now),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_meets_a_change_of_primary_is_repeated_and_at_last_unavailable(
    mine: Tasks, now: datetime, change: str
) -> None:
    first, second = add(mine, [document(now, due_at=now + MINUTE, next_retry_at=now + MINUTE) for _ in range(2)])

    with failing(mine, "findAndModify", times=1, writeConcernError=STEPPED_DOWN):
        assert CHANGES[change](mine, first, now) is not None
    with failing(mine, "findAndModify", times=9, writeConcernError=STEPPED_DOWN), pytest.raises(UnavailableError):
        CHANGES[change](mine, second, now)


def test_a_repeated_insert_that_finds_its_task_there_waits_for_a_majority_too(
    mongod: Mongod, tasks: Tasks, now: datetime
) -> None:
    wanted = document(now)
    with wire.proxy(mongod.uri) as road:
        name = tasks.database.name
        with MongoClient[dict[str, Any]](road.uri, appname=name, heartbeatFrequencyMS=500, retryWrites=False) as client:
            mine = open_tasks(client[name])
            with failing(mine, "insert", times=9, writeConcernError=UNCONFIRMED):
                road.lose_reply_of("insert")
                with pytest.raises(UnavailableError):
                    writes.insert_task(mine, wanted)

    assert tasks.count_documents({}) == 1


@pytest.mark.parametrize(
    "details",
    [
        {"writeErrors": [], "writeConcernErrors": [UNCONFIRMED]},
        {"writeErrors": [{"index": 0, "code": 11000}], "writeConcernErrors": [UNCONFIRMED]},
        {"writeErrors": [], "writeConcernErrors": []},
    ],
)
def test_what_is_not_only_refused_is_raised(details: dict[str, Any]) -> None:
    with pytest.raises(BulkWriteError):
        find_refused_writes(BulkWriteError(details))
