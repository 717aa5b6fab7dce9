"""The wait of tasks that arrive one by one, simulated: Poisson arrivals around executors that drain the queue.

Four parts keep such tasks from waiting for a tick. An enqueue wakes an executor. A woken executor polls for longer
than the pause between two wakes. An executor that finds no free slot records that it was refused. The pause between
two wakes is short. Each part is taken away once, in hard conditions: one executor at a time, which claims for three
seconds and may take five more to finish.

The clock is virtual and the seed is fixed, so the figures are the same on each machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tidemill.executor.lifetime import TIMING
from tools.bench.figures import Figure, Scale, Section, Target
from tools.bench.simulated_executors import Conditions, World

SEED: Final = 1
RATES: Final = (0.01, 0.1, 1.0, 5.0, 20.0)
TASKS: Final = 2000
HARD: Final = Conditions(max_executors=1, containers=1, claims_for=3.0, runs_for=(0.05, 5.0), cancelled=0.1)
HARD_RATE: Final = 0.05
HARD_TASKS: Final = 6000
LONG_SEC: Final = 15.0
"""Longer than each task waits that waits neither for a tick nor for the executor of another task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The waits of one simulation, in seconds.

    Attributes:
        tasks: Tasks that arrived, without the cancelled tasks.
        median: Median wait until the claim.
        longest: Longest wait until the claim.
        long: Tasks that waited longer than `LONG_SEC`.
        executors: Executors that were started, by ticks and otherwise.
        refused: Executors that found no free slot.
    """

    tasks: int
    median: float
    longest: float
    long: int
    executors: int
    refused: int


def measure(_uri: str, _scale: Scale) -> Section:
    """Return the figures. They need no server, and take two seconds at each scale."""
    rng = Random(SEED)
    usual = Conditions()
    alone = replace(usual, max_executors=1)
    figures = [
        *[
            _measure_rate(usual, rate, f"{rate:g} a second, up to {usual.max_executors} executors", rng=rng)
            for rate in RATES
        ],
        *[_measure_rate(alone, rate, f"{rate:g} a second, one executor at a time", rng=rng) for rate in RATES],
        _measure_part("claims for 3 s, with every part", HARD, rng=rng, target=Target(at_most=longest_bound(HARD))),
        *[
            _measure_part(f"claims for 3 s, without {part}", lacking, rng=rng)
            for part, lacking in without_each(HARD).items()
        ],
    ]
    return Section(title="Arrivals: the longest wait of tasks that arrive one by one, simulated", figures=figures)


def without_each(conditions: Conditions) -> Mapping[str, Conditions]:
    """Return *conditions* without one part each, by the name of that part."""
    return {
        "wakes": replace(conditions, wakes=False),
        "a record of refusals": replace(conditions, records_refusals=False),
        "polling of woken executors": replace(conditions, woken_poll=False),
        "a second wake within 5 s": replace(conditions, quiet_sec=5.0),
    }


def longest_bound(conditions: Conditions) -> float:
    """Return the limit of each wait: a woken executor is refused, the running one finishes, its successor starts."""
    start, run, leave = (span[1] for span in (conditions.starts_in, conditions.runs_for, conditions.leaves_in))
    return start + run + leave + start + TIMING.step_wait_sec


def simulate(conditions: Conditions, *, per_sec: float, tasks: int, rng: Random) -> Course:
    """Let *tasks* arrive, *per_sec* of them a second on average, and return their course."""
    world = World(conditions, rng=rng)
    world.run(tasks=tasks, per_sec=per_sec)
    waits = sorted(world.waits)
    return Course(
        tasks=len(waits),
        median=waits[len(waits) // 2],
        longest=waits[-1],
        long=sum(wait > LONG_SEC for wait in waits),
        executors=world.started,
        refused=world.refused,
    )


def _measure_rate(conditions: Conditions, rate: float, name: str, *, rng: Random) -> Figure:
    course = simulate(conditions, per_sec=rate, tasks=TASKS, rng=rng)
    return Figure(
        name=name,
        value=course.longest,
        unit="s",
        absolute=(
            f"median {course.median:.2f} s; {course.executors / course.tasks:.2f} executors a task, "
            f"{course.refused / course.executors:.0%} of them found no slot"
        ),
        target=Target(at_most=longest_bound(conditions)),
    )


def _measure_part(name: str, conditions: Conditions, *, rng: Random, target: Target | None = None) -> Figure:
    course = simulate(conditions, per_sec=HARD_RATE, tasks=HARD_TASKS, rng=rng)
    absolute = f"{course.long} of {course.tasks} tasks waited more than {LONG_SEC:g} s"
    return Figure(name=name, value=course.longest, unit="s", absolute=absolute, target=target)
