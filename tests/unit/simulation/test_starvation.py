"""Waves of tasks that fail, beside a steady arrival of fresh ones."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from random import Random

import pytest

from tidemill.model import Backoff, Lane, RetryPolicy, Selection, Succeeded
from tidemill.simulation.engine import SimulatedRun
from tidemill.simulation.scenarios import (
    Scenario,
    Starvation,
    Wave,
    measure_runs,
    simulate_scenario,
    simulate_starvation,
)

pytestmark = pytest.mark.slow

SEED = 7


@pytest.fixture(scope="module")
def runs() -> tuple[SimulatedRun, ...]:
    return simulate_scenario(Scenario(), rng=Random(SEED))


@pytest.fixture(scope="module")
def result(runs: tuple[SimulatedRun, ...]) -> Starvation:
    return measure_runs(runs, Scenario())


def held_by_retries(runs: Sequence[SimulatedRun], at: datetime) -> int:
    return sum(run.task.lane == "retry" and run.started_at <= at < run.ended_at for run in runs)


def two_wait(by_start: Sequence[SimulatedRun], *, since: datetime, until: datetime) -> bool:
    """Say whether more than one waited for a slot all the time from *since* to *until*."""
    later = islice(by_start, bisect_right(by_start, until, key=lambda run: run.started_at), None)
    return len(list(islice((run for run in later if run.task.due_at <= since), 2))) == 2


def with_work(runs: Sequence[SimulatedRun], lanes: Sequence[Lane], *, run_time: timedelta) -> list[datetime]:
    """Return moments up to which each of *lanes* had had work for the length of a run."""
    by_start = sorted(runs, key=lambda run: run.started_at)
    of_lanes = [[run for run in by_start if run.task.lane == lane] for lane in lanes]
    moments = sorted({run.started_at for run in runs})[::10]
    return [at for at in moments if all(two_wait(of_lane, since=at - run_time, until=at) for of_lane in of_lanes)]


def test_the_waves_fill_the_retry_pool_and_it_drains_to_zero(result: Starvation) -> None:
    pools = [one.retry_pool for one in result.intervals]

    assert max(pools) > 500
    assert result.largest_pool >= max(pools)
    assert pools[-1] == 0
    assert all(one.retry_pool == 0 for one in result.intervals if one.starts >= result.pool_empty_after)
    assert result.pool_empty_after < result.scenario.duration


def test_the_pool_counts_what_is_due_and_what_is_in_backoff(result: Starvation) -> None:
    [filling] = [one for one in result.intervals if one.wave == 1000]

    assert filling.retries_due > 0
    assert filling.retries_in_backoff > 0
    assert filling.retry_pool == filling.retries_due + filling.retries_in_backoff


def test_fresh_work_keeps_its_part_in_every_interval_in_which_it_waits(result: Starvation) -> None:
    scenario = result.scenario
    waited = [one for one in result.intervals if one.fresh_always_waited]
    part = scenario.slots * (1 - scenario.retry_share) / scenario.run_time.total_seconds()

    assert len(waited) >= 10
    assert all(one.retry_slots <= scenario.retry_share + 1e-9 for one in waited)
    assert min(one.fresh_per_sec for one in waited) == result.least_fresh_per_sec
    assert result.least_fresh_per_sec == pytest.approx(part)


def test_fresh_work_that_waits_has_its_part_of_the_slots_at_every_moment(runs: tuple[SimulatedRun, ...]) -> None:
    moments = with_work(runs, ["fresh"], run_time=Scenario().run_time)

    assert len(moments) > 400
    assert max(held_by_retries(runs, at) for at in moments) == 10


@pytest.mark.parametrize("share", [0.1, 0.2, 0.33])
def test_retries_hold_their_share_of_the_slots_while_both_lanes_have_work(share: float) -> None:
    scenario = Scenario(slots=48, retry_share=share)
    runs = simulate_scenario(scenario, rng=Random(SEED))

    moments = with_work(runs, ["fresh", "retry"], run_time=scenario.run_time)

    assert len(moments) > 100
    assert {abs(held_by_retries(runs, at) - share * 48) <= 1 for at in moments} == {True}


def test_every_task_is_done_exactly_once_and_only_those_of_waves_twice_run(runs: tuple[SimulatedRun, ...]) -> None:
    done = Counter(run.task.id for run in runs if isinstance(run.outcome, Succeeded))
    failed = Counter(run.task.id for run in runs if not isinstance(run.outcome, Succeeded))

    assert set(done.values()) == {1}
    assert len(done) == 35 * 220 + 1200
    assert set(failed.values()) == {1}
    assert len(failed) == 1200
    assert all(name.startswith("wave-") for name in failed)


def test_what_comes_in_is_done_or_waits_or_runs_at_the_end_of_every_interval(result: Starvation) -> None:
    arrived, ended = 0, 0.0
    for one in result.intervals:
        arrived += one.wave + 35 * 10
        ended += one.fresh_per_sec * 10
        running = arrived - one.fresh_waiting - ended
        assert 0 <= round(running, 6) <= result.scenario.slots


def test_no_more_tasks_run_than_there_are_slots(runs: tuple[SimulatedRun, ...]) -> None:
    changes = sorted([(run.started_at, 1) for run in runs] + [(run.ended_at, -1) for run in runs])

    running = 0
    for _, change in changes:
        running += change
        assert running <= 50


def test_the_intervals_have_no_gaps(result: Starvation) -> None:
    assert [one.starts for one in result.intervals] == [timedelta(seconds=10) * n for n in range(22)]
    assert all(one.ends - one.starts == result.scenario.interval for one in result.intervals)
    assert [one.wave for one in result.intervals if one.wave] == [100, 100, 1000]


def test_a_seed_gives_the_same_course_again_and_another_seed_another(result: Starvation) -> None:
    assert simulate_starvation(rng=Random(SEED)) == result
    assert simulate_starvation(rng=Random(SEED + 1)) != result


def test_without_a_share_retries_starve_while_fresh_tasks_wait() -> None:
    scenario = Scenario(retry_share=0)
    runs = simulate_scenario(scenario, rng=Random(SEED))

    starved = [one for one in measure_runs(runs, scenario).intervals if one.fresh_always_waited]

    assert len(starved) > 3
    assert all(one.retry_slots == 0 for one in starved)
    assert all(one.retries_due > 0 for one in starved)


def test_with_retries_first_fresh_tasks_get_nothing_while_due_retries_fill_the_slots() -> None:
    steady_failure = RetryPolicy(backoff=Backoff(strategy="fixed", base_sec=30, jitter="none", max_sec=30))
    scenario = Scenario(
        selection="retries_first",
        policy=steady_failure,
        waves=(Wave(at=timedelta(seconds=9), tasks=1000),),
    )

    result = simulate_starvation(scenario, rng=Random(SEED))

    taken = [one for one in result.intervals if one.retry_slots == 1]
    assert taken
    assert all(one.fresh_waiting > 0 for one in taken)
    assert result.least_fresh_per_sec is not None
    assert result.least_fresh_per_sec < 5


@pytest.mark.parametrize("selection", ["retries_first", "oldest_first"])
def test_the_other_selections_give_fresh_tasks_less_than_the_share_leaves_them(
    selection: Selection, result: Starvation
) -> None:
    other = simulate_starvation(Scenario(selection=selection), rng=Random(SEED))

    assert other.least_fresh_per_sec is not None
    assert result.least_fresh_per_sec is not None
    assert other.least_fresh_per_sec < 0.7 * result.least_fresh_per_sec


def test_no_retry_starts_before_its_backoff_is_over_and_the_waits_are_those_of_the_policy(
    runs: tuple[SimulatedRun, ...],
) -> None:
    failed_at = {run.task.id: run.ended_at for run in runs if not isinstance(run.outcome, Succeeded)}
    retries = [run for run in runs if run.task.lane == "retry"]
    waits = [(run.task.due_at - failed_at[run.task.id]).total_seconds() for run in retries]

    assert all(run.started_at >= run.task.due_at for run in retries)
    assert 0 <= min(waits) < 0.5
    assert 4.5 < max(waits) < 5


def test_without_waves_there_is_no_pool_and_fresh_tasks_never_wait_long() -> None:
    result = simulate_starvation(replace(Scenario(), waves=()), rng=Random(SEED))

    assert (result.retries, result.largest_pool, result.pool_empty_after) == (0, 0, timedelta(0))
    assert result.least_fresh_per_sec is None
