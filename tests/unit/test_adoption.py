"""Documents that other programs put among the tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.fixtures import T0
from tests.unit.make import raw
from tidemill import Malformed, Task
from tidemill.documents import decode, missing_fields, read_task

NOW = T0 + timedelta(days=1)
ASKED_FOR = {"_id": ObjectId(), "payload": {"a": 1}, "status": "pending", "attempts": 0, "next_retry_at": None}


def adopted(document: dict[str, Any], *, adopt_as: str | None = "noop") -> Task:
    fields = missing_fields(raw(document), now=NOW, adopt_as=adopt_as)
    assert isinstance(fields, dict), fields
    task = read_task(raw(decode(raw(document)) | fields))
    assert isinstance(task, Task)
    return task


def refused(document: dict[str, Any], *, adopt_as: str | None = "noop") -> str:
    verdict = missing_fields(raw(document), now=NOW, adopt_as=adopt_as)
    assert isinstance(verdict, Malformed), verdict
    return verdict.problem


def test_a_document_of_the_requests_own_shape_becomes_a_task_of_the_default_function() -> None:
    task = adopted(ASKED_FOR)

    assert (task.name, task.queue, task.lane, task.payload) == ("noop", "default", "fresh", {"a": 1})
    assert (task.due_at, task.next_retry_at, task.created_at) == (NOW, None, NOW)


def test_one_that_waits_for_its_retry_goes_on_waiting_in_the_retry_lane() -> None:
    task = adopted(ASKED_FOR | {"attempts": 2, "next_retry_at": T0})

    assert (task.lane, task.attempts, task.due_at, task.next_retry_at) == ("retry", 2, T0, T0)


def test_nothing_that_is_there_is_replaced() -> None:
    whole = {"name": "other", "queue": "eu", "lane": "retry", "priority": 7, "due_at": T0, "crashes": 1}

    fields = missing_fields(raw(ASKED_FOR | whole), now=NOW, adopt_as="noop")

    assert isinstance(fields, dict)
    assert not fields.keys() & whole.keys()


def test_null_is_as_good_as_absent() -> None:
    task = adopted(ASKED_FOR | {"queue": None, "due_at": None, "lane": None, "name": None})

    assert (task.queue, task.due_at, task.lane, task.name) == ("default", NOW, "fresh", "noop")


def test_a_task_that_only_lost_its_due_time_needs_no_default_function() -> None:  # F37
    assert adopted(ASKED_FOR | {"name": "mine"}, adopt_as=None).name == "mine"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"due_at": "2026-07-01T09:00:00Z"}, "due_at is not what it has to be"),
        ({"due_at": 1767225600}, "due_at is not what it has to be"),
        ({"next_retry_at": "soon"}, "due_at is not what it has to be"),
        ({"next_retry_at": 0}, "next_retry_at is not what it has to be"),
        ({"queue": 5}, "queue is not what it has to be"),
        ({"lane": "slow"}, "lane is not what it has to be"),
        ({"attempts": "3"}, "attempts is not what it has to be"),
        ({"attempts": True}, "attempts is not what it has to be"),
        ({"attempts": None}, "attempts is not what it has to be"),
        ({"payload": "str"}, "payload is not what it has to be"),
        ({"name": 5}, "name is not what it has to be"),
        ({"status": "Ready"}, "status is not what it has to be"),
    ],
)
def test_what_is_there_and_wrong_says_that_something_else_was_meant(wrong: dict[str, Any], problem: str) -> None:
    assert refused(ASKED_FOR | wrong) == problem


def test_without_a_default_function_a_nameless_document_is_no_task() -> None:
    assert refused(ASKED_FOR, adopt_as=None) == "name is missing"


def test_a_time_beyond_the_calendar_is_kept() -> None:
    far = raw(ASKED_FOR | {"next_retry_at": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)})

    assert isinstance(missing_fields(far, now=NOW, adopt_as="noop"), dict)
