"""How long an executor looks for more before it leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.executor.idle import compute_linger_end
from tidemill.executor.lifetime import TIMING

STARTED = 1000.0
LONGEST = 10.0


def until(
    *,
    worked_at: float | None = None,
    launched: bool = False,
    next_due: float | None = None,
    longest: float = LONGEST,
) -> float:
    return compute_linger_end(
        started=STARTED, worked_at=worked_at, launched=launched, next_due=next_due, longest=longest, timing=TIMING
    )


def test_a_tick_that_found_nothing_leaves_at_once() -> None:
    assert until() == STARTED


def test_work_tends_to_come_together() -> None:
    assert until(worked_at=1030) == 1030 + TIMING.linger_after_work_sec


def test_whoever_was_summoned_stays_for_what_comes_while_nobody_else_is() -> None:
    assert until(launched=True) == STARTED + TIMING.linger_after_launch_sec


def test_whoever_was_summoned_and_worked_stays_for_the_longer_of_both() -> None:
    assert until(launched=True, worked_at=STARTED) == STARTED + TIMING.linger_after_work_sec
    assert until(launched=True, worked_at=1030) == 1030 + TIMING.linger_after_work_sec


@pytest.mark.parametrize("away", [0.1, 3.0, LONGEST])
def test_a_task_that_is_due_soon_is_waited_for(away: float) -> None:
    assert until(worked_at=1030, next_due=1030 + away) == 1030 + max(away, TIMING.linger_after_work_sec)
    assert until(next_due=STARTED + away) == STARTED + away


def test_a_task_that_is_due_later_is_not_waited_for() -> None:
    assert until(worked_at=1030, next_due=1030 + LONGEST + 0.001) == 1030 + TIMING.linger_after_work_sec
    assert until(next_due=STARTED + LONGEST + 0.001) == STARTED


def test_the_wait_for_a_task_counts_from_when_the_executor_ran_dry() -> None:
    assert until(worked_at=1005, next_due=1014) == 1014


def test_who_is_not_to_linger_leaves_at_once() -> None:
    assert until(worked_at=1030, launched=True, next_due=1030.5, longest=0) == 1030


def test_who_lingers_less_than_usual_does_so_in_every_respect() -> None:
    assert until(worked_at=1030, longest=1) == 1031
    assert until(launched=True, longest=1) == STARTED + 1


moments = st.none() | st.floats(STARTED, STARTED + 900)


@given(worked_at=moments, launched=st.booleans(), next_due=moments, longest=st.floats(0, 60))
def test_nothing_is_waited_for_beyond_the_longest(
    worked_at: float | None, *, launched: bool, next_due: float | None, longest: float
) -> None:
    left = until(worked_at=worked_at, launched=launched, next_due=next_due, longest=longest)

    ran_dry = STARTED if worked_at is None else worked_at
    assert STARTED <= left <= ran_dry + longest + 1e-6
