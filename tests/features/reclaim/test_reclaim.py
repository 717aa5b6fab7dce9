"""What vanished workers held comes back, and what no claim can see is tended to."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.builders import MINUTE, add, claim, claim_one, document, lease, stored
from tests.features.conftest import Bench
from tidemill.model import Succeeded
from tidemill.store import claims, settle
from tidemill.store.settle import Settlement

SECOND = timedelta(seconds=1)


def test_the_first_loss_is_refunded_and_due_again_within_seconds(bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, max_retries=0)])
    claim(bench.tasks, now)
    bench.clock.move(MINUTE + SECOND)

    report = bench.reclaim()

    found = stored(bench.tasks, task_id)
    assert (report["reclaimed"], report["failed"]) == (1, 0)
    assert (found["status"], found["attempts"], found["crashes"], found["lane"]) == ("pending", 0, 1, "fresh")
    assert bench.clock.at <= found["due_at"] <= bench.clock.at + 5 * SECOND
    assert [(one["attempt"], one["status"]) for one in found["attempt_log"]] == [(1, "lost")]


def test_a_later_loss_is_a_failure_by_the_tasks_policy(bench: Bench, now: datetime) -> None:
    retried, dead = add(bench.tasks, [document(now, crashes=1, max_retries=1), document(now, crashes=1, max_retries=0)])
    _claim_suspects(bench, [retried, dead], now)
    bench.clock.move(2 * MINUTE)

    report = bench.reclaim()

    assert (report["reclaimed"], report["failed"]) == (1, 1)
    assert (stored(bench.tasks, retried)["lane"], stored(bench.tasks, retried)["attempts"]) == ("retry", 1)
    found = stored(bench.tasks, dead)
    assert (found["status"], found["reason"], found["error"]["code"]) == ("failed", "worker_lost", "lease_expired")


def test_attempts_are_counted_once(bench: Bench, now: datetime) -> None:  # F17
    def broken(_payload: dict[str, Any], _ctx: Any) -> None:
        raise ValueError

    bench.task("broken")(broken)
    [task_id] = add(bench.tasks, [document(now, name="broken")])
    claim(bench.tasks, now)
    bench.clock.move(2 * MINUTE)
    bench.reclaim()
    bench.clock.move(MINUTE)

    bench.execute()

    assert stored(bench.tasks, task_id)["attempts"] == 1
    assert [one["status"] for one in stored(bench.tasks, task_id)["attempt_log"]] == ["lost", "failed"]


def test_a_lease_that_has_not_ended_and_a_pending_task_are_left_alone(bench: Bench, now: datetime) -> None:
    held, pending = add(bench.tasks, [document(now), document(now, due_at=now + MINUTE)])
    claim_one(bench.tasks, now)
    before = [stored(bench.tasks, one) for one in (held, pending)]
    bench.clock.move(MINUTE)

    bench.reclaim()

    assert [stored(bench.tasks, one) for one in (held, pending)] == before


def test_what_a_dead_owner_held_comes_back_at_once_and_nothing_else(bench: Bench, now: datetime) -> None:
    [of_dead] = add(bench.tasks, [document(now)])
    claim(bench.tasks, now, owner="dead")
    [of_living] = add(bench.tasks, [document(now)])
    claim(bench.tasks, now, owner="living")

    report = bench.reclaim(dead_owner="dead")

    assert report["reclaimed"] == 1
    assert stored(bench.tasks, of_dead)["status"] == "pending"
    assert stored(bench.tasks, of_living)["status"] == "processing"
    assert bench.reclaim(dead_owner="dead")["reclaimed"] == 0


def test_a_late_worker_is_told_that_it_lost_what_was_reclaimed(bench: Bench, now: datetime) -> None:
    add(bench.tasks, [document(now)])
    late = claim_one(bench.tasks, now)
    bench.clock.move(2 * MINUTE)
    bench.reclaim()

    verdict = settle.settle(bench.tasks, [Settlement(task=late, outcome=Succeeded(result="late"))], now=bench.clock.at)

    assert (len(verdict.lost), verdict.settled) == (1, ())


def test_two_reclaims_at_once_bump_each_task_once(bench: Bench, now: datetime) -> None:  # F07
    ids = add(bench.tasks, [document(now) for _ in range(700)])
    claim(bench.tasks, now, limit=700)
    bench.clock.move(2 * MINUTE)

    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda _: bench.reclaim(), range(3)))

    assert sum(report["reclaimed"] for report in reports) == 700
    assert {(stored(bench.tasks, one)["crashes"], stored(bench.tasks, one)["attempts"]) for one in ids} == {(1, 0)}


def test_a_thousand_lost_tasks_do_not_come_back_in_one_instant(bench: Bench, now: datetime) -> None:  # F21
    add(bench.tasks, [document(now) for _ in range(1000)])
    claim(bench.tasks, now, limit=1000)
    bench.clock.move(2 * MINUTE)

    bench.reclaim()

    seconds = Counter(int((one["due_at"] - bench.clock.at).total_seconds()) for one in bench.db["tasks"].find())
    assert max(seconds.values()) < 3 * 1000 / 5
    assert len(seconds) >= 5


def test_a_processing_task_that_nobody_leased_comes_back(bench: Bench, now: datetime) -> None:
    shapes: list[dict[str, Any]] = [{}, {"lease": None}, {"lease": {"token": "t", "owner": "o", "expires_at": "soon"}}]
    ids = add(bench.tasks, [document(now, status="processing", attempts=1, **shape) for shape in shapes])

    report = bench.reclaim()

    assert report["reclaimed"] == 3
    assert {stored(bench.tasks, one)["status"] for one in ids} == {"pending"}


def test_a_task_that_a_person_called_processing_before_any_claim_is_run(bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, status="processing")])

    bench.reclaim()
    bench.clock.move(5 * SECOND)
    bench.execute()

    found = stored(bench.tasks, task_id)
    assert (found["status"], found["attempts"]) == ("done", 1)


def test_a_lost_task_that_was_to_be_cancelled_is_cancelled(bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now)])
    claim(bench.tasks, now)
    bench.db["tasks"].update_one({"_id": task_id}, {"$set": {"cancel_requested_at": now}})
    bench.clock.move(2 * MINUTE)

    bench.reclaim()

    assert stored(bench.tasks, task_id)["status"] == "cancelled"


def test_a_malformed_task_that_was_lost_is_failed_and_stops_nothing(bench: Bench, now: datetime) -> None:
    over = {"token": "t", "owner": "o", "expires_at": now}
    bad, good = add(
        bench.tasks,
        [
            document(now, status="processing", lease=over, attempts="3", crashes="x"),
            document(now, status="processing", lease=over, attempts=1),
        ],
    )
    bench.clock.move(SECOND)

    report = bench.reclaim()

    assert (report["failed"], report["reclaimed"]) == (1, 1)
    assert stored(bench.tasks, bad)["reason"] == "malformed"
    assert stored(bench.tasks, good)["status"] == "pending"


def test_pending_tasks_past_their_expiry_are_failed_without_a_claim(bench: Bench, now: datetime) -> None:
    ids = add(bench.tasks, [document(now, due_at=now + 60 * MINUTE, expires_at=now + MINUTE) for _ in range(600)])
    bench.clock.move(MINUTE)

    assert bench.reclaim()["expired"] == 600
    assert {stored(bench.tasks, one)["reason"] for one in ids} == {"expired"}


@pytest.mark.parametrize(("attempts", "lane"), [(0, "fresh"), (2, "retry")])
def test_a_document_of_another_shape_is_adopted_and_run(bench: Bench, attempts: int, lane: str) -> None:
    [task_id] = add(
        bench.tasks, [{"payload": {"n": 1}, "status": "pending", "attempts": attempts, "next_retry_at": None}]
    )

    assert bench.reclaim(adopt_as="noop")["adopted"] == 1
    assert stored(bench.tasks, task_id)["lane"] == lane
    bench.execute()

    assert (stored(bench.tasks, task_id)["status"], bench.ran) == ("done", [1])


def test_an_adopted_document_waits_for_its_retry_time(bench: Bench, now: datetime) -> None:
    add(bench.tasks, [{"payload": {}, "status": "pending", "attempts": 1, "next_retry_at": now + MINUTE}])
    bench.reclaim(adopt_as="noop")

    assert bench.execute()["done"] == 0
    bench.clock.move(MINUTE)
    assert bench.execute()["done"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"attempts": 0, "next_retry_at": "tomorrow"},
        {"attempts": "3"},
        {"attempts": 0, "payload": "text"},
        {"attempts": 0, "due_at": 1767225600, "queue": "default", "lane": "fresh"},
    ],
    ids=str,
)
def test_a_document_nobody_can_make_sense_of_is_quarantined_as_it_is(bench: Bench, fields: dict[str, Any]) -> None:
    wanted = {"_id": 1, "name": "noop", "payload": {}, "status": "pending"} | fields
    add(bench.tasks, [wanted])

    assert bench.reclaim(adopt_as="noop")["quarantined"] == 1
    found = stored(bench.tasks, 1)
    assert found["reason"] == "malformed"
    assert {name: found[name] for name in wanted if name != "status"} == {
        name: value for name, value in wanted.items() if name != "status"
    }


def test_without_a_function_for_it_a_document_without_a_name_is_quarantined(bench: Bench) -> None:
    [task_id] = add(bench.tasks, [{"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}])

    assert bench.reclaim()["quarantined"] == 1
    assert stored(bench.tasks, task_id)["error"]["message"] == "name is missing"


def test_broken_documents_at_the_head_of_a_queue_keep_nobody_waiting(bench: Bench, now: datetime) -> None:
    head = now - MINUTE
    missing = document(now, due_at=head)
    del missing["attempts"]
    not_utf8 = bytearray(bson.encode(document(now, due_at=head, payload={"text": "xxxx"})))
    not_utf8[not_utf8.index(b"xxxx")] = 0xFF
    broken = [
        document(now, due_at=head, attempts="3"),
        document(now, due_at=head, attempts=None),
        missing,
        RawBSONDocument(bytes(not_utf8)),
    ]
    far = document(now, due_at=head, payload={"when": DatetimeMS(253402300800000)})
    foreign = {"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}
    broken_ids = add(bench.tasks, broken)
    good_ids = add(bench.tasks, [far, foreign, *(document(now) for _ in range(20))])

    bench.reclaim(adopt_as="noop")
    report = bench.execute()

    assert {stored(bench.tasks, one)["status"] for one in good_ids} == {"done"}
    assert {(stored(bench.tasks, one)["status"], stored(bench.tasks, one)["reason"]) for one in broken_ids} == {
        ("failed", "malformed")
    }
    assert (report["done"], report["quarantined"], report["failed"]) == (22, 3, 1)


def test_reclaim_stops_when_its_time_is_up(bench: Bench, now: datetime) -> None:
    add(bench.tasks, [document(now)])
    claim(bench.tasks, now)
    bench.clock.move(2 * MINUTE)

    assert bench.reclaim(until=-1.0)["reclaimed"] == 0


def _claim_suspects(bench: Bench, ids: list[Any], now: datetime) -> None:

    claims.take(bench.tasks, ids, lease=lease(now), now=now)
