"""Permits for retries, whatever goes wrong while they are out: none is lost, none is used twice."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.builders import add, document, stored, whole
from tests.claimers import a_claimer, holds, leased_retries, the_caps
from tests.faults import failing
from tests.features.conftest import Bench
from tests.unit.make import eventually
from tidemill.control.queues import change_queue
from tidemill.executor.retry_permits import LIMIT_PAUSE_SEC, PERMIT_GRACE, UNCONFIRMED_CLAIM_SEC
from tidemill.model import QueueOptions, Selection
from tidemill.store.claims import Claim
from tidemill.store.connection import Tasks
from tidemill.store.scan import Scan

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)


def test_a_stamp_that_failed_costs_no_permits(bench: Bench, mine: Tasks) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(20)])

    with failing(mine, "update", errorCode=11601):
        report = bench.execute(tasks=mine)

    assert (report["done"], report["errors"]) == (20, 1)
    assert holds(bench.db) == 0


def test_a_stamp_whose_answer_was_lost_keeps_its_permits_only_until_the_end(bench: Bench, mine: Tasks) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(8)])

    with failing(mine, "update", closeConnection=True):
        first = bench.execute(tasks=mine)
    second = bench.execute(owner="B")

    assert first["done"] + second["done"] == 8
    assert holds(bench.db) == 0


def test_a_stamp_that_could_not_be_searched_keeps_its_permits_beyond_the_end(bench: Bench, mine: Tasks) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1)])

    with failing(mine, "update", times=1_000_000, closeConnection=True):
        bench.execute(tasks=mine)

    assert holds(bench.db) == 1, "the stamp may take effect after the end"


def test_a_retry_that_cannot_be_stamped_costs_no_permits(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=4), now=now)
    add(bench.tasks, [document(now - HOUR, lane="retry", attempts=1, note=3)])
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(20)])
    bench.db.command("collMod", "tasks", validator={"note": {"$ne": 3}})

    assert bench.execute()["done"] == 20
    assert holds(bench.db) == 0


def test_a_malformed_retry_gives_its_permit_back(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=2), now=now)
    add(bench.tasks, [document(now - HOUR, lane="retry", attempts=1, payload="no object") for _ in range(2)])
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(5)])

    report = bench.execute()

    assert (report["failed"], report["done"]) == (2, 5)
    assert holds(bench.db) == 0


@pytest.mark.parametrize("selection", ["weighted", "retries_first"])
def test_an_execution_goes_on_once_its_own_retries_have_ended(bench: Bench, selection: Selection) -> None:
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        threading.Event().wait(LIMIT_PAUSE_SEC * 1.5)

    bench.task("slow")(slow)
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1, selection=selection), now=now)
    add(bench.tasks, [document(now, name="slow", lane="retry", attempts=1) for _ in range(3)])

    assert bench.execute()["done"] == 3


def test_two_executions_of_one_owner_share_the_limit(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(10)])

    for _ in range(2):
        a_claimer(tasks, owner="A", max_in_flight_retries=2).claim(free=5, slots=5, now=now)

    assert leased_retries(tasks) == holds(tasks.database) == 2


def test_permits_that_cannot_be_had_keep_no_fresh_task_waiting(bench: Bench, mine: Tasks) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=2), now=now)
    add(bench.tasks, [document(now, lane="retry", attempts=1), *(document(now) for _ in range(5))])

    with failing(mine, "findAndModify", times=1000, errorCode=13):
        report = bench.execute(tasks=mine)

    assert report["done"] == 5
    assert report["errors"] > 0
    assert leased_retries(bench.tasks) == 0


def test_a_cap_that_was_switched_off_gives_its_permits_back_all_the_same(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(4)])
    caps = the_caps(tasks)
    options = iter([QueueOptions(max_in_flight_retries=1), QueueOptions()])
    claimer = a_claimer(tasks, caps=caps, options=lambda _: next(options))
    held = claimer.claim(free=1, slots=4, now=now).tasks
    held += claimer.claim(free=1, slots=4, in_hand=whole(held), now=now, thorough=True).tasks

    caps.release_ended(held, now=now)

    assert (len(held), holds(tasks.database)) == (2, 0)


def test_a_permit_outlives_its_lease(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=2), now=now)
    add(bench.tasks, [document(now, name="look", lane="retry", attempts=1)])
    ends = []

    def look(_payload: dict[str, Any], ctx: Any) -> None:
        [control] = bench.db["control"].find({"_id": {"$ne": "tidemill"}})
        task = stored(bench.tasks, ctx.task_id)
        ends.append((task["lease"]["expires_at"], control["holds"][0]["until"]))

    bench.task("look")(look)
    bench.execute()

    [(lease_end, hold_end)] = ends
    assert lease_end < hold_end <= lease_end + PERMIT_GRACE + timedelta(seconds=1)


def test_a_stamp_that_may_still_take_effect_keeps_its_permits_for_that_long(tasks: Tasks, now: datetime) -> None:
    at = [100.0]
    caps = the_caps(tasks, monotonic=lambda: at[0])
    claim = Claim(scan=Scan(queue="default", lanes=("retry",)), error=AutoReconnect("lost"))
    first = caps.reserve("default", limit=3, now=now)
    assert first.grant(2) == 2

    caps.record_claim(first, claim, now=now)
    second = caps.reserve("default", limit=3, now=now)
    assert second.grant(9) == 1
    caps.record_claim(second, replace(claim, error=None), now=now)
    at[0] += UNCONFIRMED_CLAIM_SEC + 1

    assert caps.reserve("default", limit=3, now=now).grant(9) == 3


def test_permits_that_are_waited_for_go_round_at_once(bench: Bench) -> None:
    def long(_payload: dict[str, Any], _ctx: Any) -> bool:
        retries = {"name": "noop", "status": "done"}
        return eventually(lambda: bench.tasks.count_documents(retries) == 20, within=3)  # at 0.2 s each it would be 4

    bench.task("long")(long)
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    [long_id] = add(bench.tasks, [document(now, name="long", priority=9)])
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(20)])

    bench.execute()

    assert stored(bench.tasks, long_id)["result"] is True


def test_the_late_end_of_one_claim_gives_no_permit_of_the_next_claim_of_that_task_back(
    tasks: Tasks, now: datetime
) -> None:
    [task_id] = add(tasks, [document(now, lane="retry", attempts=1)])
    caps = the_caps(tasks)
    claimer = a_claimer(tasks, caps=caps, max_in_flight_retries=2)
    first = claimer.claim(free=1, slots=1, now=now).tasks
    # Its settlement takes effect, and the answer is lost: it will be repeated.
    tasks.update_one({"_id": task_id}, {"$set": {"status": "pending"}, "$unset": {"lease": ""}})
    second = claimer.claim(free=1, slots=1, now=now, thorough=True).tasks

    caps.release_ended(first, now=now)
    assert (len(first), len(second), holds(tasks.database)) == (1, 1, 1)

    caps.release_ended(second, now=now)
    assert holds(tasks.database) == 0


def test_a_claim_of_a_document_that_is_no_task_gives_its_own_permit_back(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1, payload="no object") for _ in range(2)])
    caps = the_caps(tasks)
    held = a_claimer(tasks, caps=caps, max_in_flight_retries=2).claim(free=2, slots=2, now=now).tasks
    assert holds(tasks.database) == 2

    caps.release_ended(held[:1], now=now)

    assert holds(tasks.database) == 1
