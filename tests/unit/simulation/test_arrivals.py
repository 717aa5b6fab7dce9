"""Tasks that come in one by one do not wait for a tick, and each part that sees to that is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tidemill.executor.linger import SUMMONED_SEC
from tidemill.executor.loop import MAX_WAIT_SEC
from tidemill.simulation.arrivals import HARD, HARD_RATE, RATES, course, without_each
from tidemill.simulation.containers import SimulatedSeats, Surroundings, World

TICK = Surroundings().tick
PARTS = [name for name, _ in without_each(HARD) if name != "nothing"]
SEEDS = range(3)


def longest_wait(surroundings: Surroundings, *, per_sec: float, tasks: int, seed: int) -> float:
    return course(surroundings, per_sec=per_sec, tasks=tasks, rng=Random(seed)).longest.total_seconds()


def bound(surroundings: Surroundings) -> float:
    """The worst that can be: who was woken is turned away, the one who sits finishes, and another one comes."""
    start, run, leave = (span[1] for span in (surroundings.starts_in, surroundings.runs_for, surroundings.leaves_in))
    return start + run + leave + start + MAX_WAIT_SEC


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("claims_for", [5, 60])
@pytest.mark.parametrize("max_executors", [1, 5])
@pytest.mark.parametrize("per_sec", RATES)
def test_no_task_waits_for_a_tick_at_any_rate(per_sec: float, max_executors: int, claims_for: float, seed: int) -> None:
    surroundings = Surroundings(max_executors=max_executors, claims_for=claims_for)

    assert longest_wait(surroundings, per_sec=per_sec, tasks=2000, seed=seed) < bound(surroundings) < TICK / 7


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("containers", [1, 5])
@pytest.mark.parametrize("per_sec", [0.02, HARD_RATE, 0.2, 1])
def test_nor_where_executors_have_little_time_and_long_tasks(per_sec: float, containers: int, seed: int) -> None:
    surroundings = replace(HARD, containers=containers)

    assert longest_wait(surroundings, per_sec=per_sec, tasks=5000, seed=seed) < bound(surroundings) < TICK / 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("part", PARTS)
def test_without_any_of_the_parts_tasks_wait_for_a_tick(part: str, seed: int) -> None:
    lacking = dict(without_each(HARD))[part]

    assert longest_wait(lacking, per_sec=HARD_RATE, tasks=20_000, seed=seed) > TICK * 2 / 3


@pytest.mark.parametrize("per_sec", [rate for rate in RATES if rate <= 1])
def test_without_wakes_tasks_wait_for_a_tick_where_no_executor_is_kept_up_by_others(per_sec: float) -> None:
    asleep = course(Surroundings(wakes=False, max_executors=1), per_sec=per_sec, tasks=1500, rng=Random(1))

    assert TICK / 4 < asleep.median.total_seconds() < TICK / 2
    assert TICK - 10 < asleep.longest.total_seconds() < TICK + 3


def test_executors_that_linger_as_long_as_others_rely_on_them_are_enough() -> None:
    close = replace(HARD, quiet_sec=SUMMONED_SEC)

    assert longest_wait(close, per_sec=HARD_RATE, tasks=20_000, seed=1) < bound(close)


def test_a_wake_is_not_made_for_every_task() -> None:
    busy = course(Surroundings(), per_sec=20, tasks=2000, rng=Random(1))

    assert busy.executors < 0.2 * busy.tasks


def test_the_seats_are_never_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seated: set[int] = set()
    most = [0]

    def watched(method: Callable[..., bool], *, enters: bool) -> Callable[..., bool]:
        def call(seats: SimulatedSeats, holder: int, **when: float) -> bool:
            answer = method(seats, holder, **when)
            if enters and answer:
                seated.add(holder)
            elif not enters:
                seated.remove(holder)
            most[0] = max(most[0], len(seated))
            return answer

        return call

    monkeypatch.setattr(SimulatedSeats, "take", watched(SimulatedSeats.take, enters=True))
    monkeypatch.setattr(SimulatedSeats, "leave", watched(SimulatedSeats.leave, enters=False))
    World(Surroundings(max_executors=3), rng=Random(1)).run(tasks=2000, per_sec=5)

    assert most == [3]


def test_a_seed_gives_the_same_course_again_and_another_seed_another() -> None:
    first, again, other = (course(HARD, per_sec=1, tasks=500, rng=Random(seed)) for seed in (1, 1, 2))

    assert first == again != other
