"""Documents no claim can see: found, adopted, quarantined; and tasks past their expiry."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from bson.regex import Regex
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, claim, document, stored
from tests.commands import Commands
from tests.faults import failing
from tidemill import UnavailableError
from tidemill.model import Malformed
from tidemill.store import recovery
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.writes import WriteCounts
from tidemill.testing import Mongod

STRAYS: list[dict[str, Any]] = [
    {"queue": None},
    {"queue": 7},
    {"lane": None},
    {"lane": "slow"},
    {"lane": 3},
    {"due_at": None},
    {"due_at": "2026-07-01T09:00:00Z"},
    {"due_at": 1767225600},
    {"due_at": [None]},
    {"due_at": []},
    {"due_at": True},
    {"due_at": 1.5},
    {"due_at": {"$date": 1}},
]


@pytest.mark.parametrize("fields", STRAYS, ids=str)
def test_a_document_out_of_every_claims_sight_is_found(tasks: Tasks, now: datetime, fields: dict[str, Any]) -> None:
    [stray, _] = add(tasks, [document(now, **fields), document(now)])

    assert len(claim(tasks, now).tasks) == 1
    assert [raw["_id"] for raw in recovery.find_unclaimable(tasks, limit=10)] == [stray]


@pytest.mark.parametrize("field", ["queue", "lane", "due_at"])
def test_a_document_that_lacks_what_claims_go_by_is_found(tasks: Tasks, now: datetime, field: str) -> None:
    stray = document(now)
    del stray[field]
    add(tasks, [stray, document(now)])

    assert [raw["_id"] for raw in recovery.find_unclaimable(tasks, limit=10)] == [stray["_id"]]


def test_the_search_for_strays_is_bounded(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue=None) for _ in range(5)] + [document(now, lane="x") for _ in range(5)])

    assert len(recovery.find_unclaimable(tasks, limit=7)) == 7


def test_strays_that_were_tried_are_not_found_again(tasks: Tasks, now: datetime) -> None:
    ids = add(tasks, [document(now, queue=None), document(now, lane="x"), document(now, due_at=1)])

    assert sorted(raw["_id"] for raw in recovery.find_unclaimable(tasks, limit=10, excluded_ids=ids[:2])) == ids[2:]


@pytest.mark.parametrize("queue", [Regex("def"), {"$ne": 1}, ["default"], [None], [{"$ne": 1}], {"a": 1}, 7.5, True])
def test_a_queue_of_any_kind_stands_for_itself_only(tasks: Tasks, now: datetime, queue: object) -> None:
    [stray, *_] = add(tasks, [document(now, queue=queue), document(now), document(now, queue="other")])

    assert [raw["_id"] for raw in recovery.find_unclaimable(tasks, limit=10)] == [stray]


def test_strays_are_found_in_as_many_commands_whatever_the_number_of_queues(
    mongod: Mongod, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now, queue=f"q{n % 100}", lane="x") for n in range(200)])
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        assert len(recovery.find_unclaimable(open_tasks(client[db.name]), limit=500)) == 200
        assert len(commands.names) == 4


def test_adoption_adds_what_is_absent_and_only_that(tasks: Tasks, now: datetime) -> None:
    [stray] = add(tasks, [{"payload": {"a": 1}, "status": "pending", "attempts": 0, "next_retry_at": None}])

    written = recovery.adopt(tasks, [(stray, {"queue": "default", "lane": "fresh", "due_at": now, "name": "noop"})])

    assert written == WriteCounts(changed=1)
    [task] = claim(tasks, now).tasks
    assert task.id == stray


def test_a_document_somebody_mended_meanwhile_is_left_alone(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, priority=3)])
    before = stored(tasks, task_id)
    mended = Malformed(id=task_id, problem="x", lease=None)

    assert recovery.adopt(tasks, [(task_id, {"queue": "default", "priority": 0})]) == WriteCounts()
    assert not recovery.quarantine(tasks, mended, now=now)
    assert recovery.quarantine_all(tasks, [mended], now=now) == WriteCounts()
    assert stored(tasks, task_id) == before


def test_quarantine_fails_the_document_as_it_is(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, attempts="3")])

    assert recovery.quarantine(tasks, Malformed(id=task_id, problem="attempts is wrong", lease=None), now=now)

    found = stored(tasks, task_id)
    assert (found["status"], found["reason"], found["attempts"]) == ("failed", "malformed", "3")
    assert found["error"] == {"message": "attempts is wrong", "code": "malformed", "at": now}


def test_many_are_quarantined_at_once_and_one_that_is_refused_keeps_no_other_back(
    db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    ids = add(tasks, [document(now, attempts="3", note=n) for n in range(5)])
    db.command("collMod", "tasks", validator={"note": {"$ne": 3}})
    documents = [Malformed(id=one, problem="attempts is wrong", lease=None) for one in ids]

    assert recovery.quarantine_all(tasks, documents, now=now) == WriteCounts(changed=4, refused=1)
    assert [stored(tasks, one)["status"] for one in ids] == ["failed", "failed", "failed", "pending", "failed"]


@pytest.mark.parametrize("how", [{"errorCode": 11601}, {"writeConcernError": {"code": 64, "errmsg": "timed out"}}])
def test_writes_of_which_nobody_knows_are_unavailable(mine: Tasks, now: datetime, how: dict[str, Any]) -> None:
    ids = add(mine, [document(now, expires_at=now) for _ in range(3)])

    with failing(mine, "update", **how), pytest.raises(UnavailableError):
        recovery.expire(mine, ids, now=now)


def test_only_tasks_that_were_never_started_expire(tasks: Tasks, now: datetime) -> None:
    soon, gone = now + timedelta(seconds=1), now
    ids = add(
        tasks,
        [
            document(now, expires_at=gone),
            document(now, expires_at=soon),
            document(now),
            document(now, expires_at=gone, status="processing"),
            document(now, expires_at=gone, attempts=1, lane="retry"),
            document(now, expires_at=gone, crashes=1),
        ],
    )

    assert recovery.find_expired(tasks, now=now, limit=10) == ids[:1]
    assert recovery.find_expired(tasks, now=now, limit=10, excluded_ids=ids[:1]) == []
    assert recovery.expire(tasks, ids, now=now) == WriteCounts(changed=1)
    assert (stored(tasks, ids[0])["status"], stored(tasks, ids[0])["reason"]) == ("failed", "expired")
