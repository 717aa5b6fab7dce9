"""Documents of another program, in any state: taken over in a marked database where DEFAULT_TASK names a function."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, document, stored
from tests.faults import failing
from tests.features.conftest import Bench
from tests.features.dead_letters.graveyard import opened
from tests.fixtures import T0, ManualClock
from tidemill import Queue
from tidemill.documents import decode
from tidemill.store.connection import Tasks

TEN_MINUTES = timedelta(minutes=10)


def foreign(status: str, *, attempts: int = 0, **fields: Any) -> dict[str, Any]:
    return {"payload": {"n": 1}, "status": status, "attempts": attempts, "next_retry_at": None} | fields


def test_a_document_that_is_processing_is_left_to_its_program_for_ten_minutes(  # S02
    bench: Bench, clock: ManualClock, now: datetime
) -> None:
    [task_id] = add(bench.tasks, [foreign("processing", attempts=1)])

    assert bench.reclaim(adopt_as="noop")["adopted"] == 1
    adopted = stored(bench.tasks, task_id)
    assert (adopted["status"], adopted["name"], adopted["attempts"]) == ("processing", "noop", 1)
    assert (adopted["lease"]["owner"], adopted["lease"]["expires_at"]) == ("sweep", now + TEN_MINUTES)

    clock.move(TEN_MINUTES)
    assert bench.reclaim(adopt_as="noop")["reclaimed"] == 0
    assert stored(bench.tasks, task_id) == adopted


def test_it_is_taken_back_and_run_when_the_ten_minutes_are_over(bench: Bench, clock: ManualClock) -> None:  # S02
    [task_id] = add(bench.tasks, [foreign("processing", attempts=1)])
    bench.reclaim(adopt_as="noop")

    clock.move(TEN_MINUTES + timedelta(seconds=1))
    assert bench.reclaim(adopt_as="noop")["reclaimed"] == 1
    clock.move(MINUTE)
    bench.execute()

    assert (stored(bench.tasks, task_id)["status"], bench.ran) == ("done", [1])


@pytest.mark.parametrize("ended", ["done", "failed"])
def test_what_its_program_ends_in_time_stays_ended(bench: Bench, clock: ManualClock, ended: str) -> None:  # S02
    [task_id] = add(bench.tasks, [foreign("processing", attempts=1)])
    bench.reclaim(adopt_as="noop")

    bench.db.tasks.update_one({"_id": task_id}, {"$set": {"status": ended}})
    clock.move(2 * TEN_MINUTES)
    bench.reclaim(adopt_as="noop")
    bench.execute()

    assert (stored(bench.tasks, task_id)["status"], bench.ran) == (ended, [])


@pytest.mark.parametrize(("attempts", "reason"), [(11, "exhausted"), (50, "exhausted"), (3, "not_retryable")])
def test_a_failed_document_becomes_a_dead_letter_that_can_be_redriven(  # S02
    bench: Bench, clock: ManualClock, attempts: int, reason: str
) -> None:
    [task_id] = add(bench.tasks, [foreign("failed", attempts=attempts)])

    with opened(bench.db, clock) as graveyard:
        assert graveyard.archive().moved == 0
        assert bench.reclaim(adopt_as="noop")["adopted"] == 1
        assert graveyard.archive().moved == 1
        [letter] = map(decode, graveyard.dead.find())
        assert (letter["reason"], letter["error"]["code"], letter["name"]) == (reason, reason, "noop")

        assert graveyard.redrive().redriven == 1
        bench.execute()

    assert (stored(bench.tasks, task_id)["status"], bench.ran) == ("done", [1])


@pytest.mark.parametrize("error", [{"message": "no route", "code": "OSError", "at": T0}, "no route", 7, ["no route"]])
def test_the_error_of_a_failed_document_is_kept(bench: Bench, clock: ManualClock, error: object) -> None:  # S02
    [task_id] = add(bench.tasks, [foreign("failed", attempts=50, error=error, settled_by="worker 3")])

    bench.reclaim(adopt_as="noop")

    found = stored(bench.tasks, task_id)
    assert (found["error"], found["settled_by"], found["reason"]) == (error, "worker 3", "exhausted")
    with opened(bench.db, clock) as graveyard:
        assert graveyard.archive().moved == 1
        assert graveyard.redrive().redriven == 1


@pytest.mark.parametrize("status", ["done", "cancelled"])
def test_an_ended_document_is_kept_as_long_as_a_task_of_ours(  # S02
    bench: Bench, now: datetime, status: str
) -> None:
    [task_id] = add(bench.tasks, [foreign(status, attempts=1, result={"a": 1})])

    assert bench.reclaim(adopt_as="noop")["adopted"] == 1

    found = stored(bench.tasks, task_id)
    assert (found["status"], found["name"], found["retain_from"], found["result"]) == (status, "noop", now, {"a": 1})


def test_one_of_each_state_is_taken_over_in_one_run(bench: Bench, db: Database[Any]) -> None:  # S02
    statuses = ("pending", "processing", "done", "failed", "cancelled")
    ids = add(bench.tasks, [foreign(status, attempts=20) for status in statuses])

    assert bench.reclaim(adopt_as="noop")["adopted"] == 5
    before = list(db.tasks.find())
    assert bench.reclaim(adopt_as="noop")["adopted"] == 0

    assert [stored(bench.tasks, one)["status"] for one in ids] == list(statuses)
    assert list(db.tasks.find()) == before


def test_more_than_a_batch_is_taken_over_in_one_run(bench: Bench) -> None:  # S02
    add(bench.tasks, [foreign("processing", attempts=1) for _ in range(600)])
    add(bench.tasks, [foreign("failed", attempts=20) for _ in range(600)])

    assert bench.reclaim(adopt_as="noop")["adopted"] == 1200


@pytest.mark.parametrize("wrong", [{"next_retry_at": "soon"}, {"priority": "high"}, {"attempts": 1.5}])
def test_a_failed_document_that_can_be_no_task_says_so_and_is_kept(  # S02
    bench: Bench, clock: ManualClock, wrong: dict[str, Any]
) -> None:
    [task_id] = add(bench.tasks, [foreign("failed", attempts=20) | wrong])

    assert bench.reclaim(adopt_as="noop")["quarantined"] == 1

    found = stored(bench.tasks, task_id)
    assert (found["reason"], found["error"]["code"]) == ("malformed", "malformed")
    assert {name: found[name] for name in wrong} == wrong
    with opened(bench.db, clock) as graveyard:
        assert graveyard.archive().moved == 1


def test_without_a_default_function_a_failed_document_says_what_it_lacks(bench: Bench) -> None:  # S02
    failed_id, done_id = add(bench.tasks, [foreign("failed", attempts=20), foreign("done")])
    before = stored(bench.tasks, done_id)

    assert bench.reclaim()["quarantined"] == 1

    assert stored(bench.tasks, failed_id)["error"]["message"] == "name is missing"
    assert stored(bench.tasks, done_id) == before


def test_a_document_that_could_not_be_adopted_yet_is_not_failed(mine: Tasks, db: Database[Any]) -> None:  # S02
    [task_id] = add(mine, [foreign("processing", attempts=1)])
    bench = Bench(db=mine.database, clock=ManualClock())

    with failing(mine, "update", times=1, errorCode=11601):
        bench.reclaim(adopt_as="noop")

    assert db.tasks.find_one({"_id": task_id})["status"] == "processing"  # type: ignore[index]
    assert bench.reclaim(adopt_as="noop")["adopted"] == 1


def test_many_that_can_be_no_task_keep_no_other_from_being_adopted(bench: Bench) -> None:  # S02
    add(bench.tasks, [foreign("processing", attempts=1, priority="high") for _ in range(600)])
    add(bench.tasks, [foreign("processing", attempts=1)])

    report = bench.reclaim(adopt_as="noop")

    assert (report["adopted"], report["failed"]) == (1, 600)


def test_a_task_of_ours_without_a_lease_is_taken_back_at_once(bench: Bench, now: datetime) -> None:  # S02
    [task_id] = add(bench.tasks, [document(now, status="processing", attempts=1)])

    assert bench.reclaim(adopt_as="noop")["reclaimed"] == 1
    assert stored(bench.tasks, task_id)["status"] == "pending"


def test_an_explanation_says_until_when_the_other_program_may_run_it(  # S02
    bench: Bench, clock: ManualClock
) -> None:
    [task_id] = add(bench.tasks, [foreign("processing", attempts=1)])
    bench.reclaim(adopt_as="noop")

    [reason] = Queue(bench.db, clock=clock).explain(task_id).reasons

    assert reason.code == "adopted"
    assert reason.message.startswith("Another program was processing it when the sweep adopted it at 2031-07-01 09:00")
    assert "until 2031-07-01 09:10" in reason.message


@pytest.mark.parametrize("status", ["pending", "processing"])
def test_an_unknown_jitter_means_the_raw_delay_with_a_note(  # S02
    bench: Bench, clock: ManualClock, status: str
) -> None:
    def fail(_payload: dict[str, Any], _ctx: Any) -> None:
        raise OSError

    bench.task("fails")(fail)
    policy = {"strategy": "fixed", "base_sec": 40, "jitter": "equal"}
    [task_id] = add(bench.tasks, [foreign(status, backoff_policy=policy)])
    bench.reclaim(adopt_as="fails")
    clock.move(2 * TEN_MINUTES)
    bench.reclaim(adopt_as="fails")
    now = clock.move(MINUTE)

    bench.execute()

    found = stored(bench.tasks, task_id)
    assert found["due_at"] == now + timedelta(seconds=40)
    assert found["backoff_policy"] == policy | {"jitter": "none"}
    [reason] = [one for one in Queue(bench.db, clock=clock).explain(task_id).reasons if one.code == "not_due"]
    assert reason.message.endswith(" Note: its jitter 'equal' is unknown, so its delays have none.")


@pytest.mark.parametrize("jitter", [1, ["full"]])
def test_a_jitter_that_is_no_word_is_malformed(bench: Bench, jitter: object) -> None:  # S02
    [task_id] = add(bench.tasks, [foreign("pending", backoff_policy={"jitter": jitter})])

    assert bench.reclaim(adopt_as="noop")["quarantined"] == 1
    assert stored(bench.tasks, task_id)["error"]["message"] == "backoff_policy is not what it has to be"
