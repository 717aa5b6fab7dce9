"""How load lengthens the wait for a retry."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model import MAX_BACKOFF_SEC, MAX_COUNT, MAX_FACTOR, Adaptive, Budget, Pressure
from tidemill.policy.retry import NO_LOAD, Load, lengthen

HALF_AN_HOUR = timedelta(seconds=1800)
SPANS = st.floats(0, MAX_BACKOFF_SEC).map(lambda seconds: timedelta(seconds=seconds))
COUNTS = st.integers(0, 2**63)
PRESSURES = st.builds(
    Pressure,
    adaptive=st.none()
    | st.builds(
        Adaptive,
        scale=st.integers(1, MAX_COUNT),
        max_sec=st.floats(0, MAX_BACKOFF_SEC, exclude_min=True),
    ),
    budget=st.none() | st.builds(Budget, per_minute=st.integers(1, MAX_COUNT), factor=st.floats(1, MAX_FACTOR)),
)


def under(pressure: Pressure, wait: float, *, ready: int = 0, retries: int = 0, cap: timedelta = HALF_AN_HOUR) -> float:
    load = Load(pressure=pressure, ready=ready, retries=retries)
    return lengthen(timedelta(seconds=wait), load, cap=cap).total_seconds()


@pytest.mark.parametrize("wait", [0, 0.1, 60, 1800])
def test_without_pressure_no_load_changes_a_wait(wait: float) -> None:
    assert under(Pressure(), wait, ready=10**6, retries=10**6) == wait
    assert lengthen(timedelta(seconds=wait), NO_LOAD, cap=HALF_AN_HOUR) == timedelta(seconds=wait)


@pytest.mark.parametrize(
    ("wait", "ready", "expected"),
    [
        (5, 0, 5), (5, 1, 5.5), (5, 5, 7.5), (5, 10, 10), (5, 100, 55), (5, 110, 60), (5, 111, 60), (5, 10**6, 60),
        (0, 10**6, 0), (0.001, 10, 0.002), (59, 1, 60), (60, 0, 60), (60, 10**6, 60),
    ],
)  # fmt: skip
def test_an_adaptive_wait_grows_by_itself_for_every_ten_tasks_that_are_ready_up_to_a_minute(
    wait: float, ready: int, expected: float
) -> None:
    assert under(Pressure(adaptive=Adaptive()), wait, ready=ready) == expected


@pytest.mark.parametrize("ready", [0, 1, 10, 10**6])
def test_a_wait_of_ten_minutes_is_never_shortened(ready: int) -> None:
    assert under(Pressure(adaptive=Adaptive()), 600, ready=ready) == 600


def test_scale_and_cap_of_an_adaptive_wait_can_be_chosen() -> None:
    pressure = Pressure(adaptive=Adaptive(scale=2, max_sec=3600))

    assert under(pressure, 5, ready=2) == 10
    assert under(pressure, 1800, ready=10**6) == 3600


def test_a_queue_that_is_fuller_than_any_calendar_waits_for_its_cap() -> None:
    pressure = Pressure(adaptive=Adaptive(scale=1, max_sec=MAX_BACKOFF_SEC))

    assert under(pressure, MAX_BACKOFF_SEC / 2, ready=2**63) == MAX_BACKOFF_SEC


@pytest.mark.parametrize(
    ("wait", "retries", "expected"),
    [
        (5, 0, 5), (5, 99, 5), (5, 100, 10), (5, 101, 10), (5, 10**6, 10), (0, 100, 0),
        (900, 100, 1800), (901, 100, 1800), (1800, 99, 1800), (1800, 100, 1800),
    ],
)  # fmt: skip
def test_a_budget_that_is_spent_doubles_a_wait_within_the_cap_of_its_policy(
    wait: float, retries: int, expected: float
) -> None:
    assert under(Pressure(budget=Budget()), wait, retries=retries) == expected


def test_a_hundred_retries_of_a_minute_are_within_the_budget_and_the_next_is_not() -> None:
    waits = [under(Pressure(budget=Budget()), 5, retries=before) for before in range(102)]

    assert waits == [5] * 100 + [10] * 2


def test_budget_and_factor_can_be_chosen() -> None:
    pressure = Pressure(budget=Budget(per_minute=1, factor=1000))

    assert under(pressure, 1, retries=0) == 1
    assert under(pressure, 1, retries=1) == 1000
    assert under(pressure, 2, retries=1) == 1800


@pytest.mark.parametrize(
    ("cap", "ready", "expected"), [(1800, 0, 10), (1800, 10, 20), (1800, 1000, 120), (10, 50, 60), (10, 1000, 60)]
)
def test_a_spent_budget_comes_on_top_of_the_adaptive_wait_up_to_the_larger_cap(
    cap: float, ready: int, expected: float
) -> None:
    both = Pressure(adaptive=Adaptive(), budget=Budget())

    assert under(both, 5, ready=ready, retries=100, cap=timedelta(seconds=cap)) == expected


@given(PRESSURES, SPANS, SPANS, COUNTS, COUNTS)
def test_a_wait_is_never_shortened_nor_longer_than_the_larger_cap(
    pressure: Pressure, one: timedelta, other: timedelta, ready: int, retries: int
) -> None:
    wait, cap = sorted((one, other))

    longer = lengthen(wait, Load(pressure=pressure, ready=ready, retries=retries), cap=cap)

    caps = [cap] if pressure.adaptive is None else [cap, timedelta(seconds=pressure.adaptive.max_sec)]
    assert wait <= longer <= max(caps)


@given(PRESSURES, SPANS, st.tuples(COUNTS, COUNTS), st.tuples(COUNTS, COUNTS))
def test_more_load_never_means_a_shorter_wait(
    pressure: Pressure, wait: timedelta, ready: tuple[int, int], retries: tuple[int, int]
) -> None:
    less, more = (
        lengthen(wait, Load(pressure=pressure, ready=pick(ready), retries=pick(retries)), cap=wait * 3)
        for pick in (min, max)
    )

    assert less <= more
