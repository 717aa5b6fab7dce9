"""Whether tasks that come in one by one wait for a tick: Poisson arrivals around short drains.

Four things see to it that they do not: whoever takes a task in wakes an executor; one that was woken looks a while
longer than others rely on it; who finds no seat knocks; and a wake is left out for no longer than that. Each is taken
away once, under conditions in which it is missed: executors that claim for three seconds, and may then take five to
finish, of whom there is one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tidemill.simulation.containers import Surroundings, World

if TYPE_CHECKING:
    from random import Random

RATES: Final = (0.01, 0.1, 1.0, 5.0, 20.0)
TASKS: Final = 2000
ALONE: Final = 1
HARD: Final = Surroundings(max_executors=ALONE, containers=1, claims_for=3.0, runs_for=(0.05, 5.0), cancelled=0.1)
HARD_RATE: Final = 0.05
HARD_TASKS: Final = 6000
LONG: Final = timedelta(seconds=15)
"""Longer than any task waits that does not wait for a tick, or for somebody else's task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What so many tasks a second went through.

    Attributes:
        per_sec: Tasks that came in a second, on average.
        tasks: How many there were, but for those that were cancelled.
        median: The wait that half of them stayed below.
        longest: The longest wait until a task was claimed.
        long: How many waited longer than `LONG`.
        executors: How many were started for them, by ticks and otherwise.
        turned_away: How many of those found no seat.
    """

    per_sec: float
    tasks: int
    median: timedelta
    longest: timedelta
    long: int
    executors: int
    turned_away: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The simulation's result.

    Attributes:
        ordinary: Under the defaults of a deployment, a course for each of `RATES`.
        alone: The same with one executor at a time.
        hard: Under the conditions in which each part is missed, by what was taken away; first, nothing.
    """

    ordinary: tuple[Course, ...]
    alone: tuple[Course, ...]
    hard: tuple[tuple[str, Course], ...]


def arrivals(*, rng: Random) -> Arrivals:
    """Let tasks come in at every rate, and without each of the parts."""
    usual = Surroundings()
    return Arrivals(
        ordinary=_courses(usual, rng=rng),
        alone=_courses(replace(usual, max_executors=ALONE), rng=rng),
        hard=tuple(
            (name, course(surroundings, per_sec=HARD_RATE, tasks=HARD_TASKS, rng=rng))
            for name, surroundings in without_each(HARD)
        ),
    )


def without_each(surroundings: Surroundings) -> Sequence[tuple[str, Surroundings]]:
    """Return *surroundings* as they are, and without each of the parts, by name."""
    return (
        ("nothing", surroundings),
        ("wakes", replace(surroundings, wakes=False)),
        ("knocks", replace(surroundings, knocks=False)),
        ("lingering of the woken", replace(surroundings, woken_linger=False)),
        ("a second wake within 5 s", replace(surroundings, quiet_sec=5.0)),
    )


def course(surroundings: Surroundings, *, per_sec: float, tasks: int, rng: Random) -> Course:
    """Let *tasks* come in and return what they went through."""
    world = World(surroundings, rng=rng)
    world.run(tasks=tasks, per_sec=per_sec)
    waits = sorted(world.waits)
    return Course(
        per_sec=per_sec,
        tasks=len(waits),
        median=timedelta(seconds=waits[len(waits) // 2]),
        longest=timedelta(seconds=waits[-1]),
        long=sum(wait > LONG.total_seconds() for wait in waits),
        executors=world.started,
        turned_away=world.turned_away,
    )


def _courses(surroundings: Surroundings, *, rng: Random) -> tuple[Course, ...]:
    return tuple(course(surroundings, per_sec=rate, tasks=TASKS, rng=rng) for rate in RATES)
