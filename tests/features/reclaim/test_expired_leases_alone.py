"""Expired leases and expired tasks, recovered without the settings of a deployment: the rest stays as it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pymongo.database import Database

from tests.builders import MINUTE, add, all_of, document, stored
from tests.faults import failing
from tests.fixtures import ManualClock
from tests.keepers import LONG_SEC, a_keeper, lost
from tidemill import TidemillError
from tidemill.reclaim import ReclaimContext, reclaim_expired
from tidemill.store.connection import Tasks

INTERRUPTED = 11601


def recovered(reclaim_context: ReclaimContext) -> dict[str, int]:
    return reclaim_expired(reclaim_context, until=reclaim_context.monotonic() + LONG_SEC)


def test_it_takes_back_expired_leases_and_fails_expired_tasks(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    [gone, late] = add(tasks, [lost(now), document(now, expires_at=now - MINUTE)])

    report = recovered(a_keeper(tasks, clock))

    assert {name: count for name, count in report.items() if count} == {"reclaimed": 1, "expired": 1}
    assert (stored(tasks, gone)["status"], stored(tasks, gone)["crashes"]) == ("pending", 1)
    assert (stored(tasks, late)["status"], stored(tasks, late)["reason"]) == ("failed", "expired")


def test_what_only_the_deployment_may_judge_stays_as_it_is(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    held = {"token": "t", "owner": "A", "expires_at": now + MINUTE}
    over = {"token": "t", "owner": "A", "expires_at": now - MINUTE}
    foreign: dict[str, Any] = {"payload": {}, "attempts": 0, "next_retry_at": None}
    add(
        tasks,
        [
            *(foreign | {"status": status} for status in ("pending", "processing", "failed", "done", "cancelled")),
            document(now, status="processing", attempts=1, lease=held),
            lost(now, lease=None),
            lost(now, lease=over | {"token": 7}),
            lost(now, lease=over, payload="no object"),
            document(now, lane="slow"),
            document(now, status="done", finished_at=now),
        ],
    )
    before = all_of(tasks)

    report = recovered(a_keeper(tasks, clock))

    assert not any(report.values())
    assert all_of(tasks) == before


def test_a_first_loss_may_be_due_sooner(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    add(tasks, [lost(now) for _ in range(200)])

    recovered(replace(a_keeper(tasks, clock), loss_delay_share=0.4))

    delays = [task["due_at"] - now for task in all_of(tasks)]
    assert timedelta(seconds=1) < max(delays) <= timedelta(seconds=2)


def test_a_step_that_fails_is_told_and_the_next_one_runs(
    mine: Tasks, db: Database[Any], clock: ManualClock, now: datetime
) -> None:
    del db
    add(mine, [lost(now), document(now, expires_at=now - MINUTE)])
    errors: list[TidemillError] = []

    with failing(mine, "aggregate", times=100, errorCode=INTERRUPTED):
        report = recovered(replace(a_keeper(mine, clock), observe_error=errors.append))

    assert (report["expired"], report["errors"], len(errors)) == (1, 1, 1)
