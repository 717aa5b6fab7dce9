"""Redrive: what comes back, as what, and when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, all_of, claim_one, document, stored
from tests.buried import bury_tasks, failed, letter_bytes
from tests.commands import Commands
from tests.fixtures import T0, ManualClock
from tests.redrives import EVER, redrive_all, redriver
from tidemill import Queue
from tidemill.dead_letters.archive import move_failed
from tidemill.dead_letters.documents import MAX_DOCUMENT_BYTES, DeadLetterId, build_dead_letter
from tidemill.dead_letters.redrive import RedriveRequest, redrive
from tidemill.dead_letters.redrive_checks import MAX_SCHEDULE_SEC
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.documents import DEAD_LETTERS, decode_shallow
from tidemill.errors import InvalidRequestError, TaskNotFoundError
from tidemill.model import Failed
from tidemill.policy.scheduling import Limits, admit
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.paging import MAX_BATCH_BYTES, encode_cursor
from tidemill.testing import Mongod

HOUR = timedelta(hours=1)


def test_a_task_that_came_back_and_was_done_is_not_told_as_failed_once_it_is_forgotten(
    db: Database[Any], tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    queue = Queue(db, clock=clock)
    [task_id] = add(tasks, [failed(clock.at)])
    move_failed(tasks, dead, clock=clock, until=EVER)
    assert queue.get(task_id).status == "failed"
    assert redrive_all(redriver(tasks, dead, clock)).redriven == 1
    tasks.update_one({"_id": task_id}, {"$set": {"status": "done"}})
    assert queue.get(task_id).status == "done"

    tasks.delete_one({"_id": task_id})  # as its retention does; the letter may stay longer

    for ask in (queue.get, queue.cancel, queue.explain):
        with pytest.raises(TaskNotFoundError):
            ask(task_id)


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_task_that_came_back_is_not_started_after_its_expiry(
    tasks: Tasks, dead: Tasks, clock: ManualClock, crashes: int
) -> None:
    bury_tasks(dead, [failed(clock.at, crashes=crashes, expires_at=clock.at + HOUR)], at=clock.at)
    assert redrive_all(redriver(tasks, dead, clock)).redriven == 1
    clock.move(2 * HOUR)
    limits = Limits(known=True, timeout=HOUR, max_retries=3, max_timeout=HOUR, margin=timedelta(0))

    ended = admit(claim_one(tasks, clock.at), limits, now=clock.at, remaining=10 * HOUR)

    assert isinstance(ended, Failed)
    assert ended.reason == "expired"


def test_a_redriven_task_starts_again_with_its_settings_and_its_lineage(
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:  # F56
    kept: dict[str, Any] = {
        "_id": ObjectId(),
        "name": "noop",
        "queue": "eu",
        "payload": {"$where": "1", "a.b": 2},
        "priority": 7,
        "max_retries": 2,
        "backoff_policy": {"strategy": "fixed", "base_sec": 3},
        "timeout_sec": 600,
        "expires_at": T0 + 9 * HOUR,
        "created_at": T0 - HOUR,
        "crashes": 2,
        "idempotency_key": "order-7",
        "request_hash": "h",
        "trace": {"source": "key-1", "correlation_id": "c"},
        "tags": ["by hand"],
    }
    bury_tasks(
        dead,
        [failed(T0, **kept, redrives=4, cancel_requested_at=T0, archive_attempts=3, lease={"token": "x"}, result=1)],
        at=T0,
    )
    now = clock.move(HOUR)

    done = redrive_all(redriver(tasks, dead, clock))

    anew = {"status": "pending", "lane": "fresh", "due_at": now, "next_retry_at": None, "attempts": 0, "error": None}
    anew |= {"attempt_log": [], "result": None, "finished_at": None, "updated_at": now, "redrives": 5}
    assert (done.examined, done.redriven, done.next) == (1, 1, None)
    assert all_of(tasks) == [kept | anew]


def test_the_letter_keeps_the_death_and_says_that_its_task_went_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    bury_tasks(dead, [failed(T0, payload={"a": 1})], at=T0)
    [before] = all_of(dead)
    now = clock.move(HOUR)

    redrive_all(redriver(tasks, dead, clock))

    assert all_of(dead) == [before | {"redriven_at": now}]


def test_a_second_death_is_a_second_letter(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:  # F61
    add(tasks, [failed(T0, _id="poison")])

    for _ in range(10):
        move_failed(tasks, dead, clock=clock, until=EVER)
        clock.move(HOUR)
        assert redrive_all(redriver(tasks, dead, clock)).redriven == 1
        tasks.update_one({"_id": "poison"}, {"$set": {"status": "failed", "finished_at": clock.now()}})

    assert [one["_id"]["redrives"] for one in all_of(dead)] == list(range(10))
    assert stored(tasks, "poison")["redrives"] == 10
    assert redrive_all(redriver(tasks, dead, clock)).examined == 0


VALUES: dict[str, Any] = {
    "date": datetime(1, 1, 1, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "int32": 1,
    "int64": Int64(1),
    "large": 2**53 + 1,
    "float": 1.0,
    "minus zero": -0.0,
    "decimal": Decimal128("1.10"),
    "regex": Regex("^a", "i"),
    "reference": {"$ref": "x", "$id": 1},
    "names": {"": 1, "$gt": "", "a.b": {"c": []}},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_bytes_of_the_payload_survive(tasks: Tasks, dead: Tasks, clock: ManualClock, value: object) -> None:
    payload = {"value": value}
    bury_tasks(dead, [failed(T0, payload=payload)], at=T0)

    redrive_all(redriver(tasks, dead, clock))

    [raw] = tasks.find({})
    assert bytes(decode_shallow(raw)["payload"].raw) == bson.encode(payload)


@pytest.mark.parametrize(
    "task_id", ["text", 7, {"a": {"$ref": "x", "$id": 1}}, b"\x01", datetime(9999, 1, 1, tzinfo=UTC)], ids=repr
)
def test_a_task_with_an_id_of_any_type_comes_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock, task_id: object
) -> None:
    bury_tasks(dead, [failed(T0, _id=task_id)], at=T0)

    redrive_all(redriver(tasks, dead, clock), DeadLetterFilter(ids=(DeadLetterId(task=task_id, redrives=0),)))

    [raw] = tasks.find({}, {"_id": 1})
    assert bytes(raw.raw) == bson.encode({"_id": task_id})


def test_what_is_left_of_a_full_document_comes_back(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:  # F43
    task = failed(T0, payload={"x": ""})
    task["payload"] = {"x": "x" * (MAX_DOCUMENT_BYTES - len(bson.encode(task)))}
    assert len(bson.encode(task)) == MAX_DOCUMENT_BYTES
    bury_tasks(dead, [task, failed(T0)], at=T0)

    assert redrive_all(redriver(tasks, dead, clock)).redriven == 2

    assert stored(tasks, task["_id"])["payload"] == task["payload"]


def test_what_is_meant_is_redriven_and_nothing_else(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    [first] = bury_tasks(dead, [failed(T0, _id="a", queue="eu")], at=T0)
    bury_tasks(dead, [failed(T0, _id="b", name="other")], at=T0 + HOUR)
    bury_tasks(dead, [failed(T0, _id="c", error={"message": "?", "code": "KeyError", "at": T0})], at=T0 + 2 * HOUR)
    clock.move(3 * HOUR)
    fingerprint = all_of(dead)[2]["fingerprint"]
    meant: dict[str, DeadLetterFilter] = {
        "a": DeadLetterFilter(ids=(first,)),
        "b": DeadLetterFilter(since=T0 + HOUR, until=T0 + 2 * HOUR),
        "c": DeadLetterFilter(fingerprint=fingerprint),
    }

    for task_id, which in meant.items():
        assert redrive_all(redriver(tasks, dead, clock, "noop", "other"), which).redriven == 1
        assert [one["_id"] for one in all_of(tasks)] == [task_id]
        tasks.delete_many({})

    assert redrive_all(redriver(tasks, dead, clock, "noop", "other")).examined == 0


@pytest.mark.parametrize(
    "which",
    [
        DeadLetterFilter(queue="eu"),
        DeadLetterFilter(name="other"),
        DeadLetterFilter(name="noop", queue="eu"),
        DeadLetterFilter(name="x"),
    ],
    ids=repr,
)
def test_names_and_queues_are_met_on_a_walk(
    tasks: Tasks, dead: Tasks, clock: ManualClock, which: DeadLetterFilter
) -> None:
    bury_tasks(
        dead, [failed(T0, queue=queue, name=name) for queue in ("eu", "us") for name in ("noop", "other")], at=T0
    )

    redrive_all(redriver(tasks, dead, clock, "noop", "other"), which)

    back = all_of(tasks)
    assert len(back) == sum(
        which.queue in (None, queue) and which.name in (None, name)
        for queue in ("eu", "us")
        for name in ("noop", "other")
    )
    assert all(which.queue in (None, one["queue"]) and which.name in (None, one["name"]) for one in back)


def test_five_thousand_come_back_in_pages_spread_over_time(  # F61
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    for batch in range(10):
        bury_tasks(dead, [failed(T0) for _ in range(500)], at=T0 + timedelta(seconds=batch))
    start = clock.move(HOUR)
    on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter(), per_sec=10)

    pages = 0
    cursor: str | None = None
    while pages == 0 or cursor:
        done = redrive(on, plan, limit=1000, dry_run=False, after=cursor, until=EVER)
        assert (done.redriven, done.refused) == (1000, {})
        cursor, pages = done.next, pages + 1
        clock.move(timedelta(seconds=1))

    due = sorted(one["due_at"] for one in all_of(tasks))
    assert pages == 5
    assert due == [start + timedelta(milliseconds=100 * n) for n in range(5000)]
    assert tasks.count_documents({"next_retry_at": None}) == 1
    assert dead.count_documents({"redriven_at": None}) == 0


def test_what_is_late_is_spread_anew(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(4)], at=T0)
    on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter(), per_sec=1)

    first = redrive(on, plan, limit=2, dry_run=False, until=EVER)
    later = clock.move(HOUR)
    redrive(on, plan, limit=2, dry_run=False, after=first.next, until=EVER)

    due = sorted(one["due_at"] for one in all_of(tasks))
    assert due == [T0, T0 + timedelta(seconds=1), later, later + timedelta(seconds=1)]


@pytest.mark.parametrize(("per_sec", "back"), [(1.5 / MAX_SCHEDULE_SEC, 2), (1e-12, 1), (5e-324, 1)])
def test_what_would_be_due_in_more_than_a_year_is_refused(
    tasks: Tasks, dead: Tasks, clock: ManualClock, per_sec: float, back: int
) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(4)], at=T0)
    on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter(), per_sec=per_sec)

    dry = redrive(on, plan, limit=10, dry_run=True, until=EVER)
    done = redrive(on, plan, limit=10, dry_run=False, until=EVER)

    assert dry == done
    assert (done.redriven, done.refused) == (back, {"too_far_ahead": 4 - back})
    assert done.examples[0].message == "at this rate its turn would be more than a year away"
    assert dead.count_documents({"redriven_at": None, "redrive_started_at": None}) == 4 - back


def test_a_slower_rate_may_be_chosen_on_the_way(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    on, slow = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter(), per_sec=0.001)
    cursor = redrive(on, slow, limit=0, dry_run=True, after=cursor_of(placed=10**9), until=EVER).next

    assert redrive(on, slow, limit=10, dry_run=False, after=cursor, until=EVER).refused == {"too_far_ahead": 1}


FORGED: dict[str, dict[str, Any]] = {
    "begun too late": {"start": datetime(9999, 12, 31, tzinfo=UTC)},
    "begun too early": {"start": datetime(1, 1, 1, tzinfo=UTC)},
    "negative": {"placed": -(2**62)},
    "no number": {"placed": "1"},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_cursor_that_no_redrive_has_named_is_refused(
    tasks: Tasks, dead: Tasks, clock: ManualClock, what: str
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    plan = RedriveRequest(which=DeadLetterFilter(), per_sec=0.001)

    with pytest.raises(InvalidRequestError, match="cursor"):
        redrive(redriver(tasks, dead, clock), plan, limit=1, dry_run=False, after=cursor_of(**FORGED[what]), until=EVER)


def cursor_of(**state: Any) -> str:
    return encode_cursor({"dead_lettered_at": None, "_id": None, "up_to": T0, "start": T0, "placed": 0} | state)


def test_what_dies_while_the_redrive_goes_on_is_not_met_again(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(3)], at=T0)
    clock.move(HOUR)
    on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter())
    done = redrive(on, plan, limit=1, dry_run=False, until=EVER)

    for _ in range(2):
        clock.move(HOUR)
        tasks.update_many({}, {"$set": {"status": "failed", "finished_at": clock.now()}})
        move_failed(tasks, dead, clock=clock, until=EVER)
        done = redrive(on, plan, limit=1, dry_run=False, after=done.next, until=EVER)

    assert (done.redriven, done.next) == (1, None)
    assert dead.count_documents({"redriven_at": None, "_id.redrives": 1}) == 2


def test_a_redrive_stops_in_time_and_goes_on(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(501)], at=T0)
    on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter())

    done = redrive(on, plan, limit=1000, dry_run=False, until=0, monotonic=lambda: 1)
    rest = redrive(on, plan, limit=1000, dry_run=False, after=done.next, until=0, monotonic=lambda: 1)

    assert (done.redriven, rest.redriven, rest.next) == (500, 1, None)


def test_large_letters_are_held_few_at_a_time(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0, payload={"x": "x" * (MAX_BATCH_BYTES // 2)}) for _ in range(2)], at=T0)
    on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter())

    done = redrive(on, plan, limit=10, dry_run=False, until=0, monotonic=lambda: 1)
    rest = redrive(on, plan, limit=10, dry_run=False, after=done.next, until=EVER)

    assert (done.redriven, rest.redriven, rest.next) == (1, 1, None)


def test_a_dry_run_tells_the_same_and_writes_nothing(mongod: Mongod, db: Database[Any], clock: ManualClock) -> None:
    commands = Commands()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        tasks, dead = open_tasks(client[db.name]), open_tasks(client[db.name], DEAD_LETTERS)
        add(tasks, [document(T0, _id="there")])
        letters = [failed(T0, _id="there"), failed(T0), failed(T0, name="gone"), failed(T0, expires_at=T0)]
        bury_tasks(dead, [*letters, *(failed(T0, idempotency_key="k") for _ in range(2))], at=T0)
        before = letter_bytes(dead)
        commands.names.clear()
        on, plan = redriver(tasks, dead, clock), RedriveRequest(which=DeadLetterFilter())

        dry = redrive(on, plan, limit=10, dry_run=True, until=EVER)

        assert set(commands.names) == {"find"}
        assert letter_bytes(dead) == before
        assert dry == redrive(on, plan, limit=10, dry_run=False, until=EVER)
        assert (dry.redriven, dry.refused) == (2, {"conflict": 2, "unregistered": 1, "expired": 1})


def test_a_batch_takes_so_many_commands(mongod: Mongod, db: Database[Any], clock: ManualClock) -> None:
    commands = Commands()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        tasks, dead = open_tasks(client[db.name]), open_tasks(client[db.name], DEAD_LETTERS)
        bury_tasks(dead, [failed(T0, idempotency_key=f"k-{n}") for n in range(500)], at=T0)
        commands.names.clear()

        redrive_all(redriver(tasks, dead, clock))

        # Where the page ends, the page, what becomes tasks, their ids, their keys; mark, insert, close.
        assert commands.names == [*["find"] * 5, "update", "insert", "update"]


def test_a_letter_made_by_hand_comes_back_under_its_own_id(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    add(dead, [failed(T0, _id="by hand")])

    redrive_all(redriver(tasks, dead, clock))

    assert stored(tasks, "by hand")["redrives"] == 1


@pytest.mark.parametrize("cursor", ["", "?", "AAAA", "BQAAAAA", "x" * 50])
def test_a_text_that_is_no_cursor_is_refused(tasks: Tasks, dead: Tasks, clock: ManualClock, cursor: str) -> None:
    with pytest.raises(InvalidRequestError, match="cursor"):
        redrive(
            redriver(tasks, dead, clock),
            RedriveRequest(which=DeadLetterFilter()),
            limit=1,
            dry_run=False,
            after=cursor,
            until=EVER,
        )


def test_a_letter_of_a_slim_document_comes_back(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    letter = build_dead_letter(RawBSONDocument(bson.encode(failed(T0, _id="slim"))), now=T0)
    slim = {name: value for name, value in bson.decode(letter.raw).items() if value is not None}
    add(dead, [{name: value for name, value in slim.items() if name not in ("attempt_log", "trace")}])

    assert redrive_all(redriver(tasks, dead, clock)).redriven == 1
