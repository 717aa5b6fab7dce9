"""Time saved by running a retry first: a timeline of six tasks on one worker, where one task fails.

In the system that this timeline comes from, the worker waits until the back-off of the failed task has ended before it
takes the next task. `simulate_retry_priority` models that as ``waits_out_backoff``. Tidemill's executor takes the
next task at once; its timeline is shown as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidemill.model import Backoff, Retried, RetryPolicy, Selection
from tidemill.policy.selection import time_saved
from tidemill.simulation.engine import EPOCH, Conditions, SimulatedRun, SimulatedTask, simulate

TASK_IDS: Final = ("A-q1", "A-q2", "A-q3", "B-q1", "B-q2", "B-q3")
FAILING_TASK: Final = "A-q1"
RUN_TIME: Final = timedelta(seconds=30)
POLICY: Final = RetryPolicy(backoff=Backoff(strategy="fixed", base_sec=2, jitter="none", max_sec=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run on the worker; times count from the start of the simulation."""

    task: str
    starts: timedelta
    ends: timedelta
    is_retry: bool
    fails: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Every run under one selection, in order."""

    selection: Selection
    retry_starts: timedelta
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One kind of worker, without priority for retries and with it.

    ``ahead`` counts the due tasks that waited when the retry ran first. ``estimate`` is the result of
    `tidemill.policy.selection.time_saved` for them; ``time_saved`` is measured on the timelines.
    """

    waits_out_backoff: bool
    without: Timeline
    prioritized: Timeline
    time_saved: timedelta
    ahead: int
    estimate: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPriority:
    """The worker that waits for the end of a back-off, and Tidemill's executor, which does not."""

    waiting: Comparison
    tidemill: Comparison


def simulate_retry_priority() -> RetryPriority:
    """Run the six tasks four times: on both kinds of worker, in due order and with retries first."""
    return RetryPriority(waiting=_compare(waits_out_backoff=True), tidemill=_compare(waits_out_backoff=False))


def _compare(*, waits_out_backoff: bool) -> Comparison:
    without = _simulate_timeline("oldest_first", waits_out_backoff=waits_out_backoff)
    prioritized = _simulate_timeline("retries_first", waits_out_backoff=waits_out_backoff)
    ahead = sum(not step.is_retry and step.starts > prioritized.retry_starts for step in prioritized.steps)
    return Comparison(
        waits_out_backoff=waits_out_backoff,
        without=without,
        prioritized=prioritized,
        time_saved=without.retry_starts - prioritized.retry_starts,
        ahead=ahead,
        estimate=time_saved(ahead=ahead, mean_run=RUN_TIME, slots=1),
    )


def _simulate_timeline(selection: Selection, *, waits_out_backoff: bool) -> Timeline:
    conditions = Conditions(
        slots=1, run_time=RUN_TIME, policy=POLICY, selection=selection, waits_out_backoff=waits_out_backoff
    )
    tasks = [SimulatedTask(id=name, due_at=EPOCH, fails=int(name == FAILING_TASK)) for name in TASK_IDS]
    steps = tuple(_make_step(run) for run in simulate(tasks, conditions, draw=lambda: 0.0))
    [retry_starts] = [step.starts for step in steps if step.is_retry]
    return Timeline(selection=selection, retry_starts=retry_starts, steps=steps)


def _make_step(run: SimulatedRun) -> Step:
    return Step(
        task=run.task.id,
        starts=run.started_at - EPOCH,
        ends=run.ended_at - EPOCH,
        is_retry=run.task.lane == "retry",
        fails=isinstance(run.outcome, Retried),
    )
