"""How long executors live: invocations on a deadline, workers until they are asked to stop."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

from tests.fixtures import T0
from tidemill.errors import UnavailableError
from tidemill.executor.lifetime import LEASE_EXTENSION_SEC, LEASE_GRACE, WORKER_LEASE, Invocation, Worker

SECOND = timedelta(seconds=1)
LONGEST_TASK = timedelta(seconds=880)


class Time:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def an_invocation(clock: Time, remaining: timedelta, *, reserve: timedelta = SECOND * 60) -> Invocation:
    return Invocation(remaining, reserve=reserve, monotonic=clock)


def test_an_invocation_counts_down_and_past_its_end(clock: Time) -> None:
    life = an_invocation(clock, SECOND * 120)

    clock.now += 50
    assert life.remaining() == life.remaining_for_tasks() == SECOND * 70
    clock.now += 80
    assert life.remaining() == -SECOND * 10


@pytest.mark.parametrize(
    ("passed", "claims"), [(0, True), (59.9, True), (60, True), (60.001, False), (119, False), (200, False)]
)
def test_an_invocation_claims_while_its_reserve_is_left(clock: Time, passed: float, *, claims: bool) -> None:
    life = an_invocation(clock, SECOND * 120)

    clock.now += passed

    assert life.may_claim() is claims


@pytest.mark.parametrize("passed", [0, 30, 119.5])
def test_a_lease_of_an_invocation_ends_when_it_is_certainly_over_whenever_it_is_taken(
    clock: Time, passed: float
) -> None:
    life = an_invocation(clock, SECOND * 120)

    clock.now += passed

    assert life.lease_until(T0 + SECOND * passed) == T0 + SECOND * 120 + LEASE_GRACE


def test_an_invocation_leaves_when_it_ran_dry_and_extends_nothing(clock: Time) -> None:
    life = an_invocation(clock, SECOND * 120)

    assert not life.persists
    assert clock() + life.extend_sec > clock() + LONGEST_TASK.total_seconds()
    assert clock() + life.cooldown_sec > clock() + LONGEST_TASK.total_seconds()


def test_an_invocation_does_not_pause_beyond_its_end(clock: Time) -> None:
    an_invocation(clock, -SECOND).pause(3600)


def test_a_worker_has_time_for_any_task_until_it_is_to_stop(stop: threading.Event) -> None:
    life = Worker(stop)

    assert life.may_claim()
    assert life.remaining_for_tasks() > LONGEST_TASK

    stop.set()

    assert not life.may_claim()
    assert life.remaining_for_tasks() == timedelta(0)
    assert life.remaining() > LONGEST_TASK, "what has begun may end"


def test_the_lease_of_a_worker_outlasts_an_outage_of_forty_seconds(stop: threading.Event) -> None:
    life = Worker(stop)

    assert life.lease_until(T0) == T0 + WORKER_LEASE
    assert timedelta(seconds=LEASE_EXTENSION_SEC + 40) <= WORKER_LEASE
    assert life.cooldown_sec >= WORKER_LEASE.total_seconds(), "what it gave back is not its own again at once"


def test_a_worker_may_have_shorter_leases_and_leave_when_it_ran_dry(stop: threading.Event) -> None:
    life = Worker(stop, lease=SECOND * 3, extend_sec=1, stays=False)

    assert (life.lease_until(T0), life.extend_sec, life.cooldown_sec) == (T0 + SECOND * 3, 1, 3)
    assert not life.persists
    assert Worker(stop).persists


def test_a_worker_that_is_to_stop_pauses_no_longer(stop: threading.Event) -> None:
    began = time.monotonic()
    threading.Timer(0.05, stop.set).start()

    Worker(stop).pause(60)

    assert time.monotonic() - began < 30


def test_a_worker_tells_how_it_stands(stop: threading.Event) -> None:
    life, away = Worker(stop), UnavailableError("away")
    assert (life.running, life.error) == (0, None)

    life.record_status(running=3, error=away, answered=False)
    assert (life.running, life.error) == (3, away)

    life.record_status(running=2, error=None, answered=False)
    assert (life.running, life.error) == (2, away), "nobody asked"
    life.record_status(running=2, error=None, answered=True)
    assert (life.running, life.error) == (2, None)
