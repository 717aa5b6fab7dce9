"""Discrete event simulation of executors: slots that runs occupy for a time, on a clock that jumps between events."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tidemill.model import LANES, Failed, Failure, Lane, Retried, RetryPolicy, Selection, Succeeded
from tidemill.policy.retry import decide_after_failure
from tidemill.policy.scheduling import DEFAULT_RETRY_SHARE, Lanes, shares, take_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTask:
    """A task with the fields that selection and retrying use. Its first *fails* runs fail."""

    id: str
    due_at: datetime
    lane: Lane = "fresh"
    priority: int = 0
    attempts: int = 0
    fails: int = 0


class Backlog:
    """Pending tasks. Ids are unique."""

    def __init__(self, tasks: Iterable[SimulatedTask]) -> None:
        self._not_due = [(task.due_at, task.id, task) for task in tasks]
        heapq.heapify(self._not_due)
        self._due: dict[Lane, list[tuple[int, datetime, str, SimulatedTask]]] = {lane: [] for lane in LANES}

    def add(self, task: SimulatedTask) -> None:
        """Add *task*. It can be taken once `advance` has reached its due time."""
        heapq.heappush(self._not_due, (task.due_at, task.id, task))

    def next_due_at(self) -> datetime | None:
        """Return the next due time of a task that is not due yet."""
        return self._not_due[0][0] if self._not_due else None

    def advance(self, now: datetime) -> None:
        """Make tasks due whose due time is at or before *now*."""
        while self._not_due and self._not_due[0][0] <= now:
            _, _, task = heapq.heappop(self._not_due)
            heapq.heappush(self._due[task.lane], (-task.priority, task.due_at, task.id, task))

    def take(self, lanes: Lanes, count: int) -> list[SimulatedTask]:
        """Take up to *count* due tasks of *lanes* in a common order: priority, then due time, then id."""
        taken: list[SimulatedTask] = []
        while len(taken) < count and (heads := [self._due[lane] for lane in lanes if self._due[lane]]):
            *_, task = heapq.heappop(min(heads))
            taken.append(task)
        return taken


EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Start of the virtual clock; only differences from it have a meaning."""

FAILURE: Final = Failure(message="it was to fail", code="simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions under which tasks run.

    With ``waits_out_backoff``, the slot of a failed run stays occupied until the retry is due. A worker that sleeps
    between attempts does that; Tidemill's executor does not.
    """

    slots: int
    run_time: timedelta
    policy: RetryPolicy
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE
    waits_out_backoff: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One attempt of *task*. The task is as claimed, so its ``attempts`` include this one."""

    task: SimulatedTask
    started_at: datetime
    ended_at: datetime
    outcome: Succeeded | Retried | Failed


def simulate(
    tasks: Iterable[SimulatedTask], conditions: Conditions, *, draw: Callable[[], float]
) -> tuple[SimulatedRun, ...]:
    """Run *tasks* until none is left, and return the runs in the order of their ends.

    *draw* returns numbers in [0, 1). It is called once per claim and once per failure.
    """
    simulation = _Simulation(tasks, conditions, draw=draw)
    while simulation.step():
        pass
    return tuple(simulation.runs)


class _Simulation:
    """State of the simulation at the current time."""

    def __init__(self, tasks: Iterable[SimulatedTask], conditions: Conditions, *, draw: Callable[[], float]) -> None:
        self.runs: list[SimulatedRun] = []
        self._conditions = conditions
        self._draw = draw
        self._now = EPOCH
        self._backlog = Backlog(tasks)
        self._running: list[tuple[datetime, str, SimulatedTask]] = []  # a heap by end, like `_waiting_slots`
        self._waiting_slots: list[datetime] = []

    def step(self) -> bool:
        """Move the clock to the next event and handle it; return false if there is none."""
        now = self._find_next_event()
        if now is None:
            return False
        self._now = now
        while self._running and self._running[0][0] <= now:
            self._end_run(heapq.heappop(self._running)[2])
        while self._waiting_slots and self._waiting_slots[0] <= now:
            heapq.heappop(self._waiting_slots)
        self._backlog.advance(now)
        self._fill_slots()
        return True

    def _find_next_event(self) -> datetime | None:
        ends = [ended_at for ended_at, _, _ in self._running[:1]]
        due = self._backlog.next_due_at()
        return min([*ends, *self._waiting_slots[:1], *([] if due is None else [due])], default=None)

    def _fill_slots(self) -> None:
        conditions = self._conditions
        free = conditions.slots - len(self._running) - len(self._waiting_slots)
        if free == 0:
            return
        requested = shares(
            conditions.selection,
            free=free,
            slots=conditions.slots,
            retries_in_flight=sum(task.lane == "retry" for _, _, task in self._running),
            retry_share=conditions.retry_share,
            draw=self._draw(),
        )
        for task in take_shares(requested, self._backlog.take):
            claimed = replace(task, attempts=task.attempts + 1)
            heapq.heappush(self._running, (self._now + conditions.run_time, task.id, claimed))

    def _end_run(self, task: SimulatedTask) -> None:
        outcome = self._decide_outcome(task)
        started_at = self._now - self._conditions.run_time
        self.runs.append(SimulatedRun(task=task, started_at=started_at, ended_at=self._now, outcome=outcome))
        if isinstance(outcome, Retried):
            self._backlog.add(replace(task, lane="retry", due_at=outcome.next_retry_at))
            if self._conditions.waits_out_backoff:
                heapq.heappush(self._waiting_slots, outcome.next_retry_at)

    def _decide_outcome(self, task: SimulatedTask) -> Succeeded | Retried | Failed:
        if task.attempts > task.fails:
            return Succeeded(result=None)
        policy = self._conditions.policy
        return decide_after_failure(FAILURE, policy, attempts=task.attempts, now=self._now, draw=self._draw())
