"""Settling, releasing and extending: only whoever holds the lease writes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import MINUTE, add, all_of, claim, claim_one, document, lease, stored, whole
from tests.commands import Commands
from tests.faults import failing
from tests.fixtures import T0
from tidemill import UnavailableError
from tidemill.model import Cancelled, Failed, Failure, Outcome, Retried, Run, Snoozed, Succeeded, Task
from tidemill.store import claims, settle
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.settle import MAX_LOG_LINES, Settlement
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
BROKEN = Failure(message="ValueError: no", code="ValueError")
LOST = Failure(message="its worker vanished", code="lease_expired", by_function=False)

OUTCOMES: list[Outcome] = [
    Succeeded(result="late"),
    Retried(failure=BROKEN, next_retry_at=datetime(2031, 7, 1, 10).astimezone()),
    Failed(failure=BROKEN, reason="exhausted"),
    Snoozed(until=datetime(2031, 7, 1, 10).astimezone()),
    Cancelled(),
]


def ended(task: Task, outcome: Outcome, now: datetime, **fields: Any) -> Settlement:
    run = Run(started_at=now, duration=timedelta(milliseconds=1234), status="succeeded")
    return Settlement(task=task, outcome=outcome, run=run, **fields)


@pytest.fixture
def held(tasks: Tasks, now: datetime) -> Task:
    add(tasks, [document(now)])
    return claim_one(tasks, now)


def test_success_ends_the_task_and_gives_the_lease_up(tasks: Tasks, held: Task, now: datetime) -> None:
    verdict = settle.settle(tasks, [ended(held, Succeeded(result={"sent": 3}), now)], now=now + SECOND)

    found = stored(tasks, held.id)
    assert [one.task.id for one in verdict.settled] == [held.id]
    assert (found["status"], found["result"], found["finished_at"]) == ("done", {"sent": 3}, now + SECOND)
    assert found["retain_from"] == now + SECOND
    assert "lease" not in found
    assert held.lease is not None
    assert found["settled_by"] == held.lease.token
    assert found["attempt_log"] == [
        {"attempt": 1, "status": "succeeded", "started_at": now, "duration_ms": 1234, "note": ""}
    ]


def test_a_retry_waits_in_the_retry_lane_and_tells_its_error(tasks: Tasks, held: Task, now: datetime) -> None:
    later = now + MINUTE

    settle.settle(tasks, [ended(held, Retried(failure=BROKEN, next_retry_at=later), now)], now=now)

    found = stored(tasks, held.id)
    assert (found["status"], found["lane"], found["attempts"]) == ("pending", "retry", 1)
    assert found["next_retry_at"] == found["due_at"] == later
    assert found["error"] == {"message": "ValueError: no", "code": "ValueError", "at": now}
    assert claim(tasks, later - timedelta(milliseconds=1), lane="retry").tasks == ()
    assert len(claim(tasks, later, lane="retry").tasks) == 1


def test_a_failure_for_good_waits_for_the_archive(tasks: Tasks, held: Task, now: datetime) -> None:
    settle.settle(tasks, [ended(held, Failed(failure=BROKEN, reason="exhausted"), now)], now=now)

    found = stored(tasks, held.id)
    assert (found["status"], found["reason"], found["finished_at"]) == ("failed", "exhausted", now)
    assert "retain_from" not in found


def test_a_snooze_is_no_attempt_and_leaves_the_lane(tasks: Tasks, held: Task, now: datetime) -> None:
    settle.settle(tasks, [ended(held, Snoozed(until=now + MINUTE), now)], now=now)

    found = stored(tasks, held.id)
    assert (found["status"], found["lane"], found["attempts"]) == ("pending", "fresh", 0)
    assert found["due_at"] == now + MINUTE
    assert found["attempt_log"] == []


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
def test_a_late_outcome_is_refused_and_reported(
    tasks: Tasks, held: Task, now: datetime, outcome: Outcome
) -> None:  # F01
    settle.settle(tasks, [_lost(held, now)], now=now + 2 * MINUTE)
    current = _claim_again(tasks, held, now + 2 * MINUTE)

    verdict = settle.settle(tasks, [ended(held, outcome, now)], now=now + 2 * MINUTE)

    assert [one.task for one in verdict.lost] == [held]
    assert verdict.settled == ()
    assert store_tasks.get(tasks, held.id) == current
    settle.settle(tasks, [ended(current, Succeeded(result="current"), now)], now=now + 2 * MINUTE)
    assert stored(tasks, held.id)["result"] == "current"


@pytest.mark.parametrize("status", ["pending", "failed", "cancelled", "done"])
@pytest.mark.parametrize("count", [1, 5])
def test_what_a_person_has_ended_or_set_back_meanwhile_is_no_longer_its_workers(
    tasks: Tasks, now: datetime, status: str, count: int
) -> None:
    add(tasks, [document(now) for _ in range(count)])
    held = whole(claim(tasks, now).tasks)
    tasks.update_many({}, {"$set": {"status": status}})

    verdicts = [settle.settle(tasks, [ended(one, outcome, now) for one in held], now=now) for outcome in OUTCOMES]

    assert [len(one.lost) for one in verdicts] == [count] * len(OUTCOMES)
    assert claims.release(tasks, held, now=now) == 0
    assert claims.extend(tasks, held, until=now + MINUTE) == held
    assert {(one["status"], one["attempts"]) for one in all_of(tasks)} == {(status, 1)}


def test_a_settle_that_already_took_effect_is_not_called_lost(tasks: Tasks, held: Task, now: datetime) -> None:
    outcome = Retried(failure=BROKEN, next_retry_at=now + MINUTE)

    first = settle.settle(tasks, [ended(held, outcome, now)], now=now)
    repeated = settle.settle(tasks, [ended(held, outcome, now)], now=now + SECOND)

    assert [one.task for one in first.settled] == [one.task for one in repeated.settled] == [held]
    assert stored(tasks, held.id)["attempts"] == 1
    assert len(stored(tasks, held.id)["attempt_log"]) == 1


def test_in_a_batch_each_settlement_is_judged_for_itself(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(4)])
    first, second, third, fourth = whole(claim(tasks, now).tasks)
    settle.settle(tasks, [ended(first, Succeeded(result=1), now)], now=now)
    store_tasks.cancel(tasks, second.id, now=now, force=True)
    tasks.delete_one({"_id": third.id})

    verdict = settle.settle(
        tasks, [ended(task, Succeeded(result=2), now) for task in (first, second, third, fourth)], now=now
    )

    assert [one.task for one in verdict.settled] == [first, fourth]
    assert [one.task for one in verdict.lost] == [second, third]
    assert tasks.count_documents({"_id": third.id}) == 0


def test_what_an_operator_changed_meanwhile_is_kept(tasks: Tasks, held: Task, now: datetime) -> None:  # F09
    tasks.update_one({"_id": held.id}, {"$set": {"priority": 9, "max_retries": 10}})

    settle.settle(tasks, [ended(held, Retried(failure=BROKEN, next_retry_at=now + MINUTE), now)], now=now)

    assert (stored(tasks, held.id)["priority"], stored(tasks, held.id)["max_retries"]) == (9, 10)


@pytest.mark.parametrize("outcome", OUTCOMES[1:4], ids=lambda one: type(one).__name__)
def test_a_cancellation_wins_over_everything_but_success(
    tasks: Tasks, held: Task, now: datetime, outcome: Outcome
) -> None:
    store_tasks.cancel(tasks, held.id, now=now)

    verdict = settle.settle(tasks, [ended(held, outcome, now)], now=now)

    assert len(verdict.settled) == 1
    assert stored(tasks, held.id)["status"] == "cancelled"
    assert stored(tasks, held.id)["retain_from"] == now


def test_success_wins_over_a_cancellation(tasks: Tasks, held: Task, now: datetime) -> None:
    store_tasks.cancel(tasks, held.id, now=now)

    settle.settle(tasks, [ended(held, Succeeded(result=None), now)], now=now)

    assert stored(tasks, held.id)["status"] == "done"


def test_what_never_started_is_refunded_and_not_logged(tasks: Tasks, held: Task, now: datetime) -> None:
    expired = Failed(failure=Failure(message="late", code="expired", by_function=False), reason="expired")

    settle.settle(tasks, [Settlement(task=held, outcome=expired)], now=now)

    assert (stored(tasks, held.id)["attempts"], stored(tasks, held.id)["attempt_log"]) == (0, [])


@pytest.mark.parametrize("attempts", [0, "three", None])
@pytest.mark.parametrize("outcome", [Snoozed(until=T0 + MINUTE), Failed(failure=LOST, reason="expired")])
def test_a_refund_takes_nothing_off_where_a_person_has_left_nothing(
    tasks: Tasks, held: Task, now: datetime, outcome: Outcome, attempts: object
) -> None:
    tasks.update_one({"_id": held.id}, {"$set": {"attempts": attempts}})

    verdict = settle.settle(tasks, [Settlement(task=held, outcome=outcome)], now=now)

    assert ([one.task.id for one in verdict.settled], verdict.stuck) == ([held.id], ())
    assert stored(tasks, held.id)["attempts"] == attempts
    assert "lease" not in stored(tasks, held.id)


@pytest.mark.parametrize(
    ("outcome", "lost", "crashes"),
    [
        (Succeeded(result=None), False, 0),
        (Retried(failure=BROKEN, next_retry_at=OUTCOMES[1].next_retry_at), False, 0),  # type: ignore[union-attr]
        (Snoozed(until=OUTCOMES[3].until), False, 2),  # type: ignore[union-attr]
        (Retried(failure=LOST, next_retry_at=OUTCOMES[1].next_retry_at), True, 3),  # type: ignore[union-attr]
        (Failed(failure=LOST, reason="worker_lost"), True, 3),
    ],
)
def test_only_an_outcome_of_the_function_itself_clears_it_of_suspicion(
    tasks: Tasks, now: datetime, outcome: Outcome, *, lost: bool, crashes: int
) -> None:
    add(tasks, [document(now, crashes=2)])
    task = claim_one(tasks, now)

    settle.settle(tasks, [ended(task, outcome, now, lost=lost)], now=now)

    assert stored(tasks, task.id)["crashes"] == crashes


def test_the_log_keeps_the_first_attempt_and_the_newest(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now)])
    for number in range(30):
        task = claim_one(tasks, now, lane="fresh" if number == 0 else "retry")
        settle.settle(tasks, [ended(task, Retried(failure=BROKEN, next_retry_at=now), now)], now=now)

    log = stored(tasks, task_id)["attempt_log"]
    assert len(log) == MAX_LOG_LINES
    assert [line["attempt"] for line in log] == [1, *range(12, 31)]


def test_an_outcome_the_server_refuses_is_written_without_what_does_not_fit(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, payload={"filler": "x" * (16 * 1024 * 1024 - 1500)}), document(now)])
    full, other = whole(claim(tasks, now).tasks)

    verdict = settle.settle(
        tasks,
        [ended(full, Succeeded(result="y" * 60_000), now), ended(other, Succeeded(result="y" * 60_000), now)],
        now=now,
    )

    assert (len(verdict.settled), verdict.stuck) == (2, ())
    assert stored(tasks, full.id)["result"]["not_stored"] == "result"
    assert stored(tasks, other.id)["result"] == "y" * 60_000


def test_release_gives_the_attempt_back(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, attempts=2, lane="retry") for _ in range(3)])
    held = whole(claim(tasks, now, lane="retry").tasks)
    store_tasks.cancel(tasks, held[0].id, now=now, force=True)

    assert claims.release(tasks, held, now=now + SECOND) == 2

    found = stored(tasks, held[1].id)
    assert (found["status"], found["attempts"], found["lane"], found["due_at"]) == ("pending", 2, "retry", now)
    assert ("lease" in found, found["updated_at"]) == (False, now + SECOND)
    assert claims.release(tasks, held, now=now) == 0


@pytest.mark.parametrize("attempts", [0, "three", None, [3]])
def test_a_release_gives_all_back_where_a_person_has_left_nothing_to_take_off(
    tasks: Tasks, now: datetime, attempts: object
) -> None:
    add(tasks, [document(now) for _ in range(3)])
    held = whole(claim(tasks, now).tasks)
    tasks.update_one({"_id": held[1].id}, {"$set": {"attempts": attempts}})

    assert claims.release(tasks, held, now=now) == 3

    found = [stored(tasks, one.id) for one in held]
    assert [one["attempts"] for one in found] == [0, attempts, 0]
    assert {one["status"] for one in found} == {"pending"}


def test_release_tells_an_earlier_claim_of_a_task_from_the_one_that_holds_now(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now)])
    before = claim_one(tasks, now)
    claims.release(tasks, [before], now=now)
    add(tasks, [document(now)])
    again, other = sorted(whole(claim(tasks, now).tasks), key=lambda task: task.id != before.id)
    assert (again.id, again.lease) == (before.id, other.lease)

    assert claims.release(tasks, [before, other], now=now) == 1

    assert (stored(tasks, again.id)["status"], stored(tasks, again.id)["attempts"]) == ("processing", 1)
    assert stored(tasks, other.id)["status"] == "pending"


def test_claims_of_several_tokens_are_released_in_one_command(mongod: Mongod, tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(6)])
    held = [*whole(claim(tasks, now, limit=3).tasks), *whole(claim(tasks, now, limit=3).tasks)]
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        mine = open_tasks(client[tasks.database.name])

        assert claims.release(mine, [], now=now) == 0
        assert claims.release(mine, held, now=now) == 6

    assert commands.names.count("update") == 1
    assert not any(isinstance(change, list) for change in commands.changes)  # which an old server refuses for $ names


def test_extending_moves_the_end_of_a_lease_and_tells_what_was_lost(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(3)])
    held = whole(claim(tasks, now).tasks)
    store_tasks.cancel(tasks, held[0].id, now=now, force=True)

    lost = claims.extend(tasks, held, until=now + 5 * MINUTE)

    assert lost == [held[0]]
    assert "lease" not in stored(tasks, held[0].id)
    assert stored(tasks, held[1].id)["lease"]["expires_at"] == now + 5 * MINUTE


@pytest.mark.parametrize("lost", [0, 1, 20])
def test_extending_asks_once_and_however_many_are_lost_once_more(
    mongod: Mongod, tasks: Tasks, now: datetime, lost: int
) -> None:
    add(tasks, [document(now) for _ in range(20)])
    held = whole(claim(tasks, now).tasks)
    for task in held[:lost]:
        store_tasks.cancel(tasks, task.id, now=now, force=True)
    commands = Commands()

    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        found = claims.extend(open_tasks(client[tasks.database.name]), held, until=now + MINUTE)

    assert found == held[:lost]
    assert commands.names == ["update", *["find"] * bool(lost), "endSessions"]


def test_with_nothing_held_nothing_is_extended(tasks: Tasks, now: datetime) -> None:
    assert claims.extend(tasks, [], until=now) == []


def test_an_extension_that_fails_before_or_after_its_effect_is_repeatable(mine: Tasks, now: datetime) -> None:
    add(mine, [document(now) for _ in range(3)])
    held = whole(claim(mine, now).tasks)

    with failing(mine, "update", times=2, closeConnection=True), pytest.raises(UnavailableError):
        claims.extend(mine, held, until=now + 5 * MINUTE)
    with failing(mine, "update", writeConcernError={"code": 64, "errmsg": "no"}), pytest.raises(UnavailableError):
        claims.extend(mine, held, until=now + 5 * MINUTE)

    assert claims.extend(mine, held, until=now + 7 * MINUTE) == []
    assert {stored(mine, one.id)["lease"]["expires_at"] for one in held} == {now + 7 * MINUTE}


def test_a_late_extension_does_not_touch_the_next_claim(tasks: Tasks, held: Task, now: datetime) -> None:  # F03
    settle.settle(tasks, [_lost(held, now)], now=now + 2 * MINUTE)
    current = _claim_again(tasks, held, now + 2 * MINUTE)

    assert claims.extend(tasks, [held], until=now + 9 * MINUTE) == [held]
    assert store_tasks.get(tasks, held.id) == current


def test_an_expired_lease_that_nobody_took_may_be_extended(tasks: Tasks, held: Task, now: datetime) -> None:  # F03
    assert claims.extend(tasks, [held], until=now + 9 * MINUTE) == []
    assert _reclaim(tasks, held, before=now + 5 * MINUTE, now=now) == 0


def test_a_lease_is_only_taken_back_once_it_has_run_out(tasks: Tasks, held: Task, now: datetime) -> None:
    assert _reclaim(tasks, held, before=now + MINUTE, now=now) == 0
    assert _reclaim(tasks, held, before=now + MINUTE + timedelta(milliseconds=1), now=now) == 1


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("update", {"closeConnection": True, "times": 2}),
        ("update", {"errorCode": 10107, "times": 2}),
        ("update", {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}),
    ],
)
def test_a_settle_that_fails_before_or_after_its_effect_is_repeatable(
    tasks: Tasks, mine: Tasks, now: datetime, command: str, how: dict[str, Any]
) -> None:  # F10
    add(tasks, [document(now) for _ in range(3)])
    settlements = [ended(task, Succeeded(result=1), now) for task in whole(claim(tasks, now).tasks)]

    with failing(mine, command, **how), pytest.raises(UnavailableError):
        settle.settle(mine, settlements, now=now)
    verdict = settle.settle(mine, settlements, now=now)

    assert (len(verdict.settled), verdict.lost) == (3, ())
    assert [stored(tasks, one.task.id)["status"] for one in settlements] == ["done"] * 3


def test_nothing_is_settled_with_nothing(tasks: Tasks, now: datetime) -> None:
    assert settle.settle(tasks, [], now=now) == settle.SettleResult()


def _lost(task: Task, now: datetime) -> Settlement:
    return ended(task, Snoozed(until=now), now, lost=True, reclaimer="reclaim-1")


def _reclaim(tasks: Tasks, task: Task, *, before: datetime, now: datetime) -> int:
    return len(settle.settle(tasks, [_lost(task, now)], now=now, expired_before=before).settled)


def _claim_again(tasks: Tasks, task: Task, now: datetime) -> Task:
    [held] = whole(claims.take(tasks, [task.id], lease=lease(now, owner="B"), now=now).tasks)
    return held
