"""Scaling out: an executor that has more before it than it can do in its time summons others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from tidemill.control import Seats
from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.executor.runtime import Order, Runtime
from tidemill.store import gauges
from tidemill.summon import Summoner

FIRST_LOOK_SEC: Final = 1.0
"""How long it is measured what an executor gets done, before anything is made of that."""

LOOK_SEC: Final = 5.0
"""How often an executor that cannot keep up looks: longer than a start takes, so that it sees those that came."""

MOST: Final = 50_000
"""So much work, at the most, is counted for one executor."""

_PROGRESS: Final = ("done", "retried", "failed", "cancelled", "quarantined")


def progress(report: Report) -> int:
    """Return how much an execution got done that does not come back for ever: snoozes and releases may."""
    return sum(report[name] for name in _PROGRESS)


def wanted(*, due: int, capacity: int, free_seats: int) -> int:
    """Return how many executors have work, where each does *capacity* of the *due* tasks in its time."""
    return min(free_seats, math.ceil(max(due, 0) / capacity))


class Recruiter:
    """Summons executors for one execution, which claims until *claims_until* on the monotonic clock."""

    def __init__(
        self, runtime: Runtime, order: Order, *, seats: Seats, summoner: Summoner, claims_until: float
    ) -> None:
        self._runtime = runtime
        self._order = order
        self._seats = seats
        self._summoner = summoner
        self._claims_until = claims_until
        self._claims_for = claims_until - runtime.monotonic()
        self._called_at = -math.inf
        self._since = 0.0
        self._done_before = 0
        self._next_look = 0.0

    def look(self, queues: Iterable[str], *, report: Report, slots: int) -> None:
        """Summon as many as have work: for an execution with all of its *slots* full, and more due in *queues*.

        It costs nothing but once in a while, and then one command, and one for each queue while there are free seats.
        What another does in its time is what this one has done lately, and at least one task in each slot.
        """
        at, done = self._runtime.monotonic(), progress(report)
        if at - self._called_at > FIRST_LOOK_SEC:  # what was done while there was less to do says nothing
            self._since, self._done_before, self._next_look = at, done, at + FIRST_LOOK_SEC
        self._called_at = at
        if at < self._next_look:
            return
        self._next_look = at + LOOK_SEC
        if not done and self._order.source == "backlog":
            return  # it was summoned itself, and has not shown that this helps
        rate = (done - self._done_before) / (at - self._since)
        count = 0
        try:
            count = self._wanted(
                queues,
                own=math.floor(min(rate * max(self._claims_until - at, 0.0), MOST)),
                others=math.floor(min(max(rate * self._claims_for, slots), MOST)),
                now=self._runtime.clock.now(),
            )
        except TidemillError:
            report["errors"] += 1
        if count:
            self._summoner.summon(count, patience_sec=0)

    def _wanted(self, queues: Iterable[str], *, own: int, others: int, now: datetime) -> int:
        free_seats = self._seats.free(now=now)
        due, enough = 0, own + others * free_seats
        for queue in queues if free_seats else ():
            due += self._due(queue, now=now, limit=enough - due)
            if due >= enough:
                break
        return wanted(due=due - own, capacity=others, free_seats=free_seats)

    def _due(self, queue: str, *, now: datetime, limit: int) -> int:
        """Return how many tasks of *queue* another executor could take, at most *limit* + 1."""
        choices = self._runtime.serving(queue, self._order)
        is_capped = choices.max_in_flight_retries is not None
        lanes = tuple(lane for lane in choices.lanes if lane == "fresh" or not is_capped)
        if choices.paused or not lanes:
            return 0
        return gauges.ready(self._runtime.tasks, queue, now=now, lanes=lanes, limit=limit)
