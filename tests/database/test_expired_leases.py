"""What vanished workers held, found again; and what only looks like a lease."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.builders import MINUTE, add, claim_one, document, stored
from tests.keepers import lost
from tidemill.model import Task
from tidemill.store import recovery
from tidemill.store.connection import Tasks
from tidemill.store.writes import WriteCounts


def test_the_longest_lost_come_first_and_those_that_were_tried_not_again(tasks: Tasks, now: datetime) -> None:
    ends = [now - n * MINUTE for n in (1, 3, 2, 0)]
    ids = add(tasks, [lost(now, lease={"token": "t", "owner": "o", "expires_at": at}) for at in ends])

    found = recovery.find_expired_leases(tasks, before=now, limit=10)

    assert [one.id for one in found] == [ids[1], ids[2], ids[0]]
    rest = recovery.find_expired_leases(tasks, before=now, limit=1, excluded_ids=[ids[1]])
    assert [task.id for task in rest] == [ids[2]]


def test_what_an_owner_holds_is_found_by_its_name(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now), document(now)])
    mine = claim_one(tasks, now, owner="A")
    claim_one(tasks, now, owner="B")

    assert [one.id for one in recovery.find_leased_by(tasks, "A", limit=10)] == [mine.id]
    assert recovery.find_leased_by(tasks, "A", limit=10, excluded_ids=[mine.id]) == []


@pytest.mark.parametrize("lease", [None, {}, {"expires_at": "soon"}, {"expires_at": None, "token": "t"}, "lease"])
def test_what_is_held_by_nobody_is_found(tasks: Tasks, now: datetime, lease: object) -> None:
    [task_id] = add(tasks, [lost(now, lease=lease)])
    add(tasks, [lost(now)])

    assert [one.id for one in recovery.find_leaseless(tasks, limit=10)] == [task_id]
    assert recovery.find_leaseless(tasks, limit=10, excluded_ids=[task_id]) == []


def test_a_task_comes_whole_but_for_its_payload_and_result(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [lost(now, payload={"a": 1}, result={"b": 2}, queue="eu", crashes=3)])

    [found] = recovery.find_expired_leases(tasks, before=now, limit=10)

    assert isinstance(found, Task)
    assert (found.id, found.payload, found.result) == (task_id, {}, None)
    assert (found.queue, found.crashes, found.attempts) == ("eu", 3, 1)
    assert found.lease is not None


def test_scraps_of_a_lease_are_cleared_and_no_lease_is(tasks: Tasks, now: datetime) -> None:
    scraps: list[Any] = [{"expires_at": now}, {"token": 5, "owner": "o", "expires_at": now}, "lease", [1]]
    torn = add(tasks, [lost(now, lease=one) for one in scraps])
    whole = add(tasks, [lost(now), document(now, lease={"expires_at": now})])

    assert recovery.remove_broken_leases(tasks, torn + whole) == WriteCounts(changed=len(scraps))

    assert not any("lease" in stored(tasks, one) for one in torn)
    assert all("lease" in stored(tasks, one) for one in whole)
