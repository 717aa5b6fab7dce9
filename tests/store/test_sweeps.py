"""Documents no claim can see: found, adopted, quarantined; and tasks past their expiry."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders import add, claim, document, stored
from tidemill.model import Malformed
from tidemill.store import Tasks, sweeps

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
    assert [raw["_id"] for raw in sweeps.strays(tasks, limit=10)] == [stray]


@pytest.mark.parametrize("field", ["queue", "lane", "due_at"])
def test_a_document_that_lacks_what_claims_go_by_is_found(tasks: Tasks, now: datetime, field: str) -> None:
    stray = document(now)
    del stray[field]
    add(tasks, [stray, document(now)])

    assert [raw["_id"] for raw in sweeps.strays(tasks, limit=10)] == [stray["_id"]]


def test_the_search_for_strays_is_bounded(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue=None) for _ in range(5)] + [document(now, lane="x") for _ in range(5)])

    assert len(sweeps.strays(tasks, limit=7)) == 7


def test_adoption_adds_what_is_absent_and_only_that(tasks: Tasks, now: datetime) -> None:
    [stray] = add(tasks, [{"payload": {"a": 1}, "status": "pending", "attempts": 0, "next_retry_at": None}])

    adopted = sweeps.adopt(tasks, stray, {"queue": "default", "lane": "fresh", "due_at": now, "name": "noop"})

    assert adopted
    [task] = claim(tasks, now).tasks
    assert task.id == stray


def test_a_document_somebody_mended_meanwhile_is_left_alone(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, priority=3)])
    before = stored(tasks, task_id)

    assert not sweeps.adopt(tasks, task_id, {"queue": "default", "priority": 0})
    assert not sweeps.quarantine(tasks, Malformed(id=task_id, problem="x", lease=None), now=now)
    assert stored(tasks, task_id) == before


def test_quarantine_fails_the_document_as_it_is(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, attempts="3")])

    assert sweeps.quarantine(tasks, Malformed(id=task_id, problem="attempts is wrong", lease=None), now=now)

    found = stored(tasks, task_id)
    assert (found["status"], found["reason"], found["attempts"]) == ("failed", "malformed", "3")
    assert found["error"] == {"message": "attempts is wrong", "code": "malformed", "at": now}


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

    assert sweeps.expired(tasks, now=now, limit=10) == ids[:1]
    assert sweeps.expire(tasks, ids, now=now) == 1
    assert (stored(tasks, ids[0])["status"], stored(tasks, ids[0])["reason"]) == ("failed", "expired")
