"""Executors without executing: slots that tasks hold for a while, on a clock that jumps from event to event."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tidemill.model import Failed, Failure, Retried, Succeeded
from tidemill.policies import RetryPolicy, Selection
from tidemill.retry import after_failure
from tidemill.selection import DEFAULT_RETRY_SHARE, served, shares
from tidemill.simulation.backlog import Backlog, SimulatedTask

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""When the virtual clock starts; only distances from it mean something."""

FAILURE: Final = Failure(message="it was to fail", code="simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What tasks run under.

    ``waits_out_backoff``: the slot of a run that failed stays taken until the retry is due. A worker that sleeps
    between the tries does that; Tidemill's executor does not.
    """

    slots: int
    run_time: timedelta
    policy: RetryPolicy
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE
    waits_out_backoff: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One attempt at *task*, which is as it was claimed: this attempt is counted."""

    task: SimulatedTask
    started_at: datetime
    ended_at: datetime
    outcome: Succeeded | Retried | Failed


def simulate(
    tasks: Iterable[SimulatedTask], conditions: Conditions, *, draw: Callable[[], float]
) -> tuple[SimulatedRun, ...]:
    """Run *tasks* until nothing is left to do, and return the runs in the order of their ends.

    *draw* gives numbers in [0, 1): one for every look for work, one for every failure.
    """
    world = _World(tasks, conditions, draw=draw)
    while world.step():
        pass
    return tuple(world.runs)


class _World:
    """What is going on at one moment."""

    def __init__(self, tasks: Iterable[SimulatedTask], conditions: Conditions, *, draw: Callable[[], float]) -> None:
        self.runs: list[SimulatedRun] = []
        self._conditions = conditions
        self._draw = draw
        self._now = EPOCH
        self._backlog = Backlog(tasks)
        self._running: list[tuple[datetime, str, SimulatedTask]] = []  # heaps: what ends first is first
        self._resting: list[datetime] = []

    def step(self) -> bool:
        """Go to the next moment at which something happens; false where nothing ever will."""
        moment = self._next_moment()
        if moment is None:
            return False
        self._now = moment
        while self._running and self._running[0][0] <= moment:
            self._end(heapq.heappop(self._running)[2])
        while self._resting and self._resting[0] <= moment:
            heapq.heappop(self._resting)
        self._backlog.advance(moment)
        self._fill()
        return True

    def _next_moment(self) -> datetime | None:
        ends = [ended_at for ended_at, _, _ in self._running[:1]]
        due = self._backlog.next_due_at()
        return min([*ends, *self._resting[:1], *([] if due is None else [due])], default=None)

    def _fill(self) -> None:
        conditions = self._conditions
        free = conditions.slots - len(self._running) - len(self._resting)
        if free == 0:
            return
        asked = shares(
            conditions.selection,
            free=free,
            slots=conditions.slots,
            retries_in_flight=sum(task.lane == "retry" for _, _, task in self._running),
            retry_share=conditions.retry_share,
            draw=self._draw(),
        )
        for task in served(asked, self._backlog.take):
            started = replace(task, attempts=task.attempts + 1)
            heapq.heappush(self._running, (self._now + conditions.run_time, task.id, started))

    def _end(self, task: SimulatedTask) -> None:
        outcome = self._outcome(task)
        started_at = self._now - self._conditions.run_time
        self.runs.append(SimulatedRun(task=task, started_at=started_at, ended_at=self._now, outcome=outcome))
        if isinstance(outcome, Retried):
            self._backlog.add(replace(task, lane="retry", due_at=outcome.next_retry_at))
            if self._conditions.waits_out_backoff:
                heapq.heappush(self._resting, outcome.next_retry_at)

    def _outcome(self, task: SimulatedTask) -> Succeeded | Retried | Failed:
        if task.attempts > task.fails:
            return Succeeded(result=None)
        policy = self._conditions.policy
        return after_failure(FAILURE, policy, attempts=task.attempts, now=self._now, draw=self._draw())
