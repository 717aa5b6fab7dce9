"""The tasks that nobody runs at the moment: those that are due, lane by lane in the queue's order, and the others."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from tidemill.model import LANES, Lane
from tidemill.selection import Lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTask:
    """A task, as far as selection and retrying look at one. *fails* of its runs fail, the first ones."""

    id: str
    due_at: datetime
    lane: Lane = "fresh"
    priority: int = 0
    attempts: int = 0
    fails: int = 0


_Key: TypeAlias = tuple[int, datetime, str]


class Backlog:
    """Pending tasks. No two of them have the same id."""

    def __init__(self, tasks: Iterable[SimulatedTask]) -> None:
        self._later = [(task.due_at, task.id, task) for task in tasks]
        heapq.heapify(self._later)
        self._due: dict[Lane, list[tuple[_Key, SimulatedTask]]] = {lane: [] for lane in LANES}

    def add(self, task: SimulatedTask) -> None:
        """Put *task* in. It can be taken once `advance` has come to its due time."""
        heapq.heappush(self._later, (task.due_at, task.id, task))

    def next_due_at(self) -> datetime | None:
        """Return when the next task becomes due that is not yet."""
        return self._later[0][0] if self._later else None

    def advance(self, now: datetime) -> None:
        """Let the tasks become due whose time has come."""
        while self._later and self._later[0][0] <= now:
            _, _, task = heapq.heappop(self._later)
            heapq.heappush(self._due[task.lane], (_key(task), task))

    def take(self, lanes: Lanes, count: int) -> list[SimulatedTask]:
        """Take up to *count* due tasks of *lanes* in one order: priority, then due time, then id."""
        taken: list[SimulatedTask] = []
        while len(taken) < count and (heads := [self._due[lane] for lane in lanes if self._due[lane]]):
            _, task = heapq.heappop(min(heads))
            taken.append(task)
        return taken


def _key(task: SimulatedTask) -> _Key:
    return (-task.priority, task.due_at, task.id)
