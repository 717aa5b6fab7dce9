"""When a failed task is tried again."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import T0
from tests.unit.make import a_task
from tidemill import Backoff, RetryPolicy
from tidemill.model import MAX_BACKOFF_SEC, Failed, Failure, Retried, Snoozed
from tidemill.retry import DEFAULT, FIRST_LOSS_JITTER, after_failure, after_loss, backoff, resolved

LAST_DRAW = math.nextafter(1.0, 0.0)
BROKE = Failure(message="ValueError: no", code="ValueError")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@st.composite
def policies(draw: st.DrawFn) -> Backoff:
    """Any legal back-off."""
    base = draw(st.floats(min_value=5e-324, max_value=MAX_BACKOFF_SEC))
    return Backoff(
        base_sec=base,
        factor=draw(st.floats(min_value=1, max_value=1e308)),
        max_sec=draw(st.floats(min_value=base, max_value=MAX_BACKOFF_SEC)),
    )


@given(policies(), st.integers(0, 10_000), st.floats(0, LAST_DRAW))
def test_a_wait_is_finite_and_within_the_cap_for_any_policy_and_count(
    policy: Backoff, failures: int, draw: float
) -> None:
    wait = backoff(policy, failures=failures, draw=draw)

    assert timedelta(0) <= wait <= seconds(policy.max_sec)


@given(policies(), st.integers(1, 10_000), st.floats(0, LAST_DRAW))
def test_waits_never_shrink_from_failure_to_failure(policy: Backoff, failures: int, draw: float) -> None:
    rounding = timedelta(microseconds=1) + seconds(policy.max_sec) * 1e-9

    assert backoff(policy, failures=failures + 1, draw=draw) >= backoff(policy, failures=failures, draw=draw) - rounding


@pytest.mark.parametrize(
    ("failures", "expected"),
    [(1, 5), (2, 10), (3, 20), (9, 1280), (10, 1800), (11, 1800), (64, 1800), (1024, 1800), (5000, 1800)],
)
def test_the_default_policy_doubles_from_5_s_up_to_30_minutes(failures: int, expected: float) -> None:
    assert backoff(Backoff(), failures=failures, draw=0.5) == seconds(expected) / 2


@pytest.mark.parametrize("failures", [0, -1])
def test_a_count_below_one_waits_like_the_first_failure(failures: int) -> None:
    assert backoff(Backoff(), failures=failures, draw=0.5) == seconds(2.5)


def test_the_draw_spreads_the_wait_from_zero_to_all_of_it() -> None:
    assert backoff(Backoff(), failures=3, draw=0.0) == timedelta(0)
    assert seconds(19.9) < backoff(Backoff(), failures=3, draw=LAST_DRAW) <= seconds(20)


def test_a_tiny_base_grows_by_the_formula_also_where_its_factor_alone_overflows() -> None:
    policy = Backoff(base_sec=2**-1060, factor=2, max_sec=MAX_BACKOFF_SEC)

    assert backoff(policy, failures=1061 + 10, draw=0.5) == seconds(512)
    assert backoff(policy, failures=1061 + 30, draw=0.5) == seconds(MAX_BACKOFF_SEC / 2)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"base_sec": 0}, "base_sec"),
        ({"base_sec": -1}, "base_sec"),
        ({"base_sec": math.nan}, "base_sec"),
        ({"base_sec": True}, "base_sec"),
        ({"base_sec": "5"}, "base_sec"),
        ({"base_sec": 10**400}, "base_sec"),
        ({"factor": 0.99}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": 10**400}, "factor"),
        ({"max_sec": 4}, "max_sec"),
        ({"max_sec": math.nan}, "max_sec"),
        ({"max_sec": 604_801}, "max_sec"),
        ({"strategy": "linear"}, "strategy"),
        ({"jitter": "none"}, "jitter"),
    ],
)
def test_an_impossible_backoff_cannot_be_built(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be "):
        Backoff(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("retries", [-1, 1001, True, 1.0, "3", None, 10**30])
def test_an_impossible_number_of_retries_cannot_be_built(retries: object) -> None:
    with pytest.raises(ValueError, match="max_retries must be a whole number from 0 to 1000"):
        RetryPolicy(max_retries=retries)  # type: ignore[arg-type]


def test_a_failure_is_retried_after_the_wait_of_its_count() -> None:
    outcome = after_failure(BROKE, DEFAULT, attempts=3, now=T0, draw=0.5)

    assert outcome == Retried(failure=BROKE, next_retry_at=T0 + seconds(10))


@pytest.mark.parametrize(("attempts", "fails"), [(1, False), (3, False), (4, True), (7, True)])
def test_a_task_fails_for_good_once_its_retries_are_used(attempts: int, *, fails: bool) -> None:
    outcome = after_failure(BROKE, RetryPolicy(max_retries=3), attempts=attempts, now=T0, draw=0.5)

    assert isinstance(outcome, Failed) == fails
    assert not isinstance(outcome, Failed) or outcome.reason == "exhausted"


def test_no_retries_are_one_run() -> None:
    assert isinstance(after_failure(BROKE, RetryPolicy(max_retries=0), attempts=1, now=T0, draw=0.5), Failed)


def test_what_is_not_retryable_fails_at_the_first_attempt() -> None:
    failure = Failure(message="Fail: no", code="fail", retryable=False)

    assert after_failure(failure, DEFAULT, attempts=1, now=T0, draw=0.5) == Failed(
        failure=failure, reason="not_retryable"
    )


@pytest.mark.parametrize("after", [timedelta(0), seconds(1), timedelta(hours=24)])
def test_a_wait_the_function_asked_for_beats_policy_cap_and_jitter(after: timedelta) -> None:
    failure = Failure(message="Retry: busy", code="retry", retry_after=after)

    assert after_failure(failure, DEFAULT, attempts=1, now=T0, draw=0.01) == Retried(
        failure=failure, next_retry_at=T0 + after
    )


def test_a_wait_the_function_asked_for_gives_no_further_retry() -> None:
    failure = Failure(message="Retry: busy", code="retry", retry_after=seconds(1))

    assert isinstance(after_failure(failure, RetryPolicy(max_retries=1), attempts=2, now=T0, draw=0), Failed)


def test_a_thousand_failures_at_one_moment_come_back_spread_out() -> None:  # F21
    outcomes = [after_failure(BROKE, DEFAULT, attempts=4, now=T0, draw=n / 1000) for n in range(1000)]
    moments = {one.next_retry_at for one in outcomes if isinstance(one, Retried)}

    assert len(moments) == 1000
    assert max(moments) - min(moments) > seconds(39)


def test_a_task_of_a_thousand_retries_is_still_scheduled() -> None:  # F20
    outcome = after_failure(BROKE, RetryPolicy(max_retries=1000), attempts=1000, now=T0, draw=LAST_DRAW)

    assert isinstance(outcome, Retried)
    assert T0 < outcome.next_retry_at <= T0 + seconds(1800)


def test_the_policy_of_the_task_beats_its_registration_and_that_the_deployment() -> None:
    own = a_task(max_retries=1, backoff_policy={"base_sec": 1.0, "factor": 3.0, "max_sec": 9.0})
    registered = RetryPolicy(max_retries=2, backoff=Backoff(base_sec=7))
    deployment = RetryPolicy(max_retries=3)

    assert resolved(own, registered=registered, deployment=deployment) == RetryPolicy(
        max_retries=1, backoff=Backoff(base_sec=1.0, factor=3.0, max_sec=9.0)
    )
    assert resolved(a_task(), registered=registered, deployment=deployment) == registered
    assert resolved(a_task(), registered=None, deployment=deployment) == deployment
    assert resolved(a_task(max_retries=0), registered=registered, deployment=deployment) == RetryPolicy(
        max_retries=0, backoff=Backoff(base_sec=7)
    )


def test_a_number_of_retries_written_by_hand_is_bounded() -> None:  # F46
    policy = resolved(a_task(max_retries=10**9), registered=None, deployment=DEFAULT)

    assert policy.max_retries == 1000


def test_the_first_loss_of_a_worker_is_refunded_and_due_within_seconds() -> None:  # F13
    task = a_task(status="processing", attempts=11)

    early, late = (after_loss(task, DEFAULT, now=T0, draw=draw) for draw in (0.0, LAST_DRAW))

    assert early == Snoozed(until=T0)
    assert isinstance(late, Snoozed)
    assert T0 + FIRST_LOSS_JITTER * 0.99 < late.until <= T0 + FIRST_LOSS_JITTER


def test_a_later_loss_is_a_failure_by_the_same_policy() -> None:  # F16, F17
    task = a_task(status="processing", attempts=2, crashes=1)

    outcome = after_loss(task, DEFAULT, now=T0, draw=0.5)

    assert isinstance(outcome, Retried)
    assert outcome.next_retry_at == T0 + seconds(5)
    assert outcome.failure.code == "lease_expired"
    assert not outcome.failure.by_function


def test_a_worker_lost_on_the_last_attempt_ends_the_task() -> None:  # F15
    task = a_task(status="processing", attempts=3, crashes=1)

    outcome = after_loss(task, RetryPolicy(max_retries=2), now=T0, draw=0.5)

    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.failure.code) == ("worker_lost", "lease_expired")
