"""Tasks that arrive one by one do not wait for a tick, and each part that prevents it is needed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tidemill.executor.lifetime import TIMING
from tools.bench.arrivals import HARD, HARD_RATE, RATES, longest_bound, measure, simulate, without_each
from tools.bench.figures import Figure
from tools.bench.simulated_executors import Conditions, SimulatedSlots

TICK = Conditions().tick
SEEDS = range(3)


def longest_wait(conditions: Conditions, *, per_sec: float, tasks: int, seed: int) -> float:
    return simulate(conditions, per_sec=per_sec, tasks=tasks, rng=Random(seed)).longest


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("claims_for", [5, 60])
@pytest.mark.parametrize("max_executors", [1, 5])
@pytest.mark.parametrize("per_sec", RATES)
def test_no_task_waits_for_a_tick_at_any_rate(per_sec: float, max_executors: int, claims_for: float, seed: int) -> None:
    conditions = Conditions(max_executors=max_executors, claims_for=claims_for)

    assert longest_wait(conditions, per_sec=per_sec, tasks=2000, seed=seed) < longest_bound(conditions) < TICK / 7


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("containers", [1, 5])
@pytest.mark.parametrize("per_sec", [0.02, HARD_RATE, 0.2, 1])
def test_nor_where_executors_have_little_time_and_long_tasks(per_sec: float, containers: int, seed: int) -> None:
    conditions = replace(HARD, containers=containers)

    assert longest_wait(conditions, per_sec=per_sec, tasks=5000, seed=seed) < longest_bound(conditions) < TICK / 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("part", without_each(HARD))
def test_without_any_of_the_parts_tasks_wait_for_a_tick(part: str, seed: int) -> None:
    lacking = without_each(HARD)[part]

    assert longest_wait(lacking, per_sec=HARD_RATE, tasks=20_000, seed=seed) > TICK * 2 / 3


@pytest.mark.parametrize("per_sec", [rate for rate in RATES if rate <= 1])
def test_without_wakes_tasks_wait_for_a_tick_where_no_executor_is_kept_up_by_others(per_sec: float) -> None:
    asleep = simulate(Conditions(wakes=False, max_executors=1), per_sec=per_sec, tasks=1500, rng=Random(1))

    assert TICK / 4 < asleep.median < TICK / 2
    assert TICK - 10 < asleep.longest < TICK + 3


def test_executors_that_linger_as_long_as_others_rely_on_them_are_enough() -> None:
    close = replace(HARD, quiet_sec=TIMING.linger_after_launch_sec)

    assert longest_wait(close, per_sec=HARD_RATE, tasks=20_000, seed=1) < longest_bound(close)


def test_a_wake_is_not_made_for_every_task() -> None:
    busy = simulate(Conditions(), per_sec=20, tasks=2000, rng=Random(1))

    assert busy.executors < 0.2 * busy.tasks


def test_no_more_executors_than_slots_are_at_work() -> None:
    slots = SimulatedSlots(3)
    acquired = [slots.acquire(number, until=60, now=number) for number in range(5)]

    assert acquired == [True, True, True, False, False]
    assert [slots.release(0), slots.release(1)] == [True, False]
    assert [slots.acquire(number, until=60, now=10) for number in (5, 6, 7)] == [True, True, False]
    assert slots.acquire(8, until=120, now=61)


def test_a_seed_gives_the_same_course_again_and_another_seed_another() -> None:
    first, again, other = (simulate(HARD, per_sec=1, tasks=500, rng=Random(seed)) for seed in (1, 1, 2))

    assert first == again != other


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {figure.name: figure for figure in measure("", "toy").figures}


def test_the_figures_meet_their_targets_with_every_part(figures: dict[str, Figure]) -> None:
    assert [figure.name for figure in figures.values() if not figure.is_met] == []
    assert len([figure for figure in figures.values() if figure.target]) == 2 * len(RATES) + 1


def test_without_a_part_the_figures_show_waits_for_a_tick(figures: dict[str, Figure]) -> None:
    parts = [figure for name, figure in figures.items() if "without" in name]

    assert len(parts) == 4
    assert min(figure.value for figure in parts) > TICK * 2 / 3
    assert not any(figure.absolute.startswith("0 of") for figure in parts)
    assert figures["claims for 3 s, with every part"].absolute.startswith("0 of")
