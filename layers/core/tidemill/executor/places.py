"""Where the scans of an execution are, lane by lane: when one looks again from its head, and when it need not look."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemill.model import EARLIEST, Lane, Task
from tidemill.selection import Lanes
from tidemill.store.scans import Scan

LOOK_AGAIN_SEC: Final = 1.0
"""How often a scan starts from the head, for higher priorities and for what was put back behind it."""

LOOK_COST: Final = 30.0
"""A full look may take one part in so many of the time."""

CHEAP_LOOK_SEC: Final = 0.005
"""A full look that took less is taken whenever it is known what to look for."""

DRY_SEC: Final = 0.5
"""How long lanes without due tasks are left alone."""

MANY_RETURNS: Final = 10_000
"""So many tasks that were put back are told apart; of more it is only known that there are some."""


@dataclass(slots=True, kw_only=True)
class Place:
    """Where the scan of a queue's lanes is; times are readings of the monotonic clock.

    ``returns`` is a heap of ``(due_at, -priority)`` of tasks that were put back.
    """

    scan: Scan
    full_look_at: float = -1e9
    full_look_cost: float = 0.0
    least_cost: float = 1e9
    dry_since: float | None = None
    denied_at: float | None = None
    contested_at: float | None = None
    returns: list[tuple[datetime, int]] = field(default_factory=list)

    def full_look_is_due(self, at: float, *, now: datetime, goes_first: bool) -> bool:
        """Tell whether to start from the head: in time, and at once for what goes first or has come back."""
        cheap = max(CHEAP_LOOK_SEC, 3 * self.least_cost)  # a look at a server far away takes its time, too
        if (goes_first or self._has_returned(now)) and self.full_look_cost < cheap:
            return True
        return at - self.full_look_at > max(LOOK_AGAIN_SEC, LOOK_COST * self.full_look_cost)

    def is_dry(self, at: float) -> bool:
        """Tell whether nothing was due here a moment ago."""
        return self.dry_since is not None and at - self.dry_since < DRY_SEC

    def looked(self, *, at: float, cost: float, now: datetime, dry: bool, denied: bool) -> None:
        """Note a look that was taken at this time, with the scan as it was, and took *cost* seconds."""
        self.least_cost = min(self.least_cost, cost)
        self.contested_at = None if dry or denied else at
        if self.scan.after is None:
            self.full_look_at = at
            # One slow look says nothing, several do.
            self.full_look_cost = min(cost, 2 * self.full_look_cost + CHEAP_LOOK_SEC / 3)
            while self.returns and self.returns[0][0] <= now:
                heapq.heappop(self.returns)
        self.dry_since = at if dry else None
        self.denied_at = at if denied else None

    def put_back(self, task: Task, *, due_at: datetime) -> None:
        """Note that *task* will be due again, perhaps where the scan will have passed by then."""
        self.dry_since = None
        heapq.heappush(self.returns, (due_at, -task.priority))
        if len(self.returns) > MANY_RETURNS:  # nobody looks here, or they come in crowds
            self.returns.clear()
            self.full_look_at = -1e9

    def _has_returned(self, now: datetime) -> bool:
        """Tell whether something is due that the scan has passed; what lies ahead of it, it will come to."""
        while self.returns and self.returns[0][0] <= now:
            if self._has_passed(*self.returns[0]):
                return True
            heapq.heappop(self.returns)
        return False

    def _has_passed(self, due_at: datetime, order: int) -> bool:
        after = self.scan.after
        return after is not None and (order, due_at) <= (-after.priority, _time(after.due_at))


class Places:
    """The places of all lanes that were ever looked at."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, Lanes], Place] = {}

    def of(self, queue: str, lanes: Lanes) -> Place:
        """Return the place of these lanes, at first at their head."""
        return self._places.setdefault((queue, lanes), Place(scan=Scan(queue=queue, lanes=lanes)))

    def forget_all_but(self, queues: Iterable[str]) -> None:
        """Forget the places in other queues: whoever looks there again starts at the head."""
        kept = set(queues)
        self._places = {key: place for key, place in self._places.items() if key[0] in kept}

    def put_back(self, task: Task, *, due_at: datetime, lane: Lane) -> None:
        """Note that *task* is pending again, in *lane*, and due at *due_at*."""
        for (queue, lanes), place in self._places.items():
            if queue == task.queue and lane in lanes:
                place.put_back(task, due_at=due_at)

    def restart(self, queue: str) -> None:
        """Have every lane of *queue* looked at from its head: something is due there that no place knows of."""
        for (its, _), place in self._places.items():
            if its == queue:
                place.scan = place.scan.from_head()
                place.dry_since = None

    def is_contested(self, queue: str, lanes: Lanes, *, since: float) -> bool:
        """Tell whether the last look there, if it was since then, may have left something."""
        place = self._places.get((queue, lanes))
        return place is not None and place.contested_at is not None and place.contested_at >= since

    def is_exhausted(self, queue: str, lanes: Lanes, *, since: float) -> bool:
        """Tell whether a look since then, at these lanes or more, found fewer than wanted, or none it may take."""
        for (its, wider), place in self._places.items():
            if its != queue or not set(lanes) <= set(wider):
                continue
            denied_at = place.denied_at if lanes == wider else None
            if any(at is not None and at >= since for at in (place.dry_since, denied_at)):
                return True
        return False


def _time(value: object) -> datetime:
    return value if isinstance(value, datetime) else EARLIEST
