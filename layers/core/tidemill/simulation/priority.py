"""What a retry gains by going first: six tasks, one of which fails, on one worker.

The worker of the system this timeline comes from waits out the back-off of the task that failed before it takes the
next one. That is an assumption of `retry_priority`, called ``waits_out_backoff``; Tidemill's executor takes the next
task at once, and is shown beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidemill.model import Retried
from tidemill.policies import Backoff, RetryPolicy, Selection
from tidemill.selection import time_saved
from tidemill.simulation.backlog import SimulatedTask
from tidemill.simulation.engine import EPOCH, Conditions, SimulatedRun, simulate

NAMES: Final = ("A-q1", "A-q2", "A-q3", "B-q1", "B-q2", "B-q3")
FAILS: Final = "A-q1"
RUN_TIME: Final = timedelta(seconds=30)
POLICY: Final = RetryPolicy(backoff=Backoff(strategy="fixed", base_sec=2, jitter="none", max_sec=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run on the worker; times count from the start."""

    task: str
    starts: timedelta
    ends: timedelta
    is_retry: bool
    fails: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All runs under one selection, in their order."""

    selection: Selection
    retry_starts: timedelta
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One kind of worker, without priority for retries and with it.

    ``ahead`` counts the tasks that were due and waited when the retry went first; ``estimate`` is what
    `tidemill.selection.time_saved` makes of that, ``time_saved`` is what the timelines say.
    """

    waits_out_backoff: bool
    without: Timeline
    prioritized: Timeline
    time_saved: timedelta
    ahead: int
    estimate: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPriority:
    """The worker that waits out a back-off, and Tidemill's executor, which does not."""

    waiting: Comparison
    tidemill: Comparison


def retry_priority() -> RetryPriority:
    """Run the six tasks four times: on both kinds of worker, in due order and with retries first."""
    return RetryPriority(waiting=_comparison(waits_out_backoff=True), tidemill=_comparison(waits_out_backoff=False))


def _comparison(*, waits_out_backoff: bool) -> Comparison:
    without = _timeline("oldest_first", waits_out_backoff=waits_out_backoff)
    prioritized = _timeline("retries_first", waits_out_backoff=waits_out_backoff)
    ahead = sum(not step.is_retry and step.starts > prioritized.retry_starts for step in prioritized.steps)
    return Comparison(
        waits_out_backoff=waits_out_backoff,
        without=without,
        prioritized=prioritized,
        time_saved=without.retry_starts - prioritized.retry_starts,
        ahead=ahead,
        estimate=time_saved(ahead=ahead, mean_run=RUN_TIME, slots=1),
    )


def _timeline(selection: Selection, *, waits_out_backoff: bool) -> Timeline:
    conditions = Conditions(
        slots=1, run_time=RUN_TIME, policy=POLICY, selection=selection, waits_out_backoff=waits_out_backoff
    )
    tasks = [SimulatedTask(id=name, due_at=EPOCH, fails=int(name == FAILS)) for name in NAMES]
    steps = tuple(_step(run) for run in simulate(tasks, conditions, draw=lambda: 0.0))
    [retry_starts] = [step.starts for step in steps if step.is_retry]
    return Timeline(selection=selection, retry_starts=retry_starts, steps=steps)


def _step(run: SimulatedRun) -> Step:
    return Step(
        task=run.task.id,
        starts=run.started_at - EPOCH,
        ends=run.ended_at - EPOCH,
        is_retry=run.task.lane == "retry",
        fails=isinstance(run.outcome, Retried),
    )
