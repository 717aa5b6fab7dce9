"""Whether a claimed task may start."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.fixtures import T0
from tests.unit.make import a_claimed_task
from tidemill.model import EARLIEST, LATEST, Attempt, Cancelled, Failed, Snoozed, Task
from tidemill.policy.scheduling import Admission, Limits, Release, Start, admit

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LIMITS = Limits(known=True, timeout=30 * SECOND, max_retries=2, max_timeout=50 * SECOND, margin=10 * SECOND)
UNKNOWN = replace(LIMITS, known=False)
FAULTY = replace(UNKNOWN, is_faulty=True)


def admitted(task: Task, limits: Limits = LIMITS, *, remaining: timedelta = 2 * MINUTE) -> Admission:
    return admit(task, limits, now=T0, remaining=remaining)


def refusal(admission: Admission) -> str:
    assert isinstance(admission, Failed)
    assert admission.failure.code == admission.reason
    assert not admission.failure.retryable
    assert not admission.failure.by_function
    return admission.reason


def test_a_task_starts_with_its_timeout() -> None:
    assert admitted(a_claimed_task()) == Start(timeout=30 * SECOND)


@pytest.mark.parametrize(("remaining", "starts"), [(41, True), (40, True), (39.999, False), (0, False), (-5, False)])
def test_it_is_released_where_the_invocation_could_end_before_it(remaining: float, *, starts: bool) -> None:  # F12
    admission = admitted(a_claimed_task(), remaining=remaining * SECOND)

    assert admission == (Start(timeout=30 * SECOND) if starts else Release())


@pytest.mark.parametrize(("attempts", "starts"), [(1, True), (3, True), (4, False), (8, False)])
def test_a_task_that_had_used_its_attempts_before_this_claim_does_not_start(  # F15
    attempts: int, *, starts: bool
) -> None:
    admission = admitted(a_claimed_task(attempts=attempts))

    assert starts or refusal(admission) == "exhausted"
    assert isinstance(admission, Start) == starts


@pytest.mark.parametrize(("seconds", "starts"), [(-3600, False), (0, False), (0.001, True), (3600, True)])
def test_a_task_past_its_expiry_does_not_start(seconds: float, *, starts: bool) -> None:  # F27
    admission = admitted(a_claimed_task(expires_at=T0 + seconds * SECOND))

    assert starts or refusal(admission) == "expired"
    assert isinstance(admission, Start) == starts


def test_a_task_whose_cancellation_was_asked_for_does_not_start() -> None:
    assert admitted(a_claimed_task(cancel_requested_at=T0)) == Cancelled()


@pytest.mark.parametrize(
    ("age", "wait"),
    [
        (0 * SECOND, 15 * SECOND),
        (MINUTE, 15 * SECOND),
        (2 * MINUTE, 30 * SECOND),
        (8 * MINUTE, 2 * MINUTE),
        (-60 * MINUTE, 15 * SECOND),
    ],
)
def test_an_unknown_name_waits_with_growing_pauses_for_a_deploy(age: timedelta, wait: timedelta) -> None:  # F23
    assert admitted(a_claimed_task(T0 - age), UNKNOWN) == Snoozed(until=T0 + wait)


def test_an_unknown_name_is_looked_at_a_few_times_and_then_fails() -> None:
    task, now, looks = a_claimed_task(), T0, 0

    while isinstance(admission := admit(task, UNKNOWN, now=now, remaining=MINUTE), Snoozed):
        now, looks = admission.until, looks + 1

    assert refusal(admission) == "unknown_task"
    assert now - T0 >= timedelta(minutes=10)
    assert looks < 20


def test_a_timeout_no_executor_lives_to_see_fails_instead_of_being_passed_on_for_ever() -> None:
    assert refusal(admitted(a_claimed_task(), replace(LIMITS, timeout=51 * SECOND))) == "timeout_too_long"
    assert isinstance(admitted(a_claimed_task(), replace(LIMITS, timeout=50 * SECOND)), Start)


def test_cancelled_beats_expired_beats_exhausted_beats_unknown_beats_too_long_beats_released() -> None:
    limits = replace(UNKNOWN, timeout=MINUTE)
    old = T0 - timedelta(hours=1)
    worst = a_claimed_task(old, attempts=9, expires_at=T0, cancel_requested_at=T0)
    used_up = replace(limits, max_retries=-1)

    assert admitted(worst, limits, remaining=SECOND) == Cancelled()
    worst = replace(worst, cancel_requested_at=None)
    assert refusal(admitted(replace(worst, attempts=1), used_up, remaining=SECOND)) == "expired"
    worst = replace(worst, expires_at=None)
    assert refusal(admitted(worst, limits, remaining=SECOND)) == "exhausted"
    worst = replace(worst, attempts=1)
    assert refusal(admitted(worst, limits, remaining=SECOND)) == "unknown_task"
    limits = replace(limits, known=True)
    assert refusal(admitted(worst, limits, remaining=SECOND)) == "timeout_too_long"
    limits = replace(limits, timeout=50 * SECOND)
    assert admitted(worst, limits, remaining=SECOND) == Release()


@pytest.mark.parametrize("created_at", [EARLIEST, LATEST])
def test_times_no_calendar_has_are_judged_all_the_same(created_at: object) -> None:
    assert isinstance(admitted(a_claimed_task(created_at=created_at)), Start)
    assert isinstance(admitted(a_claimed_task(created_at=created_at), UNKNOWN), Failed | Snoozed)


@pytest.mark.parametrize("started", [{"attempts": 2}, {"attempts": 1, "crashes": 1}])
def test_expiry_is_about_the_first_start(started: dict[str, Any]) -> None:
    assert isinstance(admitted(a_claimed_task(expires_at=T0, **started), LIMITS), Start)
    assert refusal(admitted(a_claimed_task(expires_at=T0), LIMITS)) == "expired"


@pytest.mark.parametrize(("claimed_at", "expired"), [(T0 - SECOND, False), (T0, True), (T0 + SECOND, True)])
def test_a_claim_that_was_lost_was_no_start_in_time_where_it_came_too_late_itself(
    claimed_at: datetime, *, expired: bool
) -> None:
    lost = Attempt(attempt=0, status="lost", started_at=claimed_at, duration_ms=5, note="its worker vanished")
    task = replace(a_claimed_task(expires_at=T0, attempts=1, crashes=1), attempt_log=(lost,))

    admission = admit(task, LIMITS, now=T0 + MINUTE, remaining=2 * MINUTE)

    assert isinstance(admission, Failed if expired else Start)


@pytest.mark.parametrize(("age", "seconds"), [(0, 15), (60, 15), (100, 25), (239, 59.75), (240, 60), (10**7, 60)])
def test_a_task_whose_registration_has_a_fault_waits_for_a_minute_at_most(age: float, seconds: float) -> None:  # A07
    task = a_claimed_task(created_at=T0 - age * SECOND)

    assert admitted(task, FAULTY) == Snoozed(until=T0 + seconds * SECOND)


def test_it_waits_whatever_the_deployment_makes_of_its_retries_and_its_timeout() -> None:  # A07
    task = a_claimed_task(attempts=9, created_at=T0)

    assert isinstance(admitted(task, replace(FAULTY, timeout=99 * SECOND)), Snoozed)


def test_it_still_expires_and_is_still_cancelled() -> None:  # A07
    assert refusal(admitted(a_claimed_task(expires_at=T0), FAULTY)) == "expired"
    assert admitted(a_claimed_task(cancel_requested_at=T0), FAULTY) == Cancelled()
