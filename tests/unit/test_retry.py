"""When a failed task is tried again, and when it is not."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import T0
from tests.unit.make import LAST_DRAW, a_task, backoffs
from tidemill import PRESETS, Backoff, RetryPolicy
from tidemill.model import Adaptive, Budget, Failed, Failure, Pressure, Retried, Snoozed
from tidemill.policy.retry import (
    DEFAULT,
    FIRST_LOSS_JITTER,
    NO_LOAD,
    Load,
    decide_after_failure,
    decide_after_loss,
    resolve_policy,
)

BROKE = Failure(message="ValueError: no", code="ValueError")
SECOND = timedelta(seconds=1)
CROWDED = Load(pressure=Pressure(adaptive=Adaptive(), budget=Budget()), ready=10_000, retries=10_000)


def busy(after: timedelta) -> Failure:
    """A function that said when it wants to be tried again."""
    return Failure(message="busy", code="retry", retry_after=after)


def thousand_times(failure: Failure, *, attempts: int, load: Load = NO_LOAD) -> list[datetime]:
    """When 1,000 tasks that failed at T0 are tried again by the default policy."""
    rng = random.Random(20310701)
    outcomes = [
        decide_after_failure(failure, DEFAULT, attempts=attempts, now=T0, draw=rng.random(), load=load)
        for _ in range(1000)
    ]
    return [one.next_retry_at for one in outcomes if isinstance(one, Retried)]


def test_a_failure_is_retried_after_the_wait_of_its_count() -> None:
    outcome = decide_after_failure(BROKE, DEFAULT, attempts=3, now=T0, draw=0.5)

    assert outcome == Retried(failure=BROKE, next_retry_at=T0 + 10 * SECOND)


@pytest.mark.parametrize(
    ("max_retries", "attempts", "fails"),
    [
        (0, 1, True), (1, 1, False), (1, 2, True), (3, 1, False), (3, 3, False), (3, 4, True), (3, 7, True),
        (10, 10, False), (10, 11, True), (1000, 1000, False), (1000, 1001, True),
    ],
)  # fmt: skip
def test_a_task_fails_for_good_once_its_retries_are_used(max_retries: int, attempts: int, *, fails: bool) -> None:
    outcome = decide_after_failure(BROKE, RetryPolicy(max_retries=max_retries), attempts=attempts, now=T0, draw=0.5)

    assert isinstance(outcome, Failed) == fails
    assert not isinstance(outcome, Failed) or outcome.reason == "exhausted"


def test_one_shot_is_one_run() -> None:
    outcome = decide_after_failure(BROKE, PRESETS["one_shot"], attempts=1, now=T0, draw=0.5)

    assert outcome == Failed(failure=BROKE, reason="exhausted")


def test_what_is_not_retryable_fails_at_the_first_attempt() -> None:
    failure = Failure(message="Fail: no", code="fail", retryable=False)

    outcome = decide_after_failure(failure, DEFAULT, attempts=1, now=T0, draw=0.5, load=CROWDED)

    assert outcome == Failed(failure=failure, reason="not_retryable")


@pytest.mark.parametrize("after", [timedelta(0), SECOND, timedelta(hours=24)])
@pytest.mark.parametrize("load", [NO_LOAD, CROWDED])
def test_a_wait_the_function_asked_for_beats_policy_cap_jitter_and_pressure(after: timedelta, load: Load) -> None:
    outcome = decide_after_failure(busy(after), DEFAULT, attempts=1, now=T0, draw=0.01, load=load)

    assert outcome == Retried(failure=busy(after), next_retry_at=T0 + after)


@pytest.mark.parametrize(("after", "stored"), [(1, 1), (999, 1), (1000, 1), (1001, 2), (1_000_500, 1001)])
def test_a_wait_the_function_asked_for_is_not_cut_short_by_being_stored(after: int, stored: int) -> None:  # F31
    outcome = decide_after_failure(busy(timedelta(microseconds=after)), DEFAULT, attempts=1, now=T0, draw=0.5)

    assert isinstance(outcome, Retried)
    assert outcome.next_retry_at == T0 + timedelta(milliseconds=stored)


def test_a_wait_the_function_asked_for_gives_no_further_retry() -> None:
    assert isinstance(
        decide_after_failure(busy(SECOND), RetryPolicy(max_retries=1), attempts=2, now=T0, draw=0), Failed
    )


@pytest.mark.parametrize("attempts", [1, 2, 3, 4, 5])
def test_a_thousand_that_fail_in_one_instant_come_back_spread_over_the_window(attempts: int) -> None:  # F21
    window = 5 * 2 ** (attempts - 1)

    moments = thousand_times(BROKE, attempts=attempts)

    seconds = Counter((moment - T0) // SECOND for moment in moments)
    assert len(moments) == 1000
    assert set(seconds) == set(range(window))
    assert max(seconds.values()) <= 3 * 1000 / window


@pytest.mark.parametrize("attempts", [9, 10])
def test_so_do_a_thousand_that_have_failed_often(attempts: int) -> None:
    window = timedelta(seconds=min(5 * 2 ** (attempts - 1), 1800))

    moments = thousand_times(BROKE, attempts=attempts)

    parts = Counter((moment - T0) // (window / 50) for moment in moments)
    assert set(parts) == set(range(50))
    assert max(parts.values()) <= 3 * 1000 / 50
    assert len(set(moments)) > 990


def test_of_a_thousand_that_asked_for_a_wait_none_comes_back_earlier() -> None:  # F21
    assert min(thousand_times(busy(77 * SECOND), attempts=1)) >= T0 + 77 * SECOND
    assert min(thousand_times(busy(77 * SECOND), attempts=9, load=CROWDED)) >= T0 + 77 * SECOND


def test_a_task_of_a_thousand_retries_is_still_scheduled() -> None:  # F20
    outcome = decide_after_failure(BROKE, RetryPolicy(max_retries=1000), attempts=1000, now=T0, draw=LAST_DRAW)

    assert isinstance(outcome, Retried)
    assert T0 < outcome.next_retry_at <= T0 + 1800 * SECOND


def test_under_pressure_the_wait_of_the_policy_is_longer() -> None:
    crowded = Load(pressure=Pressure(adaptive=Adaptive()), ready=50)
    spent = Load(pressure=Pressure(budget=Budget()), retries=100)

    for load, expected in ((NO_LOAD, 5), (crowded, 30), (spent, 10)):
        outcome = decide_after_failure(BROKE, DEFAULT, attempts=2, now=T0, draw=0.5, load=load)
        assert isinstance(outcome, Retried)
        assert outcome.next_retry_at == T0 + expected * SECOND


@given(backoffs(), st.integers(1, 1000), st.floats(0, LAST_DRAW), st.integers(0, 10**6), st.integers(0, 10**6))
def test_under_pressure_no_policy_waits_less_or_longer_than_the_larger_cap(
    policy: Backoff, attempts: int, draw: float, ready: int, retries: int
) -> None:
    moments = []
    for load in (NO_LOAD, Load(pressure=CROWDED.pressure, ready=ready, retries=retries)):
        outcome = decide_after_failure(
            BROKE, RetryPolicy(max_retries=1000, backoff=policy), attempts=attempts, now=T0, draw=draw, load=load
        )
        assert isinstance(outcome, Retried)
        moments.append(outcome.next_retry_at)

    assert T0 <= moments[0] <= moments[1] <= T0 + max(timedelta(seconds=policy.max_sec), 60 * SECOND)


def test_the_policy_of_the_task_beats_its_registration_and_that_the_deployment() -> None:
    own = a_task(max_retries=1, backoff_policy={"base_sec": 1.0, "factor": 3.0, "max_sec": 9.0})
    registered = RetryPolicy(max_retries=2, backoff=Backoff(base_sec=7))
    deployment = RetryPolicy(max_retries=3)

    assert resolve_policy(own, registered=registered, deployment=deployment) == RetryPolicy(
        max_retries=1, backoff=Backoff(base_sec=1.0, factor=3.0, max_sec=9.0)
    )
    assert resolve_policy(a_task(), registered=registered, deployment=deployment) == registered
    assert resolve_policy(a_task(), registered=None, deployment=deployment) == deployment
    assert resolve_policy(own, registered=None, deployment=deployment).max_retries == 1


@pytest.mark.parametrize("registered", [RetryPolicy(max_retries=2, backoff=Backoff(base_sec=7)), None])
def test_a_task_that_chooses_one_of_the_two_leaves_the_other_as_it_is(registered: RetryPolicy | None) -> None:
    deployment = RetryPolicy(max_retries=3, backoff=Backoff(base_sec=9))
    fallback = registered or deployment

    only_count = resolve_policy(a_task(max_retries=0), registered=registered, deployment=deployment)
    only_waits = resolve_policy(a_task(backoff_policy={"base_sec": 1}), registered=registered, deployment=deployment)

    assert only_count == RetryPolicy(max_retries=0, backoff=fallback.backoff)
    assert only_waits == RetryPolicy(max_retries=fallback.max_retries, backoff=Backoff(base_sec=1))


def test_a_number_of_retries_written_by_hand_is_bounded() -> None:  # F46
    policy = resolve_policy(a_task(max_retries=10**9), registered=None, deployment=DEFAULT)

    assert policy.max_retries == 1000


@pytest.mark.parametrize("load", [NO_LOAD, CROWDED])
def test_the_first_loss_of_a_worker_is_refunded_and_due_within_seconds(load: Load) -> None:  # F13
    task = a_task(status="processing", attempts=11)

    early, late = (decide_after_loss(task, DEFAULT, now=T0, draw=draw, load=load) for draw in (0.0, LAST_DRAW))

    assert early == Snoozed(until=T0)
    assert isinstance(late, Snoozed)
    assert T0 + FIRST_LOSS_JITTER * 0.99 < late.until <= T0 + FIRST_LOSS_JITTER


@pytest.mark.parametrize(("load", "wait"), [(NO_LOAD, 5), (CROWDED, 120)])
def test_a_later_loss_is_a_failure_by_the_same_policy(load: Load, wait: int) -> None:  # F16, F17
    task = a_task(status="processing", attempts=2, crashes=1)

    outcome = decide_after_loss(task, DEFAULT, now=T0, draw=0.5, load=load)

    assert isinstance(outcome, Retried)
    assert outcome.next_retry_at == T0 + wait * SECOND
    assert outcome.failure.code == "lease_expired"
    assert not outcome.failure.by_function


@pytest.mark.parametrize("max_retries", [0, 2])
def test_a_worker_lost_on_the_last_attempt_ends_the_task(max_retries: int) -> None:  # F15
    task = a_task(status="processing", attempts=max_retries + 1, crashes=1)

    outcome = decide_after_loss(task, RetryPolicy(max_retries=max_retries), now=T0, draw=0.5)

    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.failure.code) == ("worker_lost", "lease_expired")
