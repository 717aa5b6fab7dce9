"""Memory of the claims of an execution: the position of the scan in each lane, and the queues with tasks."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tidemill.documents import is_text
from tidemill.executor.context import ExecutionContext
from tidemill.executor.lifetime import TIMING, Timing
from tidemill.model import EARLIEST, Lane, Task
from tidemill.policy.scheduling import Lanes
from tidemill.store.scan import Key, Scan, list_heads

MAX_RETURNS: Final = 10_000
"""Tasks put back that a position remembers. Beyond that it forgets them and looks from the head."""


class ScanPosition:
    """Position of the scan of a queue's lanes. Times are readings of the monotonic clock."""

    def __init__(self, scan: Scan, *, timing: Timing = TIMING) -> None:
        self._scan = scan
        self._timing = timing
        self._full_look_at = -math.inf
        self._full_look_cost = 0.0
        self._least_cost = math.inf
        self._dry_since = -math.inf
        self._denied_at = -math.inf
        self._left_due_at = -math.inf
        self._returns: list[tuple[datetime, int]] = []  # a heap of (due_at, -priority)

    def next_scan(self, head: Key | None) -> Scan:
        """Return the next scan: behind the position, or else from the head of the lanes, which is *head* if known."""
        return self._scan.from_head(head) if self._scan.after is None else self._scan

    def restart(self) -> None:
        """Start the next scan from the head."""
        self._scan = self._scan.from_head()

    def expect_due(self) -> None:
        """Start the next scan from the head, and at once: a task is due there that the position does not expect."""
        self.restart()
        self._dry_since = -math.inf

    def is_full_look_due(self, at: float, *, now: datetime, goes_first: bool) -> bool:
        """Return whether to start from the head: periodically, or at once if *goes_first* or a task returned."""
        if (goes_first or self._has_returned(now)) and _is_cheap(self._full_look_cost, self._least_cost, self._timing):
            return True
        return at - self._full_look_at > _compute_look_pause(self._full_look_cost, self._timing)

    def is_dry(self, at: float) -> bool:
        """Return whether the last look, a moment ago, found nothing due."""
        return at - self._dry_since < self._timing.dry_lanes_pause_sec

    def was_dry(self, *, since: float) -> bool:
        """Return whether the last look, at or after *since*, found all that is due."""
        return self._dry_since >= since

    def was_denied(self, *, since: float) -> bool:
        """Return whether the last look, at or after *since*, found retries without permits."""
        return self._denied_at >= since

    def may_have_left(self, *, since: float) -> bool:
        """Return whether the last look, at or after *since*, may have left due tasks."""
        return self._left_due_at >= since

    def record_look(self, next_scan: Scan, *, at: float, cost: float, now: datetime, dry: bool, denied: bool) -> None:
        """Record a look at time *at* that took *cost* seconds, and the scan that follows it."""
        self._least_cost = min(self._least_cost, cost)
        self._left_due_at = -math.inf if dry or denied else at
        if self._scan.after is None:
            self._full_look_at = at
            self._full_look_cost = _dampen_cost(cost, before=self._full_look_cost, timing=self._timing)
            while self._returns and self._returns[0][0] <= now:
                heapq.heappop(self._returns)
        self._dry_since = at if dry else -math.inf
        self._denied_at = at if denied else -math.inf
        self._scan = replace(next_scan, head=None)

    def record_nothing_due(self, *, at: float, cost: float, now: datetime) -> None:
        """Record a look from the head at time *at* that found nothing due."""
        self.restart()
        self.record_look(self._scan, at=at, cost=cost, now=now, dry=True, denied=False)

    def put_back(self, task: Task, *, due_at: datetime) -> None:
        """Record that *task* will be due again, perhaps behind the position of the scan."""
        self._dry_since = -math.inf
        heapq.heappush(self._returns, (due_at, -task.priority))
        if len(self._returns) > MAX_RETURNS:  # the lanes are not scanned, or many tasks return at once
            self._returns.clear()
            self._full_look_at = -math.inf

    def _has_returned(self, now: datetime) -> bool:
        """Return whether a returned task is due behind the position. The scan reaches later tasks anyway."""
        while self._returns and self._returns[0][0] <= now:
            if self._has_passed(*self._returns[0]):
                return True
            heapq.heappop(self._returns)
        return False

    def _has_passed(self, due_at: datetime, order: int) -> bool:
        after = self._scan.after
        return after is not None and (order, due_at) <= (-after.priority, _time_or_earliest(after.due_at))


class ScanPositions:
    """The scan positions of all lanes that were ever scanned."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self._timing = timing
        self._positions: dict[tuple[str, Lanes], ScanPosition] = {}

    def position(self, queue: str, lanes: Lanes) -> ScanPosition:
        """Return the position of these lanes; a new position is at their head."""
        if (queue, lanes) not in self._positions:
            self._positions[queue, lanes] = ScanPosition(Scan(queue=queue, lanes=lanes), timing=self._timing)
        return self._positions[queue, lanes]

    def forget_all_but(self, queues: Iterable[str]) -> None:
        """Forget the positions in all other queues; a later scan there starts at the head."""
        kept = set(queues)
        self._positions = {key: position for key, position in self._positions.items() if key[0] in kept}

    def put_back(self, task: Task, *, due_at: datetime, lane: Lane) -> None:
        """Record that *task* is pending again, in *lane*, and due at *due_at*."""
        for (queue, lanes), position in self._positions.items():
            if queue == task.queue and lane in lanes:
                position.put_back(task, due_at=due_at)

    def expect_due(self, queue: str) -> None:
        """Start every lane of *queue* from its head, because a task is due there that no position expects."""
        for (position_queue, _), position in self._positions.items():
            if position_queue == queue:
                position.expect_due()

    def is_used_up(self, queue: str, lanes: Lanes, *, since: float) -> bool:
        """Return whether a look since *since*, at all these lanes, found fewer tasks than wanted or was denied."""
        return any(
            position.was_dry(since=since) or (lanes == position_lanes and position.was_denied(since=since))
            for (position_queue, position_lanes), position in self._positions.items()
            if position_queue == queue and set(lanes) <= set(position_lanes)
        )


class PendingQueues:
    """The queues with pending tasks. Not every claim reads them: a read steps over all claimed tasks."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._names: Sequence[str] = tuple(context.options.queues)
        self._next_read_at = -math.inf
        self._cost = 0.0
        self._least_cost = math.inf

    @property
    def names(self) -> Sequence[str]:
        """The queues as of the last read."""
        return self._names

    @property
    def is_fixed(self) -> bool:
        """True if the options of the execution name the queues, so that no read is needed."""
        return bool(self._context.options.queues)

    def is_read_due(self, at: float) -> bool:
        """Return whether to read the queues: periodically, and for every claim while none is known and reads are cheap.

        Otherwise an idle executor would find the first task of a queue up to a second late.
        """
        is_cheap = _is_cheap(self._cost, self._least_cost, self._context.timing)
        return at >= self._next_read_at or (not self._names and is_cheap)

    def read(self) -> Iterable[Mapping[str, Any]]:
        """Read the queues, and return the first task of each, due or not.

        Raises:
            UnavailableError: MongoDB did not answer; the queues of the last read are kept.
        """
        timing, started = self._context.timing, self._context.monotonic()
        try:
            heads = [head for head in list_heads(self._context.tasks) if is_text(head["queue"])]
            self._names = [head["queue"] for head in heads]
            cost = self._context.monotonic() - started
            self._cost = _dampen_cost(cost, before=self._cost, timing=timing)
            self._least_cost = min(cost, self._least_cost)
        finally:
            self._next_read_at = started + _compute_look_pause(self._cost, timing)
        return heads


def _dampen_cost(cost: float, *, before: float, timing: Timing) -> float:
    """Return the expected cost of a look after one of *cost*. A single slow look at most doubles it."""
    return min(cost, 2 * before + timing.cheap_full_look_sec / 3)


def _is_cheap(cost: float, least: float, timing: Timing) -> bool:
    """Return whether a look of *cost* is cheap. A look at a distant server takes at least *least* anyway."""
    return cost < max(timing.cheap_full_look_sec, 3 * least)


def _compute_look_pause(cost: float, timing: Timing) -> float:
    """Return the seconds between two full looks of *cost*."""
    return max(timing.full_look_interval_sec, timing.full_look_cost_ratio * cost)


def _time_or_earliest(value: object) -> datetime:
    return value if isinstance(value, datetime) else EARLIEST
