"""What was enqueued can be found and asserted, and a message says what is there instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tidemill import Queue, Retry
from tidemill.registry import Registry
from tidemill.testing import all_enqueued, assert_enqueued, drain, refute_enqueued

AT = datetime(2031, 7, 1, 9, 0, 0, 123_456, tzinfo=UTC)
PAYLOAD = {
    "to": "a",
    "order": {"id": 7, "lines": [{"sku": "x", "n": 1}, {"sku": "y", "n": 2}]},
    "at": AT,
    "tags": (1, 2),
}


def test_tasks_are_found_by_name_queue_and_payload_in_the_order_of_their_enqueueing(queue: Queue) -> None:
    for name, to, where in (("mail", "a", "eu"), ("mail", "b", "us"), ("push", "a", "eu"), ("mail", "a", "us")):
        queue.enqueue(name, {"to": to}, queue=where)

    def found(*wanted: Any, **more: Any) -> list[str]:
        return [f"{task.name} {task.payload['to']} {task.queue}" for task in all_enqueued(queue, *wanted, **more)]

    assert found() == ["mail a eu", "mail b us", "push a eu", "mail a us"]
    assert found("mail") == ["mail a eu", "mail b us", "mail a us"]
    assert found("mail", {"to": "a"}) == ["mail a eu", "mail a us"]
    assert found("mail", {"to": "a"}, queue="us") == ["mail a us"]
    assert found(payload={"to": "a"}, queue="eu") == ["mail a eu", "push a eu"]
    assert found("fax") == []


def test_a_database_will_do(db: Database[Any], queue: Queue) -> None:
    queue.enqueue("mail", {})

    assert_enqueued(db, "mail")


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"to": "a"},
        {"to": ANY, "order": {"id": 7}},
        {"order": {"lines": [{"sku": "x"}, {"n": 2}]}},
        {"at": AT},
        {"at": AT.astimezone(UTC).replace(tzinfo=None)},
        {"tags": [1, 2]},
        {"tags": (1, 2)},
        PAYLOAD,
    ],
)
def test_a_payload_need_only_be_told_in_part(queue: Queue, expected: dict[str, Any]) -> None:
    task_id = queue.enqueue("mail", PAYLOAD)

    [task] = assert_enqueued(queue, "mail", expected)

    assert task.id == task_id


@pytest.mark.parametrize(
    "expected",
    [
        {"to": "b"},
        {"cc": ANY},
        {"order": {"id": 8}},
        {"order": {"lines": [{"sku": "x"}]}},
        {"order": {"lines": [{"n": 2}, {"sku": "x"}]}},
        {"order": 7},
        {"at": AT + timedelta(milliseconds=1)},
        {"tags": {1: 2}},
    ],
)
def test_what_is_told_must_be_so(queue: Queue, expected: dict[str, Any]) -> None:
    queue.enqueue("mail", PAYLOAD)

    refute_enqueued(queue, "mail", expected)
    with pytest.raises(AssertionError):
        assert_enqueued(queue, "mail", expected)


def test_what_is_delayed_counts_and_what_has_been_run_does_not(queue: Queue, registry: Registry) -> None:
    @registry.task("mail")
    def mail(payload: dict[str, Any]) -> None:
        if payload["to"] == "b":
            raise Retry("not yet")

    for to in "ab":
        queue.enqueue("mail", {"to": to})
    drain(queue, registry=registry)
    refute_enqueued(queue, "mail")

    queue.enqueue("mail", {"to": "c"}, delay=timedelta(days=1))

    [task] = assert_enqueued(queue, "mail")
    assert task.due_at - task.created_at == timedelta(days=1)


def test_a_cancelled_task_is_not_enqueued_any_more(queue: Queue) -> None:
    queue.cancel(queue.enqueue("mail", {}))

    refute_enqueued(queue)


def test_what_a_transaction_enqueues_is_there_once_it_is_committed(
    client: MongoClient[dict[str, Any]], queue: Queue
) -> None:
    with client.start_session() as session:
        with session.start_transaction():
            queue.enqueue("mail", {}, session=session)
            refute_enqueued(queue, "mail")
        assert_enqueued(queue, "mail", count=1)


def test_the_number_can_be_told(queue: Queue) -> None:
    queue.enqueue_many({"name": "mail", "payload": {}} for _ in range(3))

    assert len(assert_enqueued(queue, "mail", count=3)) == 3
    assert assert_enqueued(queue, "push", count=0) == []
    with pytest.raises(AssertionError, match=r"^'mail' was enqueued 3 times, not 2; there is\n  'mail'"):
        assert_enqueued(queue, "mail", count=2)
    with pytest.raises(AssertionError, match=r"^'mail' was enqueued 3 times, not 0;"):
        assert_enqueued(queue, "mail", count=0)
    with pytest.raises(AssertionError, match=r"^'push' was never enqueued;"):
        assert_enqueued(queue, "push", count=1)


# Messages


def test_where_nothing_is_there_it_says_so(queue: Queue) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(queue, "mail", {"to": "a"}, queue="eu")

    assert str(raised.value) == "'mail' with {'to': 'a'} in queue 'eu' was never enqueued; there are no tasks"


def test_otherwise_it_lists_what_is_there_the_likeliest_first(
    db: Database[Any], queue: Queue, registry: Registry
) -> None:
    registry.task("mail", retry="one_shot")(lambda payload: 1 / payload["n"])
    queue.enqueue("push", {"to": "a"})
    queue.enqueue("mail", {"n": 0}, queue="bulk")
    drain(queue, queues=["bulk"], registry=registry)
    queue.enqueue("mail", {"n": 1})
    db["tasks"].insert_one({"payload": {}})

    with pytest.raises(AssertionError) as raised:
        assert_enqueued(queue, "mail", {"n": 2})

    assert str(raised.value).splitlines() == [
        "'mail' with {'n': 2} was never enqueued; there is",
        "  'mail' with {'n': 1} in queue 'default'",
        "  'mail' with {'n': 0} in queue 'bulk', failed in attempt 1",
        "  'push' with {'to': 'a'} in queue 'default'",
        "  a document that is no task: status is missing",
    ]


def test_what_should_not_be_there_is_listed(queue: Queue) -> None:
    queue.enqueue("mail", {"to": "a"})
    queue.enqueue("push", {})

    with pytest.raises(AssertionError) as raised:
        refute_enqueued(queue, "mail")

    assert str(raised.value) == "'mail' was enqueued; there is\n  'mail' with {'to': 'a'} in queue 'default'"
    with pytest.raises(
        AssertionError, match=r"^a task in queue 'default' was enqueued; there is\n  'mail'.*\n  'push'"
    ):
        refute_enqueued(queue, queue="default")


def test_a_message_is_of_bounded_length_whatever_is_there(queue: Queue) -> None:
    queue.enqueue_many({"name": "mail", "payload": {"text": "x" * 10_000}} for _ in range(50))

    with pytest.raises(AssertionError) as raised:
        assert_enqueued(queue, "mail", {"text": "y" * 10_000})

    assert len(str(raised.value)) < 10_000
    assert str(raised.value).endswith("\n  and 30 more")
