"""What an outcome writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import bson
import pytest

from tests.fixtures import T0
from tests.unit.make import a_claimed_task, raw
from tidemill.documents import read_task
from tidemill.model import (
    Attempt,
    Cancelled,
    Failed,
    Failure,
    Malformed,
    Outcome,
    Retried,
    Run,
    Snoozed,
    Succeeded,
    Task,
)
from tidemill.policy.failures import MAX_MESSAGE_CHARS
from tidemill.store.settle import MAX_LOG_LINES, Settlement, outcome_updates

NOW = T0 + timedelta(seconds=9)
LATER = T0 + timedelta(minutes=5)
RUN = Run(started_at=T0, duration=timedelta(milliseconds=1234, microseconds=567), status="failed", note="why")
BROKE = Failure(message="ValueError: no", code="ValueError")
LOST = Failure(message="its worker vanished", code="lease_expired", by_function=False)
OUTCOMES: list[Outcome] = [
    Succeeded(result=3),
    Retried(failure=BROKE, next_retry_at=LATER),
    Failed(failure=BROKE, reason="exhausted"),
    Snoozed(until=LATER),
    Cancelled(),
]
NOT_FINAL = [one for one in OUTCOMES if not isinstance(one, Succeeded | Cancelled)]
WRITTEN = {
    "status", "lane", "due_at", "next_retry_at", "finished_at", "updated_at", "settled_by", "error", "result", "reason",
    "attempt_log", "attempts", "crashes", "retain_from", "lease", "idempotency_key",
}  # fmt: skip


def settled(outcome: Outcome, task: Task | Malformed | None = None, **how: Any) -> Settlement:
    return Settlement(task=task or a_claimed_task(attempts=2), outcome=outcome, **({"run": RUN} | how))


def update(outcome: Outcome, task: Task | Malformed | None = None, **how: Any) -> dict[str, Any]:
    """The update where nobody asked for a cancellation."""
    return outcome_updates(settled(outcome, task, **how), now=NOW)[0][1]


def values(outcome: Outcome, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = update(outcome, **how)["$set"]
    return found


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
def test_every_statement_is_guarded_by_id_and_token_and_gives_the_lease_up(outcome: Outcome) -> None:  # F01
    settlement = settled(outcome)

    for where, written in outcome_updates(settlement, now=NOW):
        assert where.items() >= {"_id": settlement.task.id, "lease.token": "token"}.items()
        assert written["$set"]["settled_by"] == "token"
        assert written["$unset"] == {"lease": ""}
        bson.encode({"where": where, "written": written})


@pytest.mark.parametrize("crash", ["lost", "crashed"])
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
def test_nothing_is_written_but_what_the_outcome_is_about(outcome: Outcome, crash: str) -> None:  # F09, F45
    for _, written in outcome_updates(settled(outcome, lost=crash == "lost", crashed=crash == "crashed"), now=NOW):
        touched = {name for operator in written.values() for name in operator}
        assert touched <= WRITTEN
        assert set(written) <= {"$set", "$unset", "$inc", "$rename"}
        assert sum(len(operator) for operator in written.values()) == len(touched), "one field under two operators"


@pytest.mark.parametrize("outcome", NOT_FINAL, ids=lambda one: type(one).__name__)
def test_a_cancellation_asked_for_meanwhile_wins_over_all_but_success(outcome: Outcome) -> None:
    (plain, _), *_, (asked, cancelled) = outcome_updates(settled(outcome), now=NOW)

    assert plain["cancel_requested_at"] is None
    assert asked["cancel_requested_at"] == {"$ne": None}
    assert cancelled["$set"]["status"] == "cancelled"
    assert cancelled["$rename"] == {"idempotency_key": "released_key"}


def test_the_log_says_that_a_lost_attempt_is_not_counted_where_it_is_refunded_and_nowhere_else() -> None:
    task = a_claimed_task(attempts=1)
    lost = settled(Snoozed(until=LATER), task, lost=True)
    (_, refunded), *_, (_, cancelled) = outcome_updates(lost, now=NOW)
    (_, stopped), *_ = outcome_updates(replace(lost, outcome=Cancelled()), now=NOW)

    written = (refunded, cancelled, stopped)
    told = [(one["$set"]["attempt_log"][-1]["note"], one.get("$inc", {}).get("attempts", 0)) for one in written]
    assert told == [("why; not counted", -1), ("why", 0), ("why", 0)]


def test_success_is_done_even_where_a_cancellation_was_asked_for() -> None:
    [(where, written)] = outcome_updates(settled(Succeeded(result=3)), now=NOW)

    assert "cancel_requested_at" not in where
    assert written["$set"].items() >= {"status": "done", "result": 3, "retain_from": NOW, "finished_at": NOW}.items()


def test_a_lease_is_taken_back_only_if_it_has_also_run_out() -> None:
    for where, _ in outcome_updates(settled(Snoozed(until=LATER), lost=True), now=NOW, expired_before=NOW):
        assert where["lease.expires_at"] == {"$lt": NOW}
        assert where["lease.token"] == "token"


def test_what_was_left_processing_by_hand_has_no_token_to_prove() -> None:
    task = a_claimed_task(lease={"owner": "A"})

    for where, written in outcome_updates(settled(Snoozed(until=LATER), task), now=NOW):
        assert where["status"] == "processing"
        assert where["lease.expires_at"] == {"$not": {"$type": "date"}}
        assert written["$set"]["settled_by"] is None


def test_who_takes_a_lease_away_signs_with_a_name_of_its_own() -> None:
    assert values(Snoozed(until=LATER), lost=True, reclaimer="reclaim-1")["settled_by"] == "reclaim-1"


def test_a_retry_waits_in_the_retry_lane_with_one_time_in_both_fields() -> None:
    written = values(OUTCOMES[1])

    assert (written["status"], written["lane"]) == ("pending", "retry")
    assert written["due_at"] == written["next_retry_at"] == LATER
    assert written["error"] == {"message": "ValueError: no", "code": "ValueError", "at": NOW}


def test_a_snooze_stays_in_its_lane_and_gives_the_attempt_back() -> None:
    written = update(Snoozed(until=LATER))

    assert written["$inc"] == {"attempts": -1}
    assert "lane" not in written["$set"]
    assert "attempt_log" not in written["$set"]


@pytest.mark.parametrize("outcome", [Failed(failure=BROKE, reason="expired"), Cancelled(), Snoozed(until=LATER)])
def test_what_never_started_counts_no_attempt_and_leaves_the_log_and_the_crashes(outcome: Outcome) -> None:  # F13
    written = update(outcome, run=None)

    assert written["$inc"] == {"attempts": -1}
    assert "attempt_log" not in written["$set"]
    assert "crashes" not in written["$set"]


def test_an_attempt_that_ran_stays_counted() -> None:  # F17
    assert "$inc" not in update(OUTCOMES[1])
    assert "$inc" not in update(Succeeded(result=3))


def test_a_first_loss_counts_a_crash_and_gives_the_attempt_back() -> None:  # F13
    written = update(Snoozed(until=LATER), lost=True)

    assert (written["$inc"], written["$set"]["crashes"]) == ({"attempts": -1}, 1)
    assert len(written["$set"]["attempt_log"]) == 1


def test_a_later_loss_counts_both() -> None:
    written = update(Retried(failure=LOST, next_retry_at=LATER), a_claimed_task(crashes=1), lost=True)

    assert "$inc" not in written
    assert written["$set"]["crashes"] == 2


def test_the_death_of_the_process_a_function_had_for_itself_is_a_crash_and_an_attempt() -> None:
    (_, plain), (_, cancelled) = outcome_updates(
        settled(Retried(failure=LOST, next_retry_at=LATER), crashed=True), now=NOW
    )

    for written in (plain, cancelled):
        assert "$inc" not in written
        assert written["$set"]["crashes"] == 1
        assert len(written["$set"]["attempt_log"]) == 1


@pytest.mark.parametrize(("failure", "forgets"), [(BROKE, True), (LOST, False)])
def test_crashes_are_forgotten_only_with_an_outcome_of_the_function_itself(failure: Failure, *, forgets: bool) -> None:
    assert ("crashes" in values(Retried(failure=failure, next_retry_at=LATER))) == forgets
    assert values(Succeeded(result=3))["crashes"] == 0
    assert "crashes" not in values(Snoozed(until=LATER))


def test_a_document_that_is_no_task_is_failed_without_counting() -> None:  # F25
    broken = read_task(raw({"_id": 7, "attempts": "3", "lease": {"token": "token", "owner": "A", "expires_at": T0}}))
    assert isinstance(broken, Malformed)

    for where, written in outcome_updates(settled(OUTCOMES[2], broken, run=None), now=NOW):
        assert where["lease.token"] == "token"
        assert "$inc" not in written


def line(attempt: int, note: str = "") -> dict[str, Any]:
    return {"attempt": attempt, "status": "failed", "started_at": T0, "duration_ms": 1, "note": note}


def test_what_people_wrote_into_the_log_is_cut_to_what_we_write() -> None:
    huge = Attempt(attempt=0, status="failed", started_at=T0, duration_ms=0, note="n" * 9_000_000)
    task = replace(a_claimed_task(attempts=2), attempt_log=(huge,))

    assert len(update(OUTCOMES[1], task)["$set"]["attempt_log"][0]["note"]) <= MAX_MESSAGE_CHARS


def test_the_log_gets_a_line_of_the_attempt() -> None:
    written = values(OUTCOMES[1])["attempt_log"]

    assert written == [{"attempt": 2, "status": "failed", "started_at": T0, "duration_ms": 1234, "note": "why"}]


def test_the_log_keeps_the_first_and_the_newest() -> None:
    task = a_claimed_task(attempts=41, attempt_log=[line(n) for n in range(1, 41)])

    kept = [one["attempt"] for one in values(OUTCOMES[1], task=task)["attempt_log"]]

    assert kept == [1, *range(23, 42)]
    assert len(kept) == MAX_LOG_LINES


def test_a_full_document_is_settled_without_result_message_and_log() -> None:  # F43
    done = values(Succeeded(result="x" * 1000), without_details=True)
    failed = values(OUTCOMES[2], without_details=True)

    assert done["result"] == {"not_stored": "result", "reason": "the document is full"}
    assert failed["error"]["message"] == "the document is full"
    assert failed["error"]["code"] == "ValueError"
    assert done["attempt_log"] == failed["attempt_log"] == []


def test_a_task_claimed_by_hand_with_no_attempts_still_makes_a_log_line() -> None:
    task = replace(a_claimed_task(), attempts=0)

    assert values(OUTCOMES[1], task=task)["attempt_log"][0]["attempt"] == 1


def test_a_run_of_something_that_is_no_task_is_logged_as_the_first() -> None:
    broken = Malformed(id=7, problem="name is missing", lease=None)

    assert values(OUTCOMES[2], task=broken)["attempt_log"][0]["attempt"] == 1
