"""Successes that are written by one statement: each as it would be written by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from tests.builders import add, claim, document, stored, whole
from tests.commands import Commands
from tests.faults import failing
from tests.fixtures import T0
from tidemill import UnavailableError
from tidemill.documents import read_task
from tidemill.model import Attempt, Cancelled, Failure, Retried, Run, Succeeded, Task
from tidemill.store import claims, settle
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.settle import MAX_BULK_SUCCESSES, MIN_BULK_SUCCESSES, Settlement
from tidemill.testing import Mongod

RESULTS: list[Any] = [
    None, True, 1, 1.0, Int64(1), "", "$payload", "$$ROOT", {"$set": {"a": 1}}, {"a.b": {"$c": 1}}, {}, [], [[None]],
    Decimal128("1.10"), Binary(b"\x00", 4), ObjectId(), T0, float("inf"), {"status": "pending", "lease": {"token": 1}},
    "y" * 1000, {"$literal": 3}, [{"$add": [1, 2]}], "ünï\x00cödé",
]  # fmt: skip


@pytest.fixture
def commands(mongod: Mongod, tasks: Tasks) -> Iterator[tuple[Tasks, Commands]]:
    """The same tasks, by a client that notes its commands."""
    noted = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[noted]) as client:
        yield open_tasks(client[tasks.database.name]), noted


def succeeded(task: Task, result: Any = None, *, after: int = 7) -> Settlement:
    run = Run(started_at=T0, duration=timedelta(milliseconds=after), status="succeeded")
    return Settlement(task=task, outcome=Succeeded(result=result), run=run)


def held(tasks: Tasks, now: datetime, count: int = MIN_BULK_SUCCESSES, **fields: Any) -> list[Task]:
    add(tasks, [document(now, **fields) for _ in range(count)])
    return whole(claim(tasks, now, limit=count).tasks)


def without_names(tasks: Tasks, task: Task) -> bytes:
    """The document as it is stored, but for what tells tasks and claims apart."""
    found = tasks.find_one({"_id": task.id})
    assert found is not None
    return bson.encode({name: value for name, value in found.items() if name not in ("_id", "settled_by")})


def test_each_is_stored_as_it_would_be_by_itself(commands: tuple[Tasks, Commands], now: datetime) -> None:
    tasks, noted = commands
    earlier = Attempt(attempt=1, status="failed", started_at=now, duration_ms=3, note="$note")
    log = [{"attempt": 1, "status": "failed", "started_at": now, "duration_ms": 3, "note": "$note"}]
    fields = {"crashes": 2, "attempts": 1, "attempt_log": log, "result": {"old": 1}, "finished_at": now}
    together = held(tasks, now, len(RESULTS), **fields)
    alone = held(tasks, now, len(RESULTS), **fields)
    assert together[0].attempt_log == (earlier,)
    noted.names.clear()

    settle.settle(tasks, [succeeded(one, RESULTS[n], after=n) for n, one in enumerate(together)], now=now)
    assert noted.names == ["update"]
    for n, one in enumerate(alone):
        settle.settle(tasks, [succeeded(one, RESULTS[n], after=n)], now=now)

    assert [without_names(tasks, one) for one in together] == [without_names(tasks, one) for one in alone]
    assert [stored(tasks, one.id)["settled_by"] for one in together] == [
        one.lease.token for one in together if one.lease
    ]


def test_a_batch_is_one_statement_in_one_command(commands: tuple[Tasks, Commands], now: datetime) -> None:
    tasks, noted = commands
    batch = held(tasks, now, MAX_BULK_SUCCESSES)
    noted.names.clear()

    verdict = settle.settle(tasks, [succeeded(one) for one in batch], now=now)

    assert len(verdict.settled) == MAX_BULK_SUCCESSES
    assert noted.names == ["update"]


def test_more_than_one_statement_may_hold_and_several_leases_are_written_by_one_command(
    commands: tuple[Tasks, Commands], now: datetime
) -> None:
    tasks, noted = commands
    batch = held(tasks, now, MAX_BULK_SUCCESSES + 1) + held(tasks, now) + held(tasks, now, MIN_BULK_SUCCESSES - 1)
    cancelled = [Settlement(task=one, outcome=Cancelled()) for one in held(tasks, now, 2)]
    noted.names.clear()

    verdict = settle.settle(tasks, [succeeded(one) for one in batch] + cancelled, now=now)

    assert len(verdict.settled) == len(batch) + 2
    assert noted.names == ["update"]
    assert tasks.count_documents({"status": "done"}) == len(batch)


def test_one_whose_lease_was_lost_is_left_alone_and_told(tasks: Tasks, now: datetime) -> None:
    batch = held(tasks, now)
    store_tasks.cancel(tasks, batch[1].id, now=now, force=True)

    verdict = settle.settle(tasks, [succeeded(one, "late") for one in batch], now=now)

    assert [one.task for one in verdict.lost] == [batch[1]]
    assert (stored(tasks, batch[1].id)["status"], stored(tasks, batch[1].id)["result"]) == ("cancelled", None)


def test_the_claim_of_another_batch_is_not_mistaken_for_ones_own(tasks: Tasks, now: datetime) -> None:
    first = held(tasks, now)
    claims.release(tasks, [first[0]], now=now)
    [again] = whole(claim(tasks, now).tasks)

    verdict = settle.settle(tasks, [succeeded(one, "stale") for one in first], now=now)

    assert [one.task for one in verdict.lost] == [first[0]]
    assert stored(tasks, again.id)["status"] == "processing"


def test_a_token_that_reads_like_an_expression_is_none(commands: tuple[Tasks, Commands], now: datetime) -> None:
    tasks, noted = commands
    by_hand = {"token": "$payload", "owner": "A", "expires_at": now}
    tasks.update_many({"_id": {"$in": [one.id for one in held(tasks, now)]}}, {"$set": {"lease": by_hand}})
    batch = whole(read_task(one) for one in tasks.find({}))
    noted.names.clear()

    settle.settle(tasks, [succeeded(one) for one in batch], now=now)

    assert noted.names == ["update"]
    assert [stored(tasks, one.id)["settled_by"] for one in batch] == ["$payload"] * len(batch)


def test_a_repeat_finds_what_it_settled_before(tasks: Tasks, now: datetime) -> None:
    batch = held(tasks, now)

    first = settle.settle(tasks, [succeeded(one, 1) for one in batch], now=now)
    again = settle.settle(tasks, [succeeded(one, 2) for one in batch], now=now)

    assert len(first.settled) == len(again.settled) == len(batch)
    assert {stored(tasks, one.id)["result"] for one in batch} == {1}


@pytest.mark.parametrize("how", [{"errorCode": 262}, {"closeConnection": True}, {"writeConcernError": {"code": 64}}])
def test_what_fails_before_or_after_its_effect_is_repeated_and_settled_once(
    tasks: Tasks, now: datetime, how: dict[str, Any]
) -> None:
    batch = held(tasks, now)

    with failing(tasks, "update", times=1, **how), pytest.raises(UnavailableError):
        settle.settle(tasks, [succeeded(one, 1) for one in batch], now=now)
    verdict = settle.settle(tasks, [succeeded(one, 2) for one in batch], now=now)

    assert len(verdict.settled) == len(batch)
    assert all(len(stored(tasks, one.id)["attempt_log"]) == 1 for one in batch)


def test_one_that_the_server_refuses_keeps_no_other_back(tasks: Tasks, now: datetime) -> None:
    full = {"filler": "x" * (16 * 1024 * 1024 - 1500)}
    add(tasks, [document(now, payload=full if n == 2 else {}) for n in range(6)])
    batch = whole(claim(tasks, now).tasks)

    verdict = settle.settle(tasks, [succeeded(one, "y" * 60_000) for one in batch], now=now)

    assert (len(verdict.settled), verdict.lost, verdict.stuck) == (6, (), ())
    results = [stored(tasks, one.id)["result"] for one in batch]
    assert results[2] == {"not_stored": "result", "reason": "the document is full"}
    assert [*results[:2], *results[3:]] == ["y" * 60_000] * 5
    assert all(stored(tasks, one.id)["status"] == "done" for one in batch)


def test_one_that_is_refused_costs_no_other_its_result_whatever_else_is_settled(tasks: Tasks, now: datetime) -> None:
    full = {"filler": "x" * (16 * 1024 * 1024 - 1500)}
    add(tasks, [document(now, payload=full if n == 2 else {}) for n in range(6)])
    batch = whole(claim(tasks, now).tasks)
    failure = Failure(message="no", code="ValueError")
    others = [Settlement(task=one, outcome=Retried(failure=failure, next_retry_at=now)) for one in held(tasks, now, 10)]

    verdict = settle.settle(tasks, [succeeded(one, "y" * 60_000) for one in batch] + others, now=now)

    assert len(verdict.settled) == 16
    assert [stored(tasks, one.id)["result"] == "y" * 60_000 for one in batch] == [True, True, False, True, True, True]


def test_what_is_too_large_for_one_statement_is_written_one_by_one(tasks: Tasks, now: datetime) -> None:
    note = [{"attempt": 1, "status": "failed", "started_at": now, "duration_ms": 1, "note": "x" * 5_000_000}]
    batch = held(tasks, now, attempt_log=note)

    verdict = settle.settle(tasks, [succeeded(one, 1) for one in batch], now=now)

    assert len(verdict.settled) == len(batch)
    assert {stored(tasks, one.id)["result"] for one in batch} == {1}


def test_a_payload_that_names_a_field_twice_keeps_its_bytes(tasks: Tasks, now: datetime) -> None:
    twice = b"\x10a\x00\x01\x00\x00\x00\x10a\x00\x02\x00\x00\x00"
    payload = RawBSONDocument((len(twice) + 5).to_bytes(4, "little") + twice + b"\x00")
    batch = held(tasks, now, payload=payload)
    before = [tasks.find_one({"_id": one.id}, {"payload": 1, "_id": 0}) for one in batch]

    settle.settle(tasks, [succeeded(one) for one in batch], now=now)

    after = [tasks.find_one({"_id": one.id}, {"payload": 1, "_id": 0}) for one in batch]
    assert [one.raw for one in after if one] == [one.raw for one in before if one]
    assert twice in after[0].raw if after[0] else False


def test_as_many_as_large_as_they_may_be_fit(tasks: Tasks, now: datetime) -> None:
    batch = held(tasks, now, MAX_BULK_SUCCESSES)

    verdict = settle.settle(tasks, [succeeded(one, "y" * 65_000) for one in batch], now=now)

    assert len(verdict.settled) == MAX_BULK_SUCCESSES
    assert tasks.count_documents({"status": "done"}) == MAX_BULK_SUCCESSES
