"""How many tasks are held beside the running ones: as many as end during a claim, more of quick ones, none of slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.executor.prefetch import Prefetch

MANY = 1000
NOW = 1000.0


def paced(*, ended: int, every: float, took: float, claims: int = 30) -> Prefetch:
    """The pace of an executor where so many tasks end between claims."""
    pace = Prefetch()
    for number in range(claims):
        pace.record_claim(began=NOW + (number - claims + 1) * every, took=took)
        pace.record_ended(ended)
    return pace


def test_before_anything_is_known_nothing_is_held_ahead() -> None:
    pace = Prefetch()
    assert pace.size_within_slots(slots=16, at=NOW) == 0

    pace.record_ended(50)
    pace.record_claim(began=NOW, took=0.1)

    assert pace.size_within_slots(slots=16, at=NOW) == 0, "a rate needs two claims"


def test_where_tasks_are_quick_as_many_are_held_as_end_during_a_claim() -> None:
    # 100 end in every 50 ms, so 20 during a claim of 10 ms.
    assert paced(ended=100, every=0.05, took=0.01).size_within_slots(slots=MANY, at=NOW) == pytest.approx(20, abs=1)


def test_where_tasks_are_slow_nothing_is_held_ahead() -> None:
    assert paced(ended=16, every=5.0, took=0.01).size_within_slots(slots=MANY, at=NOW) == 0


def test_no_more_is_held_ahead_than_there_are_slots() -> None:
    assert paced(ended=100, every=0.05, took=0.05).size_within_slots(slots=8, at=NOW) == 8


def test_where_every_slot_ends_one_meanwhile_more_are_held_for_the_sake_of_larger_claims() -> None:
    pace = paced(ended=100, every=0.05, took=0.01)  # 20 during a claim, and 60 in the 30 ms after it

    assert pace.size(slots=16, most=MANY, at=NOW) == pytest.approx(80, abs=1)
    assert pace.size(slots=16, most=50, at=NOW) == 50
    assert pace.size(slots=90, most=MANY, at=NOW) == pace.size_within_slots(slots=90, at=NOW), "they run for 45 ms each"


def test_the_pace_follows_what_changes() -> None:
    pace = paced(ended=100, every=0.05, took=0.01)

    for number in range(20):
        pace.record_claim(began=NOW + (number + 1) * 5, took=0.01)
        pace.record_ended(16)

    assert pace.size_within_slots(slots=MANY, at=NOW) == 0


def test_slow_tasks_after_quick_ones_are_noticed_without_a_claim() -> None:
    pace = paced(ended=0, every=0.05, took=0.01)
    for number in range(20):
        pace.record_claim(began=NOW + (number + 1) * 0.05, took=0.01)
        pace.record_ended(100)
    at = NOW + 1.0

    assert pace.size_within_slots(slots=MANY, at=at) == pytest.approx(20, abs=1)
    pace.record_claim(began=at + 0.05, took=0.01)
    assert pace.size_within_slots(slots=MANY, at=at + 0.5) == 0


def test_tasks_that_were_started_together_and_end_together_are_not_taken_for_quick_ones() -> None:
    pace = Prefetch()
    for burst in range(20):  # four at a time, each for 100 ms, and one claim for each
        for number in range(4):
            pace.record_ended(1 if burst else 0)
            pace.record_claim(began=NOW + burst * 0.1 + number * 0.002, took=0.002)
    at = NOW + 19 * 0.1 + 0.007

    assert pace.size(slots=4, most=MANY, at=at) == 0


def test_one_slow_claim_says_little() -> None:
    pace = paced(ended=10, every=0.1, took=0.01)  # one during a claim

    pace.record_claim(began=NOW + 0.1, took=1.0)

    assert pace.size_within_slots(slots=MANY, at=NOW) < 40, "a hundred end during such a claim, if it were the rule"


@given(
    claims=st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**7), st.integers(0, 1000)), max_size=30),
    slots=st.integers(1, 256),
)
def test_whatever_happens_it_is_a_number_of_slots(claims: list[tuple[int, int, int]], slots: int) -> None:
    pace, at = Prefetch(), 0.0
    for pause, took, ended in claims:  # in microseconds
        pace.record_claim(began=at, took=took / 1e6)
        pace.record_ended(ended)
        at += (took + pause) / 1e6

        assert 0 <= pace.size_within_slots(slots=slots, at=at) <= slots
        assert 0 <= pace.size(slots=slots, most=100, at=at) <= max(slots, 100)
