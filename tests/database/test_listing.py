"""Pages that neither repeat nor miss a task, whatever its id is, and that cost no more than they may."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MinKey, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.builders import add, claim, document
from tests.faults import Afterwards, heard
from tests.ids import shown
from tidemill import InvalidRequestError
from tidemill.documents import DEAD_LETTERS, decode
from tidemill.model import Malformed, Status, Task, TaskId
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.tasks import PageLimits, TaskPage, list_tasks

SECOND = timedelta(seconds=1)
STATUSES: tuple[Status, ...] = ("pending", "processing", "done", "failed", "cancelled")

IDS: tuple[Any, ...] = (
    MinKey(), None, float("nan"), 1, 2.5, Int64(7), Decimal128("7.5"), "", "a", "a.c", "abc", {"a": 1}, {"b": [2]},
    {"$ref": "x", "$id": 1}, Binary(b"x"), ObjectId(), ObjectId(), False, True, datetime(2031, 7, 1, tzinfo=UTC),
    Timestamp(1, 1), Code("x"),
)  # fmt: skip
"""Of every type but MaxKey, which a walk that begins at the top leaves out: the server has no bound above it."""


A_CURSOR = base64.urlsafe_b64encode(bson.encode({"_id": ObjectId("0" * 24)})).decode().rstrip("=")


SHORT = PageLimits(max_per_walk=20, max_per_page=60)
"""Limits that a handful of tasks reaches."""


@pytest.fixture(params=[SHORT, replace(SHORT, max_sorted=0)], ids=["few", "many"])
def plan(request: pytest.FixtureRequest) -> PageLimits:
    """Both plans: an index of the status, and the walk."""
    limits: PageLimits = request.param
    return limits


def pages(tasks: Tasks, *, limit: int, limits: PageLimits = SHORT, **asked: Any) -> Iterator[TaskPage]:
    """Every page, one after the other."""
    after: str | None = None
    for _ in range(1_000):
        found = list_tasks(tasks, limit=limit, limits=limits, after=after, **asked)
        yield found
        after = found.next
        if after is None:
            return
    pytest.fail("the pages have no end")


def ids(tasks: Tasks, *, limit: int, **asked: Any) -> list[TaskId]:
    return [one.id for part in pages(tasks, limit=limit, **asked) for one in part.tasks]


# Every task once


@pytest.mark.parametrize("limit", [1, 7, 10, 50, 100])
@pytest.mark.parametrize("asked", [{}, {"status": "pending"}, {"status": "pending", "queue": "default"}], ids=shown)
def test_tasks_of_one_instant_are_each_on_one_page(
    tasks: Tasks, now: datetime, plan: PageLimits, limit: int, asked: dict[str, Any]
) -> None:
    made = add(tasks, [document(now) for _ in range(50)])

    assert ids(tasks, limit=limit, limits=plan, **asked) == made[::-1]


@pytest.mark.parametrize("asked", [{}, {"status": "pending"}], ids=shown)
def test_tasks_that_come_between_two_pages_move_nothing(
    tasks: Tasks, now: datetime, plan: PageLimits, asked: dict[str, Any]
) -> None:
    made = add(tasks, [document(now) for _ in range(50)])

    seen = []
    for part in pages(tasks, limit=10, limits=plan, **asked):
        seen += [one.id for one in part.tasks]
        add(tasks, [document(now) for _ in range(5)])

    assert seen == made[::-1]


@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize("status", STATUSES)
def test_ids_of_any_type_are_each_on_one_page(
    tasks: Tasks, now: datetime, plan: PageLimits, limit: int, status: Status
) -> None:
    add(tasks, [document(now, _id=one, status=status) for one in IDS])
    in_order = [decode(raw)["_id"] for raw in tasks.find({}, {"_id": 1}).sort("_id", -1)]

    found = ids(tasks, limit=limit, limits=plan, status=status)

    assert list(map(shown, found)) == list(map(shown, in_order))
    assert len(found) == len(IDS)


def test_an_id_that_is_no_text_is_stepped_over_and_ends_no_page(tasks: Tasks, now: datetime) -> None:
    around = add(tasks, [document(now, _id=one) for one in ("a", "b", "\N{REPLACEMENT CHARACTER}")])
    broken = bson.encode(document(now, _id="a?z")).replace(b"a?z", b"a\x80z")
    tasks.insert_one(RawBSONDocument(broken))

    assert ids(tasks, limit=1) == sorted(around, reverse=True)


def test_the_only_page_has_none_behind_it(tasks: Tasks, now: datetime) -> None:
    assert list_tasks(tasks, limit=3) == TaskPage(tasks=(), next=None)

    add(tasks, [document(now) for _ in range(3)])

    assert list_tasks(tasks, limit=3).next is None
    assert list_tasks(tasks, limit=2).next is not None


# Only what was asked for


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_is_all_that_is_listed(tasks: Tasks, now: datetime, plan: PageLimits, status: Status) -> None:
    made = {one: add(tasks, [document(now, status=one) for _ in range(9)]) for one in STATUSES}

    assert ids(tasks, limit=4, limits=plan, status=status) == made[status][::-1]


@pytest.mark.parametrize("status", [None, *STATUSES])
def test_queue_and_name_are_taken_to_the_letter(
    tasks: Tasks, now: datetime, plan: PageLimits, status: Status | None
) -> None:
    fields = {} if status is None else {"status": status}
    [dotted] = add(tasks, [document(now, name="a.c", queue="x.z", **fields)])
    add(tasks, [document(now, name=name, queue=queue, **fields) for name, queue in [("abc", "x.z"), ("a.c", "xyz")]])

    assert ids(tasks, limit=9, limits=plan, name="a.c", queue="x.z", status=status) == [dotted]
    assert ids(tasks, limit=9, limits=plan, name="a", status=status) == []
    assert ids(tasks, limit=9, limits=plan, name="(a+)+$", status=status) == []
    assert len(ids(tasks, limit=9, limits=plan, name="a.c", status=status)) == 2


@pytest.mark.parametrize("asked", [{"queue": {"$gt": ""}}, {"name": {"$ne": None}}], ids=shown)
def test_what_looks_like_an_operator_is_a_value(
    tasks: Tasks, now: datetime, plan: PageLimits, asked: dict[str, Any]
) -> None:
    add(tasks, [document(now)])

    assert ids(tasks, limit=9, limits=plan, **asked) == []
    assert ids(tasks, limit=9, limits=plan, status="pending", **asked) == []


def test_a_page_of_a_rare_kind_may_be_empty_and_leads_on(tasks: Tasks, now: datetime) -> None:
    [rare] = add(tasks, [document(now, name="rare")])
    add(tasks, [document(now) for _ in range(70)])

    found = list(pages(tasks, limit=5, name="rare"))

    assert [len(one.tasks) for one in found] == [0, 1]
    assert found[-1].tasks[0].id == rare


def test_a_page_that_has_found_something_or_took_long_goes_no_further(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, name="rare"), *(document(now) for _ in range(39)), document(now, name="rare")])
    add(tasks, [document(now) for _ in range(30)])
    seconds = itertools.count()

    in_time = [len(one.tasks) for one in pages(tasks, limit=5, name="rare", monotonic=lambda: 7.0)]
    late = [len(one.tasks) for one in pages(tasks, limit=5, name="rare", monotonic=lambda: float(next(seconds)))]

    assert (in_time, late) == ([1, 1], [0, 1, 0, 1])


def test_what_changes_while_a_page_is_made_is_shown_only_where_it_still_matches(tasks: Tasks, now: datetime) -> None:
    [gone, changed, kept] = add(tasks, [document(now) for _ in range(3)])

    def change() -> None:
        tasks.delete_one({"_id": gone})
        tasks.update_one({"_id": changed}, {"$set": {"status": "done"}})

    with heard(tasks.database, Afterwards("aggregate", change)) as db:
        page = list_tasks(open_tasks(db), limit=3, status="pending")

    assert [task.id for task in page.tasks] == [kept]


# What is shown


def test_payloads_results_and_logs_stay_where_they_are(tasks: Tasks, now: datetime) -> None:
    log = [{"attempt": 1, "status": "failed", "started_at": now, "duration_ms": 1, "note": "n"}]
    add(tasks, [document(now, payload={"secret": 1}, result={"secret": 2}, attempt_log=log, status="done")])

    [task] = list_tasks(tasks, limit=1).tasks

    assert isinstance(task, Task)
    assert (task.payload, task.result, task.attempt_log) == ({}, None, ())


def test_all_other_fields_are_those_of_the_task(tasks: Tasks, now: datetime) -> None:
    error = {"message": "no", "code": "ValueError", "at": now}
    policy = {"strategy": "fixed", "base_sec": 1, "factor": 1, "max_sec": 9, "jitter": "none", "jitter_factor": 0}
    [task_id] = add(
        tasks,
        [
            document(
                now, lane="retry", attempts=2, max_retries=3, backoff_policy=policy, timeout_sec=4, priority=5,
                expires_at=now, error=error, crashes=1, redrives=2, idempotency_key="k", cancel_requested_at=now,
                trace={"source": "s", "correlation_id": "c"}, settled_by="t",
            )
        ],
    )  # fmt: skip
    claim(tasks, now, lane="retry")

    [listed] = list_tasks(tasks, limit=1).tasks

    assert listed == store_tasks.get(tasks, task_id)


def test_malformed_documents_are_shown_among_the_others(tasks: Tasks, now: datetime) -> None:
    not_text = bson.encode(document(now, name="???")).replace(b"???", b"\xff\xfe\xfd")
    tasks.insert_one(RawBSONDocument(not_text))
    odd: list[dict[str, Any]] = [
        {"payload": 7},
        {"payload": None},
        {"name": ["x"]},
        {"attempts": "many"},
        {"due_at": {}},
        {"error": [1]},
    ]
    made = add(tasks, [document(now) | one for one in odd] + [{"_id": ObjectId()}, document(now)])

    found = list_tasks(tasks, limit=20).tasks

    assert len(found) == len(made) + 1
    assert [isinstance(one, Malformed) for one in found] == [False, True, False, True, True, True, True, True, True]


def test_a_page_of_large_documents_is_small(tasks: Tasks, now: datetime) -> None:
    large = "é" * 100_000
    error = {"message": "x" * 7_900, "code": "E", "at": now}
    log = [{"attempt": n, "status": "failed", "started_at": now, "duration_ms": 1, "note": large} for n in range(5)]
    add(tasks, [document(now, payload={"x": large}, result=large, attempt_log=log, error=error) for _ in range(30)])
    odd = {"error": {"message": large, "code": large, "at": now}, "reason": large, "trace": {"source": large}}
    add(tasks, [document(now, **odd, **{name: large}) for name in ("idempotency_key", "settled_by", "name", "queue")])

    found = list_tasks(tasks, limit=100)

    assert len(found.tasks) == 34
    assert len(repr(found)) < 100_000


# Cursors


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "!", "é", "====", "0", "null", "a" * 10_000, "-_-_",
     *(A_CURSOR[:at] + junk * 4 + A_CURSOR[at:] for at in (0, 5, len(A_CURSOR)) for junk in "!\n ."),
     *(base64.urlsafe_b64encode(bson.encode(one)).decode() for one in (
         {}, {"id": 1}, {"_id": 1, "x": 1}, {"x": 1, "_id": 1}, {"_id": MinKey()})),
     base64.urlsafe_b64encode(bson.encode({"_id": "x"})[:-3]).decode()],
)  # fmt: skip
def test_what_no_page_has_named_is_no_cursor(tasks: Tasks, now: datetime, cursor: str) -> None:
    add(tasks, [document(now)])

    with pytest.raises(InvalidRequestError) as refused:
        list_tasks(tasks, limit=1, after=cursor)

    assert [problem.field for problem in refused.value.problems] == ["cursor"]


@pytest.mark.parametrize("task_id", [{"$gt": ""}, {"$where": "1"}, [1], [], "$_id", "$$ROOT"], ids=shown)
def test_a_forged_cursor_is_only_an_id(tasks: Tasks, now: datetime, task_id: Any) -> None:
    """And lists what comes behind it: nobody may see less by it than without."""
    add(tasks, [document(now, _id=one) for one in (1, 2)])
    cursor = base64.urlsafe_b64encode(bson.encode({"_id": task_id})).decode()

    assert [one.id for one in list_tasks(tasks, limit=9, after=cursor).tasks] == [2, 1]
    assert [one.id for one in list_tasks(tasks, limit=9, after=cursor, status="pending").tasks] == [2, 1]


def test_a_cursor_goes_into_an_address_as_it_is(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, _id=text) for text in ("~~~~", "????", "ÿÿÿÿ")])

    assert all(
        one.next is None or one.next.replace("-", "").replace("_", "").isalnum() for one in pages(tasks, limit=1)
    )


# Cost


@pytest.mark.parametrize(
    ("asked", "cost"),
    [
        ({}, (2, 2 * 5 + 2, 5)),
        ({"status": "pending"}, (3, 2 * 60 + 6, 5)),
        ({"status": "pending", "queue": "eu"}, (3, 2 * 20 + 6, 5)),
        ({"status": "pending", "name": "noop"}, (3, 2 * 60 + 6, 60 + 5)),
        ({"status": "processing"}, (3, 2 * 10 + 6, 2 * 10 + 5)),
        ({"status": "failed"}, (3, 2 * 10 + 6, 2 * 10 + 5)),
        ({"status": "done"}, (3, 20 + 20 + 5, 20 + 5)),
        ({"name": "rare"}, (2 * 3, 3 * (20 + 20), 3 * 20)),
        ({"queue": "eu"}, (2 * 3, 3 * (20 + 20), 3 * 20)),
    ],
    ids=shown,
)
def test_a_page_examines_no_more_than_its_plan_says(
    db: Database[Any], now: datetime, asked: dict[str, Any], cost: tuple[int, int, int]
) -> None:  # F86
    number, keys, fetched = cost
    tasks = open_tasks(db)
    everything(tasks, now)

    with profiled(db) as commands:
        list_tasks(tasks, limit=5, limits=SHORT, **asked)

    assert len(commands) <= number
    assert all("COLLSCAN" not in one["planSummary"] and not one.get("usedDisk") for one in commands)
    assert sum(one["keysExamined"] for one in commands) <= keys
    assert sum(one["docsExamined"] for one in commands) <= fetched


@pytest.mark.parametrize("status", ["pending", "processing", "failed"])
def test_of_many_tasks_only_so_many_are_counted_and_walked(db: Database[Any], now: datetime, status: Status) -> None:
    tasks, limits = open_tasks(db), replace(SHORT, max_sorted=9)
    everything(tasks, now)

    with profiled(db) as commands:
        found = list_tasks(tasks, limit=5, limits=limits, status=status, after=list_tasks(tasks, limit=1).next)

    assert found.next is not None
    assert sum(one["keysExamined"] for one in commands[1:]) <= 10 + 3 * (20 + 20) + 6


def test_a_hinted_index_that_is_missing_is_told(db: Database[Any], now: datetime) -> None:
    other = open_tasks(db, DEAD_LETTERS)
    add(other, [document(now)])

    with pytest.raises(Exception, match="tidemill indexes"):
        list_tasks(other, limit=1, status="pending")


def everything(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue="eu", priority=n) for n in range(20)])
    add(tasks, [document(now, due_at=now + SECOND, next_retry_at=now + SECOND) for n in range(40)])
    add(tasks, [document(now, status=one, lease={"expires_at": now}) for one in STATUSES[1:] for _ in range(10)])
    add(tasks, [document(now, status="done") for _ in range(100)])


@contextmanager
def profiled(db: Database[Any]) -> Iterator[list[dict[str, Any]]]:
    """What the server did inside, to be read afterwards."""
    found: list[dict[str, Any]] = []
    db.command("profile", 2)
    try:
        yield found
    finally:
        db.command("profile", 0)
    found += db["system.profile"].find({"ns": f"{db.name}.tasks"}).sort("ts", 1)
