"""How long a failed task waits: strategies, jitters and presets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ids import shown
from tests.unit.make import LAST_DRAW, backoffs
from tidemill import PRESETS, Backoff, RetryPolicy
from tidemill.model import JITTERS, MAX_BACKOFF_SEC, STRATEGIES
from tidemill.policy.retry import DEFAULT, backoff

DRAWS = st.floats(0, LAST_DRAW)
MINUTE = 60
WEEK = MAX_BACKOFF_SEC


def wait(policy: Backoff, failures: int, draw: float = 0.5) -> float:
    return backoff(policy, failures=failures, draw=draw).total_seconds()


def waits(policy: Backoff, count: int, draw: float = 0.5) -> list[float]:
    return [wait(policy, failures, draw) for failures in range(1, count + 1)]


def drawn(policy: Backoff, failures: int, count: int = 10_000) -> list[float]:
    rng = random.Random(20310701)
    return [wait(policy, failures, rng.random()) for _ in range(count)]


def distance_from_uniform(sample: Sequence[float], low: float, high: float) -> float:
    """Kolmogorov and Smirnov's: of 10,000 uniform numbers one sample in 1,000 is farther away than 0.0195."""
    places = sorted((one - low) / (high - low) for one in sample)
    return max(max((n + 1) / len(places) - at, at - n / len(places)) for n, at in enumerate(places))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"base_sec": 5, "factor": 2}, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1800, 1800]),
        ({"base_sec": 0.5, "max_sec": 30}, [0.5, 1, 2, 4, 8, 16, 30, 30]),
        ({"base_sec": 1, "factor": 4}, [1, 4, 16, 64, 256, 1024, 1800]),
        ({"base_sec": 0.1, "factor": 1}, [0.1] * 5),
        ({"base_sec": 2, "factor": 1.5}, [2, 3, 4.5, 6.75]),
        ({"base_sec": 60}, [n * MINUTE for n in (1, 2, 4, 8, 16, 30)]),
        ({"base_sec": 60, "strategy": "linear"}, [n * MINUTE for n in (1, 2, 3, 4)]),
        ({"base_sec": 60, "strategy": "linear", "max_sec": 150}, [60, 120, 150, 150]),
        ({"base_sec": 60, "strategy": "fixed"}, [1 * MINUTE] * 3),
        ({"base_sec": 60, "strategy": "fibonacci"}, [n * MINUTE for n in (1, 1, 2, 3, 5, 8, 13, 21, 30)]),
        ({"base_sec": 60, "strategy": "fibonacci", "max_sec": 60}, [60, 60, 60]),
        ({"base_sec": 0.5, "strategy": "fibonacci", "max_sec": 3}, [0.5, 0.5, 1, 1.5, 2.5, 3]),
    ],
    ids=shown,
)  # fmt: skip
def test_a_wait_grows_by_its_strategy_up_to_the_cap(fields: dict[str, Any], expected: list[float]) -> None:
    assert waits(Backoff(jitter="none", **fields), len(expected)) == expected


@pytest.mark.parametrize("failures", [0, -1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_count_below_one_waits_like_the_first_failure(strategy: Any, failures: int) -> None:  # F20
    assert wait(Backoff(strategy=strategy), failures) == wait(Backoff(strategy=strategy), 1) == 2.5


@pytest.mark.parametrize("failures", [1, 2, 16, 47, 64, 1023, 1024, 5000, 10_000])
@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_wait_is_finite_and_within_the_cap_after_any_number_of_failures(
    strategy: Any, jitter: Any, failures: int
) -> None:  # F20
    for base, factor in ((0.1, 2), (5, 5.0), (1800, 1000), (5e-324, 1.0001)):
        policy = Backoff(strategy=strategy, jitter=jitter, base_sec=base, factor=factor)
        for draw in (0.0, 0.5, LAST_DRAW):
            assert 0 <= wait(policy, failures, draw) <= 1800


@given(backoffs(), st.integers(0, 10_000), DRAWS)
def test_no_legal_policy_waits_less_than_nothing_or_more_than_its_cap(
    policy: Backoff, failures: int, draw: float
) -> None:
    assert timedelta(0) <= backoff(policy, failures=failures, draw=draw) <= timedelta(seconds=policy.max_sec)


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, 10_000), DRAWS)
def test_nor_does_any_preset(name: str, failures: int, draw: float) -> None:
    policy = PRESETS[name].backoff

    assert 0 <= wait(policy, failures, draw) <= policy.max_sec


@given(backoffs(), st.integers(1, 10_000), DRAWS)
def test_waits_never_shrink_from_failure_to_failure(policy: Backoff, failures: int, draw: float) -> None:
    rounding = 1e-6 + policy.max_sec * 1e-9

    assert wait(policy, failures + 1, draw) >= wait(policy, failures, draw) - rounding


def test_a_tiny_base_grows_by_the_formula_also_where_its_factor_alone_overflows() -> None:
    policy = Backoff(base_sec=2**-1060, factor=2, max_sec=WEEK, jitter="none")

    assert wait(policy, 1061 + 10) == 1024
    assert wait(policy, 1061 + 30) == WEEK


@pytest.mark.parametrize(
    ("jitter", "ends"), [("none", (20, 20)), ("full", (0, 20)), ("decorrelated", (5, 20)), ("proportional", (16, 24))]
)
def test_a_draw_spreads_the_wait_from_one_end_to_the_other(jitter: Any, ends: tuple[float, float]) -> None:
    policy = Backoff(jitter=jitter)

    assert (wait(policy, 3, 0.0), wait(policy, 3, LAST_DRAW)) == pytest.approx(ends, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "failures", "low", "high"),
    [
        ({"jitter": "full"}, 1, 0, 5),
        ({"jitter": "full"}, 3, 0, 20),
        ({"jitter": "full"}, 12, 0, 1800),
        ({"jitter": "full", "strategy": "fibonacci"}, 5, 0, 25),
        ({"jitter": "decorrelated"}, 2, 5, 10),
        ({"jitter": "decorrelated"}, 12, 5, 1800),
        ({"jitter": "decorrelated", "strategy": "linear"}, 4, 5, 20),
        ({"jitter": "proportional"}, 3, 16, 24),
        ({"jitter": "proportional", "jitter_factor": 1}, 3, 0, 40),
        ({"jitter": "proportional", "strategy": "fixed", "jitter_factor": 0.5}, 9, 2.5, 7.5),
    ],
    ids=shown,
)
def test_waits_are_spread_evenly_over_the_range_of_their_jitter(
    fields: dict[str, Any], failures: int, low: float, high: float
) -> None:
    sample = drawn(Backoff(**fields), failures)

    assert low <= min(sample)
    assert max(sample) <= high
    assert distance_from_uniform(sample, low, high) < 0.0195
    assert sum(sample) / len(sample) == pytest.approx((low + high) / 2, abs=(high - low) / 100)


def test_a_fifth_of_jitter_keeps_60_s_within_48_and_72_s() -> None:
    sample = drawn(Backoff(base_sec=60, strategy="fixed", jitter="proportional"), 1)

    assert 48 <= min(sample) < 48.1
    assert 71.9 < max(sample) <= 72


def test_proportional_jitter_does_not_lift_a_wait_above_the_cap() -> None:
    sample = drawn(Backoff(jitter="proportional"), 12)

    assert 1440 <= min(sample) < 1445
    assert max(sample) == 1800


def test_decorrelated_jitter_starts_with_the_base_itself() -> None:
    assert set(drawn(Backoff(jitter="decorrelated"), 1, count=100)) == {5.0}


@pytest.mark.parametrize(
    ("name", "max_retries", "row"),
    [
        ("default", 10, ("exponential", 5, 2, 1800, "full", 0.2)),
        ("standard", 3, ("exponential", 0.5, 2, 30, "full", 0.2)),
        ("conservative", 5, ("exponential", 1, 2, 60, "full", 0.2)),
        ("aggressive", 2, ("exponential", 0.1, 2, 5, "full", 0.2)),
        ("quadrupling", 5, ("exponential", 1, 4, 3600, "none", 0.2)),
        ("patient", 3, ("exponential", 60, 2, 3600, "proportional", 0.2)),
    ],
)
def test_a_preset_is_the_policy_of_the_table(name: str, max_retries: int, row: tuple[Any, ...]) -> None:
    assert PRESETS[name].max_retries == max_retries
    assert astuple(PRESETS[name].backoff) == row


def test_the_preset_of_one_shot_is_never_tried_again() -> None:
    assert PRESETS["one_shot"].max_retries == 0


def test_there_are_seven_presets_and_nobody_changes_them() -> None:
    assert len(PRESETS) == 7
    assert PRESETS["default"] == DEFAULT == RetryPolicy()
    with pytest.raises(TypeError):
        PRESETS["mine"] = DEFAULT  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1800]),
        ("standard", [0.5, 1, 2]),
        ("conservative", [1, 2, 4, 8, 16]),
        ("aggressive", [0.1, 0.2]),
        ("one_shot", []),
        ("quadrupling", [1, 4, 16, 64, 256]),
        ("patient", [60, 120, 240]),
    ],
)
def test_a_preset_waits_for_so_long_before_its_jitter(name: str, expected: list[float]) -> None:
    policy = PRESETS[name]
    share = {"none": 1.0, "full": 0.5, "proportional": 1.0}[policy.backoff.jitter]  # of the wait, at the middle draw

    assert waits(policy.backoff, policy.max_retries) == pytest.approx([one * share for one in expected])
