"""One task by its id: looked up, cancelled and hurried."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.builders import add, claim, claim_one, document, stored
from tests.faults import failing
from tidemill.model import Succeeded, Task
from tidemill.store import settle
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks
from tidemill.store.settle import Settlement


def test_a_pending_task_is_cancelled_at_once_and_its_key_is_free(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, idempotency_key="order-7")])

    cancelled = store_tasks.cancel(tasks, task_id, now=now)

    assert isinstance(cancelled, Task)
    found = stored(tasks, task_id)
    assert (found["status"], found["finished_at"], found["retain_from"]) == ("cancelled", now, now)
    assert (found["released_key"], "idempotency_key" in found) == ("order-7", False)
    assert claim(tasks, now).tasks == ()
    add(tasks, [document(now, idempotency_key="order-7")])


def test_a_processing_task_is_asked_to_stop_and_keeps_its_lease(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, idempotency_key="order-7")])
    held = claim_one(tasks, now, owner="A")

    asked = store_tasks.cancel(tasks, held.id, now=now)

    assert isinstance(asked, Task)
    assert (asked.status, asked.cancel_requested_at, asked.lease) == ("processing", now, held.lease)
    assert stored(tasks, held.id)["idempotency_key"] == "order-7"
    assert store_tasks.find_cancel_requested(tasks, "A") == [held.id]
    assert store_tasks.find_cancel_requested(tasks, "B") == []


def test_asking_twice_keeps_the_first_time(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now)])
    held = claim_one(tasks, now)

    store_tasks.cancel(tasks, held.id, now=now)
    store_tasks.cancel(tasks, held.id, now=now + timedelta(seconds=9))

    assert stored(tasks, held.id)["cancel_requested_at"] == now


def test_force_takes_the_lease_away_and_the_late_result_is_refused(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now)])
    held = claim_one(tasks, now)

    store_tasks.cancel(tasks, held.id, now=now, force=True)
    verdict = settle.settle(tasks, [Settlement(task=held, outcome=Succeeded(result=1))], now=now)

    assert (len(verdict.lost), stored(tasks, held.id)["status"]) == (1, "cancelled")
    assert "lease" not in stored(tasks, held.id)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("status", ["pending", "processing", "done"])
@pytest.mark.parametrize("more", [{}, {"idempotency_key": "order-7"}, {"cancel_requested_at": "earlier"}])
def test_where_mongodb_minds_names_in_payloads_it_is_cancelled_by_plain_statements_alike(
    tasks: Tasks, mine: Tasks, now: datetime, *, status: str, force: bool, more: dict[str, Any]
) -> None:
    more = more | ({"cancel_requested_at": now - timedelta(hours=1)} if "cancel_requested_at" in more else {})
    lease = {"lease": {"token": "t", "owner": "A", "expires_at": now}} if status == "processing" else {}
    earlier = now - timedelta(minutes=1)
    [task_id] = add(tasks, [document(now, status=status, updated_at=earlier, next_retry_at=now, **lease, **more)])
    before = stored(tasks, task_id)
    store_tasks.cancel(tasks, task_id, now=now, force=force)
    wanted = stored(tasks, task_id)
    tasks.replace_one({"_id": task_id}, before)

    with failing(mine, "findAndModify", errorCode=52):
        told = store_tasks.cancel(mine, task_id, now=now, force=force)

    assert stored(tasks, task_id) == wanted
    assert (told is None) == (status == "done")


def test_the_delayed_tasks_that_become_due_next_are_found_in_order(tasks: Tasks, now: datetime) -> None:
    def delayed(seconds: int, **fields: Any) -> dict[str, Any]:
        at = now + timedelta(seconds=seconds)
        return document(now, due_at=at, next_retry_at=at, **fields)

    add(tasks, [delayed(0), delayed(9, queue="eu", lane="retry"), delayed(2), delayed(10), delayed(11), document(now)])
    add(tasks, [delayed(1, status="cancelled"), document(now) | {"next_retry_at": 5}])

    found = store_tasks.find_next_due(tasks, now=now, until=now + timedelta(seconds=10), limit=5)

    assert [((at - now).total_seconds(), queue, lane) for at, queue, lane in found] == [
        (2, "default", "fresh"),
        (9, "eu", "retry"),
        (10, "default", "fresh"),
    ]
    assert store_tasks.find_next_due(tasks, now=now, until=now + timedelta(seconds=10), limit=1) == found[:1]


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_what_has_ended_is_not_cancelled(tasks: Tasks, now: datetime, status: str) -> None:
    [task_id] = add(tasks, [document(now, status=status)])
    before = stored(tasks, task_id)

    assert store_tasks.cancel(tasks, task_id, now=now, force=True) is None
    assert stored(tasks, task_id) == before


def test_a_task_that_waits_for_its_retry_is_due_now_and_otherwise_as_it_was(tasks: Tasks, now: datetime) -> None:
    later = now + timedelta(hours=1)
    waiting = document(now, lane="retry", priority=7, attempts=2, due_at=later, next_retry_at=later, crashes=1)
    [task_id] = add(tasks, [waiting])
    at = now + timedelta(seconds=5)

    hurried = store_tasks.retry_now(tasks, task_id, now=at)

    assert isinstance(hurried, Task)
    assert hurried == store_tasks.get(tasks, task_id)
    assert stored(tasks, task_id) == waiting | {"due_at": at, "next_retry_at": None, "updated_at": at}
    assert [one.id for one in claim(tasks, at, lane="retry").tasks] == [task_id]


def test_a_hurried_task_has_its_place_in_the_lane(tasks: Tasks, now: datetime) -> None:
    later = now + timedelta(hours=1)
    [delayed, high] = add(tasks, [document(now, due_at=later, priority=one) for one in (0, 1)])
    [due] = add(tasks, [document(now)])

    for one in (delayed, high):
        store_tasks.retry_now(tasks, one, now=now + timedelta(seconds=1))

    assert [one.id for one in claim(tasks, later).tasks] == [high, due, delayed]


@pytest.mark.parametrize(
    "fields",
    [{}, {"status": "processing"}, {"status": "done"}, {"status": "failed"}, {"status": "cancelled"}],
    ids=lambda fields: fields.get("status", "due"),
)
def test_what_waits_for_no_time_is_not_hurried(tasks: Tasks, now: datetime, fields: dict[str, str]) -> None:
    due_at = now + timedelta(hours=1) if fields else now
    [task_id] = add(tasks, [document(now, due_at=due_at, **fields)])
    before = stored(tasks, task_id)

    assert store_tasks.retry_now(tasks, task_id, now=now) is None
    assert stored(tasks, task_id) == before


def test_an_unknown_id_is_nothing(tasks: Tasks, now: datetime) -> None:
    assert store_tasks.get(tasks, ObjectId()) is None
    assert store_tasks.cancel(tasks, ObjectId(), now=now) is None
    assert store_tasks.retry_now(tasks, ObjectId(), now=now) is None
    assert tasks.count_documents({}) == 0
