"""Indexes: made, reported, and used by every operation of the store."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.builders import add, document, fill, lease, whole
from tests.faults import failing
from tests.fixtures import ManualClock
from tidemill import indexes
from tidemill.dead_letters import archive, export, redrive_writes
from tidemill.dead_letters import queries as letter_lookups
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.redrive_checks import Candidate, Redrivable, read_candidate
from tidemill.dead_letters.selection import DeadLetterFilter, purge
from tidemill.documents import DEAD_LETTERS
from tidemill.enqueue.inserts import find_occurrence
from tidemill.errors import RetentionError
from tidemill.model import Malformed, Succeeded, Task
from tidemill.requests.events import Occurrence
from tidemill.store import adoption, claims, counts, recovery, settle, tasks, writes
from tidemill.store.adoption import Adoption
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import Scan, advance_scan, find_due_keys, list_heads, list_queues
from tidemill.store.settle import Settlement

KEPT = indexes.Retention()


def test_indexes_are_made_once_and_named(db: Database[Any]) -> None:
    assert indexes.find_missing(db) == ()
    indexes.create(db, retention=KEPT)
    assert {index.name for index in indexes.INDEXES if index.collection == "tasks"} == set(
        db["tasks"].index_information()
    ) - {"_id_"}


def test_missing_indexes_are_made_while_there_are_few_tasks(db: Database[Any]) -> None:
    db["tasks"].drop_index("leases")

    assert indexes.maintain(db, retention=KEPT) == ()
    assert indexes.find_missing(db) == ()


@pytest.mark.parametrize(("count", "missing"), [(100_000, []), (100_001, ["leases"])])
def test_missing_indexes_are_reported_where_there_are_many_tasks(
    db: Database[Any], count: int, missing: list[str]
) -> None:
    fill(db["tasks"], count)
    db["tasks"].drop_index("leases")

    assert [index.name for index in indexes.maintain(db, retention=KEPT)] == missing
    assert [index.name for index in indexes.find_missing(db)] == missing


@pytest.mark.parametrize(
    ("collection", "name", "keys", "options"),
    [
        (DEAD_LETTERS, "groups", [("fingerprint", 1), ("dead_lettered_at", 1)], {}),
        (DEAD_LETTERS, "retention", [("retain_from", 1)], {"expireAfterSeconds": 60}),
        ("tasks", "retention", [("retain_from", 1)], {"expireAfterSeconds": 60}),
        ("tasks", "key", [("idempotency_key", 1)], {"partialFilterExpression": {"idempotency_key": {"$gt": ""}}}),
    ],
)
def test_an_index_that_an_earlier_release_made_otherwise_is_replaced(
    db: Database[Any], collection: str, name: str, keys: list[tuple[str, int]], options: dict[str, Any]
) -> None:
    db[collection].drop_index(name)
    db[collection].create_index(keys, name=name, **options)
    assert [(index.collection, index.name) for index in indexes.find_missing(db)] == [(collection, name)]

    assert indexes.maintain(db, retention=KEPT) == ()

    assert indexes.find_missing(db) == ()
    assert db[collection].index_information()[name].get("expireAfterSeconds") != 60


def test_an_index_of_our_name_and_another_kind_is_replaced(db: Database[Any]) -> None:
    db[DEAD_LETTERS].drop_index("export")
    db[DEAD_LETTERS].create_index([("queue", "hashed")], name="export")

    assert indexes.maintain(db, retention=KEPT) == ()
    assert indexes.find_missing(db) == ()


def test_a_changed_retention_holds_for_an_index_that_is_left_to_be_replaced(db: Database[Any]) -> None:
    fill(db["tasks"], 100_001)
    db["tasks"].drop_index("retention")
    db["tasks"].create_index("retain_from", name="retention", expireAfterSeconds=60)

    left = indexes.maintain(db, retention=indexes.Retention(tasks=timedelta(days=1)))

    assert [index.name for index in left] == ["retention"]
    assert db["tasks"].index_information()["retention"]["expireAfterSeconds"] == 86400


def test_a_collection_is_small_or_large_by_itself(db: Database[Any]) -> None:
    fill(db["tasks"], 100_001)
    db["tasks"].drop_index("leases")
    db[DEAD_LETTERS].drop_index("groups")

    assert [index.name for index in indexes.maintain(db, retention=KEPT)] == ["leases"]
    assert [index.name for index in indexes.find_missing(db)] == ["leases"]


def test_an_index_that_cannot_be_made_keeps_no_other_away(client: MongoClient[Any], now: datetime) -> None:
    db = client[f"test_{uuid.uuid4().hex}"]
    add(open_tasks(db), [document(now, idempotency_key="twice"), document(now, idempotency_key="twice")])

    with pytest.raises(OperationFailure):
        indexes.create(db, retention=KEPT)

    assert [index.name for index in indexes.find_missing(db)] == ["key"]


def test_a_changed_retention_holds_for_indexes_that_are_there(db: Database[Any]) -> None:
    indexes.maintain(db, retention=indexes.Retention(tasks=timedelta(days=1), dead_letters=timedelta(days=2)))

    kept = {name: db[name].index_information()["retention"]["expireAfterSeconds"] for name in ("tasks", DEAD_LETTERS)}
    assert kept == {"tasks": 86400, DEAD_LETTERS: 2 * 86400}


def test_a_retention_that_may_not_be_changed_keeps_no_index_from_being_made(mine: Tasks) -> None:
    db = mine.database
    indexes.create(db, retention=KEPT)
    db["tasks"].drop_index("leases")
    db[DEAD_LETTERS].drop_indexes()
    shorter = indexes.Retention(tasks=timedelta(days=1), dead_letters=timedelta(days=1))

    with failing(mine, "collMod", times=2, errorCode=13), pytest.raises(RetentionError, match="collMod"):
        indexes.maintain(db, retention=shorter)

    assert indexes.find_missing(db) == ()
    assert db[DEAD_LETTERS].index_information()["retention"]["expireAfterSeconds"] == 86400


def test_an_index_that_cannot_be_made_keeps_no_retention_from_being_changed(
    client: MongoClient[Any], now: datetime
) -> None:
    db = client[f"test_{uuid.uuid4().hex}"]
    add(open_tasks(db), [document(now, idempotency_key="twice"), document(now, idempotency_key="twice")])
    with pytest.raises(OperationFailure):
        indexes.create(db, retention=KEPT)

    with pytest.raises(OperationFailure):
        indexes.create(db, retention=indexes.Retention(dead_letters=timedelta(days=1)))

    assert db[DEAD_LETTERS].index_information()["retention"]["expireAfterSeconds"] == 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    tasks: Tasks
    now: datetime
    held: list[Task]


OCCURRENCE = Occurrence(schedule="daily", at=datetime(2026, 7, 1, 6, tzinfo=UTC))
LETTER = {"task": 7, "redrives": 0}
OPERATIONS: dict[str, Callable[[_Given], object]] = {
    "queues": lambda on: list_queues(on.tasks),
    "heads": lambda on: list_heads(on.tasks),
    "due_keys": lambda on: find_due_keys(on.tasks, _scan(), limit=5, now=on.now),
    "due_keys after": lambda on: find_due_keys(on.tasks, _after(on.tasks, on.now), limit=5, now=on.now),
    "take": lambda on: claims.take(on.tasks, [on.held[0].id], lease=lease(on.now), now=on.now),
    "claim": lambda on: claims.claim(on.tasks, _scan(), limit=5, lease=lease(on.now), now=on.now, rng=random.Random(1)),
    "settle": lambda on: settle.settle(
        on.tasks, [Settlement(task=on.held[0], outcome=Succeeded(result=1))], now=on.now
    ),
    "settle again": lambda on: settle.settle(
        on.tasks, [Settlement(task=on.held[9], outcome=Succeeded(result=1))] * 2, now=on.now
    ),
    "release": lambda on: claims.release(on.tasks, on.held[1:2], now=on.now),
    "release of two claims": lambda on: claims.release(
        on.tasks, [on.held[1], replace(on.held[4], lease=lease(on.now))], now=on.now
    ),
    "release_unseen": lambda on: claims.release_unconfirmed(on.tasks, owner="A", tokens=["t"], started=[], now=on.now),
    "extend": lambda on: claims.extend(on.tasks, on.held[2:3], until=on.now),
    "get": lambda on: tasks.get(on.tasks, on.held[0].id),
    "cancel": lambda on: tasks.cancel(on.tasks, on.held[3].id, now=on.now),
    "asked_to_stop": lambda on: tasks.find_cancel_requested(on.tasks, "A"),
    "next_due": lambda on: tasks.find_next_due(on.tasks, now=on.now, until=on.now + timedelta(seconds=10), limit=5),
    "expired_leases": lambda on: recovery.find_expired_leases(on.tasks, before=on.now, limit=5),
    "leaseless": lambda on: recovery.find_leaseless(on.tasks, limit=5),
    "held_by": lambda on: recovery.find_leased_by(on.tasks, "nobody", limit=5),
    "strays": lambda on: recovery.find_unclaimable(on.tasks, limit=5),
    "adopt": lambda on: recovery.adopt(on.tasks, [(on.held[0].id, {"lane": "fresh"})]),
    "foreign, processing": lambda on: adoption.find_foreign(on.tasks, "processing", limit=5),
    "foreign, failed": lambda on: adoption.find_foreign(on.tasks, "failed", limit=5),
    "foreign, ended": lambda on: adoption.find_foreign(on.tasks, "ended", limit=5),
    "adopt foreign": lambda on: adoption.adopt_foreign(
        on.tasks, "processing", [Adoption(task=on.held[0], fields={"lane": "fresh"})], now=on.now
    ),
    "quarantine failed": lambda on: adoption.quarantine_failed(
        on.tasks, [Malformed(id=on.held[0].id, problem="x", lease=None)], now=on.now
    ),
    "failed by queue": lambda on: counts.count_failed_by_queue(on.tasks),
    "failed by name": lambda on: counts.count_failed_by_name(on.tasks),
    "quarantine": lambda on: recovery.quarantine(
        on.tasks, Malformed(id=on.held[0].id, problem="x", lease=None), now=on.now
    ),
    "expired": lambda on: recovery.find_expired(on.tasks, now=on.now, limit=5),
    "expire": lambda on: recovery.expire(on.tasks, [on.held[0].id], now=on.now),
    "add_once": lambda on: writes.insert_once(on.tasks, document(on.now, idempotency_key="key-7")),
    "held": lambda on: writes.find_key_holders(on.tasks, ["key-7", "key-8", "nobody's"]),
    "add_in_order": lambda on: writes.insert_in_order(on.tasks, [document(on.now, _id=on.held[0].id)]),
    "known_occurrence": lambda on: find_occurrence(on.tasks, OCCURRENCE, OCCURRENCE.derive_ids(1)),
    "retry_now": lambda on: tasks.retry_now(on.tasks, on.held[0].id, now=on.now),
    "failed": lambda on: list(archive.find_failed(on.tasks, limit=5, now=on.now)),
    "remove": lambda on: archive.delete_tasks(on.tasks, [_raw({"_id": on.held[0].id})]),
    "put off moving": lambda on: archive.postpone_move(on.tasks, [(_raw({"_id": on.held[0].id}), "x")], now=on.now),
    "bury a repeated one": lambda on: archive.insert_dead_letters(_dead(on), [_letter()]),
    "close_earlier": lambda on: archive.close_earlier(_dead(on), [_raw({"_id": LETTER | {"redrives": 1}})], now=on.now),
    "keep_unexported": lambda on: export.update_retention(
        _dead(on), expire_unexported=False, clock=ManualClock(on.now), until=math.inf
    ),
    "letter": lambda on: letter_lookups.find_dead_letter(_dead(on), DeadLetterId(task=7, redrives=0)),
    "deaths": lambda on: letter_lookups.find_of_task(_dead(on), 7, limit=5),
    "newest_open": lambda on: letter_lookups.find_newest_open(_dead(on), 7),
    "has_fingerprint": lambda on: letter_lookups.has_fingerprint(_dead(on), "a"),
    "unexported": lambda on: next(export.find_unexported(_dead(on), limit=5, batch=5, now=on.now)),
    "unexported, newest first": lambda on: next(
        export.find_unexported(_dead(on), limit=5, batch=5, now=on.now, newest_first=True)
    ),
    "count_unexported": lambda on: export.count_unexported(_dead(on), limit=5),
    "mark_exported": lambda on: export.mark_exported(_dead(on), [_letter()], now=on.now),
    "put off exporting": lambda on: export.postpone_export(_dead(on), [(_letter(), "x")], now=on.now),
    "bodies": lambda on: redrive_writes.read_bodies(_dead(on), [_candidate()]),
    "alive": lambda on: redrive_writes.find_existing(on.tasks, [on.held[0].id]),
    "holders": lambda on: redrive_writes.find_key_owners(on.tasks, ["key-7", "nobody's"]),
    "died_since": lambda on: redrive_writes.find_later_failures(_dead(on), [(7, 0), (8, 0)]),
    "cut_short": lambda on: list(redrive_writes.find_interrupted(_dead(on), now=on.now, limit=5)),
    "mark": lambda on: redrive_writes.mark(
        _dead(on),
        [Redrivable(letter=_candidate(), task=on.held[0], document=_letter(), drops_expiry=False)],
        token="t",
        now=on.now,
    ),
    "standing": lambda on: redrive_writes.find_open_tokens(_dead(on), [_candidate()]),
    "close": lambda on: redrive_writes.close(_dead(on), [_candidate()], now=on.now),
    "take_back": lambda on: redrive_writes.remove_marks(_dead(on), [_candidate()]),
    "purge": lambda on: purge(
        _dead(on),
        DeadLetterFilter(ids=(DeadLetterId(task=7, redrives=0),)),
        limit=5,
        dry_run=False,
        now=on.now,
        until=math.inf,
    ),
    "latest": lambda on: letter_lookups.find_latest(open_tasks(on.tasks.database, DEAD_LETTERS), on.held[0].id),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_reads_more_than_it_concerns(db: Database[Any], now: datetime, operation: str) -> None:  # F86
    tasks = open_tasks(db)
    later = now + timedelta(days=1)
    add(tasks, [document(now, status="done", retain_from=later, idempotency_key=f"key-{n}") for n in range(400)])
    add(tasks, [document(now, due_at=later, next_retry_at=later, expires_at=later) for _ in range(400)])
    add(tasks, [document(now) for _ in range(30)])
    held = whole(claims.claim(tasks, _scan(), limit=10, lease=lease(now), now=now, rng=random.Random(1)).tasks)
    add(open_tasks(db, DEAD_LETTERS), [{"_id": {"task": n, "redrives": 0}} for n in range(400)])
    db.command("profile", 2)

    OPERATIONS[operation](_Given(tasks=tasks, now=now, held=held))

    db.command("profile", 0)
    profile = [one for one in db["system.profile"].find() if "planSummary" in one]
    assert profile
    assert "COLLSCAN" not in {one["planSummary"] for one in profile}
    assert max(one["docsExamined"] for one in profile) <= 10
    assert max(one["keysExamined"] for one in profile) <= 25
    assert not any(one.get("hasSortStage") for one in profile)


def _dead(on: _Given) -> Tasks:
    return open_tasks(on.tasks.database, DEAD_LETTERS)


def _candidate() -> Candidate:
    return read_candidate(_letter(size=9))


def _letter(**fields: Any) -> RawBSONDocument:
    return _raw({"_id": LETTER} | fields)


def _raw(fields: dict[str, Any]) -> RawBSONDocument:
    return RawBSONDocument(bson.encode(fields))


def _scan() -> Scan:
    return Scan(queue="default", lanes=("fresh",))


def _after(tasks: Tasks, now: datetime) -> Scan:
    return advance_scan(_scan(), find_due_keys(tasks, _scan(), limit=5, now=now))


def test_dead_letters_are_found_by_a_range_of_their_id(dead: Tasks, now: datetime) -> None:
    add(dead, [document(now, _id={"task": n, "redrives": r}, status="failed") for n in (1, 2) for r in (0, 1, 2)])

    found = letter_lookups.find_latest(dead, 1)

    assert found is not None
    assert found.id == 1
    assert isinstance(dead.find_one({}), RawBSONDocument)
