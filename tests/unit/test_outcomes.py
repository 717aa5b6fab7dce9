"""From what a function did to what is written of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.fixtures import T0
from tests.ids import shown
from tests.unit.make import a_claimed_task, a_context
from tidemill import Fail, Malformed, Retry, RetryPolicy, Snooze, TaskTimeoutError
from tidemill.executor.outcomes import Terms, after_end, after_timeout
from tidemill.model import Adaptive, Failed, Failure, Outcome, Pressure, Retried, Snoozed, Succeeded
from tidemill.policy.failures import (
    MAX_MESSAGE_CHARS,
    MAX_NOTE_CHARS,
    MIN_SNOOZE,
    Kind,
    Rules,
    classify,
    find_snooze_request,
)
from tidemill.policy.retry import DEFAULT, Load, decide_after_loss
from tidemill.policy.scheduling import fail_malformed
from tidemill.runner.results import Crashed, Lost, NotStarted, Raised, Returned, RunResult, SnoozeRequested, TimedOut
from tidemill.runner.worker_thread import FinishedRun, RunningTask
from tidemill.store.settle import Settlement, outcome_updates
from tidemill.store.stats import count_attempt

SECOND = timedelta(seconds=1)
USUAL = Terms(policy=DEFAULT, now=T0, draw=0.5)
ONE_SHOT = Terms(policy=RetryPolicy(max_retries=0), now=T0, draw=0.5)
CROWDED = Terms(policy=DEFAULT, load=Load(pressure=Pressure(adaptive=Adaptive()), ready=20), now=T0, draw=0.5)


def with_rules(*, fail_on: Kind | None = None, retry_on: Kind | None = None) -> Terms:
    kinds = [frozenset() if kind is None else frozenset([kind]) for kind in (fail_on, retry_on)]
    return Terms(policy=DEFAULT, rules=Rules(fail_on=kinds[0], retry_on=kinds[1]), now=T0, draw=0.5)


def running(*, attempts: int = 1, timeout: float = 30, is_isolated: bool = False) -> RunningTask:
    ctx = a_context(deadline=100 + timeout)
    task = a_claimed_task(attempts=attempts)
    return RunningTask(
        task=task, ctx=ctx, started_at=T0 - SECOND, started=100.0, cancel=threading.Event(), is_isolated=is_isolated
    )


def ended(result: RunResult, *, attempts: int = 1, terms: Terms = USUAL) -> Settlement:
    end = FinishedRun(running=running(attempts=attempts), duration=SECOND, result=result)
    return after_end(end, terms)


def raised(error: BaseException, terms: Terms = USUAL) -> RunResult:
    until = find_snooze_request(error)
    return Raised(classify(error, terms.rules)) if until is None else SnoozeRequested(until)


def outcome(error: BaseException, terms: Terms = USUAL) -> Outcome:
    return ended(raised(error, terms), terms=terms).outcome


def test_a_result_is_a_success() -> None:
    settlement = ended(Returned({"sent": 3}))

    assert settlement.outcome == Succeeded(result={"sent": 3})
    assert settlement.run is not None
    assert (settlement.run.status, settlement.run.note) == ("succeeded", "")
    assert (settlement.run.started_at, settlement.run.duration) == (T0 - SECOND, SECOND)


def test_an_exception_is_a_failure_that_is_tried_again() -> None:
    settlement = ended(raised(ValueError("no")), attempts=2)

    assert isinstance(settlement.outcome, Retried)
    assert settlement.outcome.next_retry_at == T0 + 5 * SECOND
    assert settlement.run is not None
    assert (settlement.run.status, settlement.run.note) == ("failed", "ValueError: no")


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), SystemExit("msg"), KeyboardInterrupt(), GeneratorExit(), MemoryError(), asyncio.CancelledError()],
    ids=shown,
)
def test_an_exit_is_a_failure_like_any_other(error: BaseException) -> None:  # F48
    assert isinstance(outcome(error), Retried)


def test_the_last_attempt_that_fails_ends_the_task() -> None:
    settlement = ended(raised(ValueError("no")), attempts=11)

    assert isinstance(settlement.outcome, Failed)
    assert settlement.outcome.reason == "exhausted"


def test_fail_ends_the_task_and_retry_names_its_wait() -> None:
    failed, retried = outcome(Fail("gone")), outcome(Retry("busy", after=77 * SECOND))

    assert isinstance(failed, Failed)
    assert failed.reason == "not_retryable"
    assert isinstance(retried, Retried)
    assert retried.next_retry_at == T0 + 77 * SECOND


def test_the_rules_of_a_registration_decide_which_exceptions_end_a_task() -> None:
    assert outcome(KeyError("no"), with_rules(fail_on="LookupError")) == Failed(
        failure=Failure(message="KeyError: 'no'", code="KeyError", retryable=False), reason="not_retryable"
    )
    assert isinstance(outcome(KeyError("no"), with_rules(fail_on=ValueError)), Retried)
    assert isinstance(outcome(SyntaxError("no")), Failed)
    assert isinstance(outcome(SyntaxError("no"), with_rules(retry_on=SyntaxError)), Retried)


def test_what_a_function_raises_on_purpose_beats_the_rules_of_its_registration() -> None:
    final, tried = with_rules(fail_on=Exception), with_rules(retry_on=Exception)

    assert isinstance(outcome(ValueError("no"), final), Failed)
    assert isinstance(outcome(Retry("busy"), final), Retried)
    assert outcome(Snooze(90 * SECOND), final) == Snoozed(until=T0 + 90 * SECOND)
    assert isinstance(outcome(Fail("gone"), tried), Failed)


def test_the_load_of_its_queue_makes_a_failed_task_wait_longer_and_none_that_said_how_long() -> None:
    failed, retried = outcome(ValueError("no"), CROWDED), outcome(Retry("busy", after=SECOND), CROWDED)

    assert isinstance(failed, Retried)
    assert isinstance(retried, Retried)
    assert failed.next_retry_at == T0 + 7.5 * SECOND
    assert retried.next_retry_at == T0 + SECOND


def test_a_code_of_its_own_is_part_of_the_note() -> None:
    told = ended(raised(Retry("the receiver answered 503", code="http_503"))).run

    assert told is not None
    assert told.note == "http_503: the receiver answered 503"


def test_an_endless_message_makes_a_short_note() -> None:
    settlement = ended(raised(ValueError("x" * 100_000)))

    assert settlement.run is not None
    assert len(settlement.run.note) <= MAX_NOTE_CHARS


@pytest.mark.parametrize(
    ("until", "due"),
    [
        (90 * SECOND, T0 + 90 * SECOND),
        (T0 + 90 * SECOND, T0 + 90 * SECOND),
        ((T0 + 90 * SECOND).astimezone(timezone(timedelta(hours=2))), T0 + 90 * SECOND),
        (timedelta(0), T0 + MIN_SNOOZE),
        (-90 * SECOND, T0 + MIN_SNOOZE),
        (T0 - 90 * SECOND, T0 + MIN_SNOOZE),
        (T0 + timedelta(milliseconds=1), T0 + MIN_SNOOZE),
    ],
)
def test_a_snooze_is_due_when_it_says_but_never_at_once(until: datetime | timedelta, due: datetime) -> None:
    assert outcome(Snooze(until)) == Snoozed(until=due)


def test_a_snooze_counts_as_no_attempt_not_even_where_there_is_but_one() -> None:
    settlement = ended(raised(Snooze(SECOND)), terms=ONE_SHOT)

    assert settlement.outcome == Snoozed(until=T0 + SECOND)
    (_, update), *_ = outcome_updates(settlement, now=T0)
    assert update["$inc"] == {"attempts": -1}


@pytest.mark.parametrize(
    "until",
    [
        timedelta(days=366, milliseconds=1),
        T0 + timedelta(days=400),
        timedelta.max,
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(-5 * 3600 * SECOND)),
    ],
)
def test_a_snooze_lasts_no_longer_than_a_delay_may(until: datetime | timedelta) -> None:
    assert outcome(Snooze(until)) == Snoozed(until=T0 + timedelta(days=366))


@pytest.mark.parametrize("until", [60, None, "tomorrow", date(2026, 7, 2), datetime(2026, 7, 2)])  # noqa: DTZ001
def test_a_snooze_until_nonsense_is_an_error_where_it_is_raised(until: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="until must "):
        Snooze(until)


def test_a_snooze_that_was_changed_to_nonsense_is_a_failure() -> None:
    broken = Snooze(SECOND)
    broken.until = 60  # type: ignore[assignment]

    class Later(Snooze):
        def __init__(self) -> None:
            pass

    assert isinstance(outcome(broken), Retried)
    assert isinstance(outcome(Later()), Retried)


def test_an_exception_that_lies_about_its_class_is_a_failure() -> None:  # F50
    def breaks(_: object) -> type:
        raise SystemExit("hostile")

    assert isinstance(outcome(type("Bad", (Exception,), {"__class__": property(breaks)})()), Retried)


def test_a_function_that_ran_too_long_timed_out_whatever_it_might_still_return() -> None:
    settlement = after_timeout(running(timeout=1.5), USUAL)

    assert isinstance(settlement.outcome, Retried)
    assert settlement.outcome.failure.code == "timeout"
    assert settlement.outcome.failure.by_function
    assert settlement.run is not None
    assert (settlement.run.status, settlement.run.note) == ("timed_out", "it ran longer than 1.5 s")
    assert settlement.run.duration == 1.5 * SECOND


def test_a_timeout_on_the_last_attempt_ends_the_task() -> None:
    settlement = after_timeout(running(attempts=1), ONE_SHOT)

    assert isinstance(settlement.outcome, Failed)
    assert settlement.outcome.reason == "exhausted"


@pytest.mark.parametrize("kind", [TaskTimeoutError, "TaskTimeoutError", Exception])
def test_a_timeout_ends_the_task_where_its_registration_says_so(kind: Kind) -> None:
    settlement = after_timeout(running(), with_rules(fail_on=kind))

    assert isinstance(settlement.outcome, Failed)
    assert (settlement.outcome.reason, settlement.outcome.failure.code) == ("not_retryable", "timeout")
    assert settlement.run is not None
    assert settlement.run.status == "timed_out"
    assert isinstance(outcome(TaskTimeoutError(), with_rules(fail_on=kind)), Failed)


def test_a_timeout_of_the_network_is_no_timeout_of_the_task() -> None:
    settlement = after_timeout(running(), with_rules(fail_on=TimeoutError))

    assert isinstance(settlement.outcome, Retried)


def test_a_timeout_waits_longer_under_load_too() -> None:
    settlement = after_timeout(running(), CROWDED)

    assert isinstance(settlement.outcome, Retried)
    assert settlement.outcome.next_retry_at == T0 + 7.5 * SECOND


def test_the_interruption_of_a_timeout_is_a_failure_where_a_function_lets_it_through() -> None:
    assert isinstance(outcome(TaskTimeoutError()), Retried)


def test_what_was_killed_at_its_timeout_has_timed_out_like_any_other() -> None:
    late = running(is_isolated=True)
    killed = FinishedRun(running=late, duration=31 * SECOND, result=TimedOut())

    settlement = after_end(killed, USUAL)

    assert isinstance(settlement.outcome, Retried)
    assert settlement.outcome.failure.by_function
    assert settlement == after_timeout(replace(late, is_isolated=False), USUAL)


def test_one_whose_isolation_does_not_answer_timed_out_by_nobodys_fault() -> None:
    settlement = after_timeout(running(is_isolated=True), USUAL)

    assert isinstance(settlement.outcome, Retried)
    assert settlement.outcome.failure.code == "timeout"
    assert not settlement.outcome.failure.by_function


def test_the_death_of_its_process_is_a_failure_that_is_tried_again_and_a_crash() -> None:
    settlement = ended(Crashed("its process was killed by SIGSEGV"))

    assert settlement.outcome == Retried(
        failure=Failure(message="its process was killed by SIGSEGV", code="crashed", by_function=False),
        next_retry_at=T0 + 2.5 * SECOND,
    )
    assert settlement.run is not None
    assert (settlement.run.status, settlement.run.duration) == ("failed", SECOND)
    assert settlement.run.note == "crashed: its process was killed by SIGSEGV"
    (_, update), *_ = outcome_updates(settlement, now=T0)
    assert "$inc" not in update
    assert update["$set"]["crashes"] == 1
    counts = count_attempt(settlement, now=T0)
    assert (counts["runs"], counts["run_ms"], counts["retried"]) == (1, 1000, 1)
    assert "lost" not in counts


def test_the_death_of_its_process_on_the_last_attempt_makes_it_a_dead_letter_for_that_reason() -> None:
    settlement = ended(Crashed("its process exited with code 3"), terms=ONE_SHOT)

    assert isinstance(settlement.outcome, Failed)
    assert settlement.outcome.reason == "worker_lost"
    assert settlement.outcome.failure.message == "its process exited with code 3"


def test_the_first_loss_of_its_process_with_others_is_refunded_even_where_there_is_but_one_attempt() -> None:
    settlement = ended(Lost("its process was lost with the helper process"), terms=ONE_SHOT)

    assert settlement.outcome == Snoozed(until=T0 + 2.5 * SECOND)
    assert settlement.run is not None
    assert (settlement.run.status, settlement.run.duration) == ("lost", SECOND)
    assert settlement.run.note == "its process was lost with the helper process"
    (_, update), *_ = outcome_updates(settlement, now=T0)
    assert update["$inc"] == {"attempts": -1}
    assert update["$set"]["crashes"] == 1
    assert [line["status"] for line in update["$set"]["attempt_log"]] == ["lost"]
    assert count_attempt(settlement, now=T0)["lost"] == 1


def test_a_later_loss_of_its_process_is_a_failure_like_that_of_a_worker() -> None:
    again = running(attempts=1)
    again = replace(again, task=replace(again.task, crashes=1))
    end = FinishedRun(running=again, duration=SECOND, result=Lost("its process was lost with the helper process"))

    retried, failed = (after_end(end, terms) for terms in (USUAL, ONE_SHOT))

    assert isinstance(retried.outcome, Retried)
    assert retried.outcome == decide_after_loss(again.task, DEFAULT, now=T0, draw=0.5)
    assert isinstance(failed.outcome, Failed)
    assert (failed.outcome.reason, failed.lost) == ("worker_lost", True)
    assert failed.run is not None
    assert (failed.run.status, failed.run.note) == ("lost", "its process was lost with the helper process")
    (_, update), *_ = outcome_updates(failed, now=T0)
    assert update["$set"]["crashes"] == 2


def test_the_description_of_a_death_is_bounded() -> None:
    outcome = ended(Crashed("x" * 100_000)).outcome

    assert isinstance(outcome, Retried)
    assert len(outcome.failure.message) == MAX_MESSAGE_CHARS


def test_what_was_never_called_cannot_be_settled() -> None:
    with pytest.raises(ValueError, match="there is nowhere to run it"):
        ended(NotStarted("there is nowhere to run it"))


def test_a_document_that_is_no_task_fails_as_malformed() -> None:
    failed = fail_malformed(Malformed(id=7, problem="name is missing", lease=None))

    assert (failed.reason, failed.failure.code, failed.failure.message) == ("malformed", "malformed", "name is missing")
    assert not failed.failure.by_function
