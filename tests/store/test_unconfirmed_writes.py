"""A write that is refused beside others says nothing of these: no majority has them until it says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from tests.builders import add, document
from tests.faults import failing
from tidemill import UnavailableError
from tidemill.dead_letters import moving, redriving
from tidemill.store import Tasks, intake
from tidemill.store.writes import refused_in, write_each

UNCONFIRMED = {"code": 64, "errmsg": "waiting for replication timed out"}


def _raw(fields: dict[str, Any]) -> RawBSONDocument:
    return RawBSONDocument(bson.encode(fields))


def _letter(task: str) -> dict[str, Any]:
    return {"task": task, "redrives": 0}


WRITES: dict[str, tuple[str, Callable[[Tasks, datetime], object]]] = {
    "bury": (
        "insert",
        lambda tasks, now: moving.bury(tasks, [_raw(document(now, _id=_letter(n))) for n in ("there", "new")]),
    ),
    "insert": (
        "insert",
        lambda tasks, now: redriving.insert(tasks, [_raw(document(now, _id=n)) for n in ("there", "new")]),
    ),
    "add_missing": (
        "insert",
        lambda tasks, now: intake.add_missing(tasks, [document(now, _id=n) for n in ("there", "new")]),
    ),
    "add_in_order": (
        "insert",
        lambda tasks, now: intake.add_in_order(tasks, [document(now, _id=n) for n in ("new", "there")]),
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
        refused_in(BulkWriteError(details))
