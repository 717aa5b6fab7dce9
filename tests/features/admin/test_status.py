"""How full a queue is, as people are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, claim, document
from tidemill import InvalidRequestError
from tidemill.admin.queues import MAX_CURRENT, limit_count, read_status
from tidemill.control.queues import change_queue, declare_queue, list_queues
from tidemill.model import QueueOptions
from tidemill.store.connection import Tasks

SECOND = timedelta(seconds=1)


def test_the_status_tells_sizes_delays_age_and_who_runs(db: Database[Any], tasks: Tasks, now: datetime) -> None:
    [running] = add(tasks, [document(now, name="slow", lane="retry", attempts=2, due_at=now - 99 * SECOND)])
    claim(tasks, now, lane="retry")
    later = now + 5 * SECOND
    add(tasks, [document(now, due_at=now - n * SECOND) for n in range(4)])
    add(tasks, [document(now, due_at=later, next_retry_at=later)])
    add(tasks, [document(now, lane="retry", attempts=1, due_at=later, next_retry_at=later) for _ in range(2)])
    add(tasks, [document(now, status="done"), document(now, queue="eu")])
    add(tasks, [document(now, status="failed"), document(now, status="failed")])

    status = read_status(db, "default", now=now + SECOND)

    assert status.model_dump(mode="json", exclude={"options"}) == {
        "queue": "default",
        "queue_size": 5,
        "retry_queue_size": 2,
        "delayed": 3,
        "processing": 1,
        "failed": 2,
        "paused": False,
        "oldest_due_age_sec": 4.0,
        "current": [
            {
                "id": str(running),
                "name": "slow",
                "attempts": 3,
                "is_retry": True,
                "since": now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            }
        ],
    }


def test_an_empty_queue_has_no_age(db: Database[Any], now: datetime) -> None:
    status = read_status(db, "default", now=now)

    assert (status.queue_size, status.oldest_due_age_sec, status.current) == (0, None, ())


def test_counts_end_at_ten_thousand_and_say_so(db: Database[Any], tasks: Tasks, now: datetime) -> None:
    for _ in range(3):
        add(tasks, [document(now) for _ in range(3_400)])
    add(tasks, [document(now, lane="retry") for _ in range(10)])

    status = read_status(db, "default", now=now)

    assert (status.queue_size, status.retry_queue_size) == ("10000+", 10)


@pytest.mark.parametrize(("counted", "count"), [(0, 0), (10_000, 10_000), (10_001, "10000+")])
def test_a_count_reads_as_far_as_it_was_counted(counted: int, count: int | str) -> None:
    assert limit_count(counted) == count


def test_a_paused_queue_says_so(db: Database[Any], now: datetime) -> None:
    declare_queue(db, "eu", now=now)
    change_queue(db, "eu", QueueOptions(paused=True), now=now)

    assert read_status(db, "eu", now=now).options.paused


def test_only_some_of_many_running_tasks_are_listed(db: Database[Any], tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(MAX_CURRENT + 5)])
    claim(tasks, now)

    status = read_status(db, "default", now=now)

    assert (len(status.current), status.processing) == (MAX_CURRENT, MAX_CURRENT + 5)


def test_broken_documents_do_not_keep_the_status_away(db: Database[Any], tasks: Tasks, now: datetime) -> None:
    broken: list[dict[str, Any]] = [
        {"due_at": "soon"},
        {"priority": "high"},
        {"status": "processing", "attempts": "three"},
        {"status": "processing", "payload": None},
    ]
    add(tasks, [document(now) | fields for fields in broken])

    status = read_status(db, "default", now=now)

    assert status.processing == 2
    assert len(status.current) == 1


def test_queues_are_known_by_declaration_and_by_what_they_hold(db: Database[Any], tasks: Tasks, now: datetime) -> None:
    declare_queue(db, "declared", now=now)
    add(
        tasks,
        [document(now, queue="pending"), document(now, queue="running"), document(now, queue="old", status="done")],
    )
    claim(tasks, now, queue="running")

    assert list_queues(db) == ["declared", "default", "pending", "running"]
    assert read_status(db, "running", now=now).processing == 1


def test_a_queue_that_is_nowhere_is_an_error_that_names_it(db: Database[Any], now: datetime) -> None:
    with pytest.raises(InvalidRequestError, match="queue: there is no queue ue"):
        read_status(db, "ue", now=now)
