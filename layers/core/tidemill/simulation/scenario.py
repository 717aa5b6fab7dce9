"""Whether retries can starve fresh tasks: waves of tasks that fail, beside a steady arrival of tasks that do not.

A wave comes in all at once, in the fresh lane like any other task, and every task of it fails its first run. So both
lanes have more work than slots for a while, which is when a share matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from tidemill.policies import RetryPolicy, Selection
from tidemill.retry import DEFAULT
from tidemill.selection import DEFAULT_RETRY_SHARE
from tidemill.simulation.backlog import SimulatedTask
from tidemill.simulation.engine import EPOCH, Conditions, SimulatedRun, simulate

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """So many tasks, due at the same moment, that fail their first run and succeed in the second."""

    at: timedelta
    tasks: int


def _waves() -> tuple[Wave, ...]:
    return (
        Wave(at=timedelta(seconds=10), tasks=100),
        Wave(at=timedelta(seconds=40), tasks=100),
        Wave(at=timedelta(seconds=70), tasks=1000),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The numbers of the simulation. ``fresh_per_sec`` tasks come in evenly for the whole ``duration``.

    By default 50 slots do 50 tasks a second. The fresh tasks need 35 of them; 40 is what retries leave them.
    """

    slots: int = 50
    run_time: timedelta = timedelta(seconds=1)
    fresh_per_sec: int = 35
    duration: timedelta = timedelta(seconds=220)
    interval: timedelta = timedelta(seconds=10)
    waves: tuple[Wave, ...] = field(default_factory=_waves)
    policy: RetryPolicy = DEFAULT
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE


def play(scenario: Scenario, *, rng: Random) -> tuple[SimulatedRun, ...]:
    """Return all runs of *scenario*, also those after its end: every task is finished."""
    conditions = Conditions(
        slots=scenario.slots,
        run_time=scenario.run_time,
        policy=scenario.policy,
        selection=scenario.selection,
        retry_share=scenario.retry_share,
    )
    return simulate([*_steady(scenario), *_failing(scenario)], conditions, draw=rng.random)


def _steady(scenario: Scenario) -> Iterator[SimulatedTask]:
    count = int(scenario.fresh_per_sec * scenario.duration.total_seconds())
    for number in range(count):
        due_at = EPOCH + timedelta(seconds=number / scenario.fresh_per_sec)
        yield SimulatedTask(id=f"steady-{number:06}", due_at=due_at)


def _failing(scenario: Scenario) -> Iterator[SimulatedTask]:
    for place, wave in enumerate(scenario.waves, start=1):
        for number in range(wave.tasks):
            yield SimulatedTask(id=f"wave-{place}-{number:06}", due_at=EPOCH + wave.at, fails=1)
