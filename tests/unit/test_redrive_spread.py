"""When redriven tasks are due."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from tests.fixtures import T0
from tidemill.dead_letters.redrive_checks import MAX_SCHEDULE_SEC, RateSchedule

SECOND = timedelta(seconds=1)


def due(spread: RateSchedule, *, tasks: int, every: timedelta) -> list[timedelta]:
    """When so many tasks are due that are placed one *every* so often, counted from the start."""
    found = []
    for n in range(tasks):
        now = T0 + n * every
        found.append((spread.due_at(now=now) or now) - T0)
        spread = spread.further(now=now)
    return found


def test_without_a_rate_all_are_due_at_once() -> None:
    assert due(RateSchedule(per_sec=None, start=T0), tasks=3, every=SECOND) == [n * SECOND for n in range(3)]


@pytest.mark.parametrize("per_sec", [0.001, 0.1, 1, 3, 1000, 1e6])
def test_so_many_are_due_a_second(per_sec: float) -> None:
    found = due(RateSchedule(per_sec=per_sec, start=T0), tasks=100, every=timedelta(0))

    assert max(abs(one.total_seconds() - n / per_sec) for n, one in enumerate(found)) < 0.001


def test_the_first_is_not_delayed() -> None:
    assert RateSchedule(per_sec=1, start=T0).due_at(now=T0) is None


@pytest.mark.parametrize("every", [timedelta(0), SECOND / 4, SECOND, 3 * SECOND])
def test_never_more_are_due_a_second_however_late_they_are_placed(every: timedelta) -> None:
    found = due(RateSchedule(per_sec=2, start=T0), tasks=50, every=every)

    assert min(later - earlier for earlier, later in pairwise(found)) >= SECOND / 2


def test_none_is_due_before_now() -> None:
    assert RateSchedule(per_sec=1, start=T0, placed=3).due_at(now=T0 + 9 * SECOND) is None


@pytest.mark.parametrize("per_sec", [0.001, 1, 7, 1e6])
def test_no_turn_is_more_than_a_year_away(per_sec: float) -> None:
    last = int(MAX_SCHEDULE_SEC * per_sec)
    spread = RateSchedule(per_sec=per_sec, start=T0, placed=last)

    assert not spread.is_full
    assert spread.due_at(now=T0) == pytest.approx(T0 + timedelta(seconds=last / per_sec), abs=SECOND)
    assert spread.further(now=T0).is_full


@pytest.mark.parametrize("placed", [2, 10**9, 2**63 - 1])
@pytest.mark.parametrize("per_sec", [5e-324, 1e-12])
def test_a_spread_that_is_far_too_slow_is_full(per_sec: float, placed: int) -> None:
    assert RateSchedule(per_sec=per_sec, start=T0, placed=placed).is_full


def test_without_a_rate_there_is_always_room() -> None:
    assert not RateSchedule(per_sec=None, start=T0, placed=2**63 - 1).is_full
