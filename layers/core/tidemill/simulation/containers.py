"""Containers that take tasks in and executors that come for them, on a clock that jumps from event to event.

When to wake, how long to linger and who comes after whom is decided by the code of the product. Time is in seconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemill.executor import Report
from tidemill.executor.attendance import is_succeeded
from tidemill.executor.linger import POLL_SEC, lingers_until
from tidemill.executor.loop import MAX_WAIT_SEC
from tidemill.summon import QUIET_SEC, Debounce

if TYPE_CHECKING:
    from random import Random

CLAIM_SEC: Final = 0.005
GRACE_SEC: Final = 65.0
"""What a seat outlives the claiming time of its executor by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What tasks come into; spans are pairs of the shortest and the longest, in seconds.

    ``cancelled`` is the part of the tasks that is cancelled at once: what it woke finds nothing. ``wakes``,
    ``knocks``, ``woken_linger`` and ``quiet_sec`` see to it that no task waits for a tick: each can be taken away.
    """

    max_executors: int = 5
    containers: int = 3
    slots: int = 16
    claims_for: float = 60.0
    runs_for: tuple[float, float] = (0.05, 1.0)
    starts_in: tuple[float, float] = (0.05, 3.0)
    leaves_in: tuple[float, float] = (0.01, 0.2)
    tick: float = 60.0
    linger: float = 10.0
    cancelled: float = 0.05
    wakes: bool = True
    knocks: bool = True
    woken_linger: bool = True
    quiet_sec: float = QUIET_SEC


class SimulatedSeats:
    """Seats as `tidemill.control.Seats` has them, for somebody who is the only one to change them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, float] = {}
        self._knocked = False

    def take(self, holder: int, *, until: float, now: float) -> bool:
        """Take a seat that ends at *until*; false, and a knock, where all are taken."""
        self._held = {one: end for one, end in self._held.items() if end > now and one != holder}
        if len(self._held) >= self._limit:
            self._knocked = True
            return False
        self._held[holder] = until
        return True

    def leave(self, holder: int) -> bool:
        """Give the seat back; true where somebody has knocked since the last one left."""
        self._held.pop(holder, None)
        knocked, self._knocked = self._knocked, False
        return knocked


class World:
    """What is going on at one moment.

    Attributes:
        waits: How long each task waited until it was claimed, but for those that were cancelled.
        started: How many executors were started, and
        turned_away: how many of them found no seat.
    """

    def __init__(self, surroundings: Surroundings, *, rng: Random) -> None:
        self.now = 0.0
        self.rng = rng
        self.surroundings = surroundings
        self.seats = SimulatedSeats(surroundings.max_executors)
        self.pending: deque[float] = deque()
        self.waits: list[float] = []
        self.started = 0
        self.turned_away = 0
        self._containers = [Debounce(quiet_sec=surroundings.quiet_sec) for _ in range(surroundings.containers)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._expected = 0

    def run(self, *, tasks: int, per_sec: float) -> None:
        """Let so many tasks come in, independent of each other, and go on until the last is claimed."""
        self._let_in(tasks, per_sec)
        self._tick()
        while self._expected or self.pending:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        """Have something happen at *moment*."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, happen))

    def draw(self, span: tuple[float, float]) -> float:
        """Draw from *span*, any order of magnitude being as likely as another."""
        shortest, longest = span
        return float(shortest * (longest / shortest) ** self.rng.random())

    def summon(self, *, is_tick: bool = False) -> None:
        """Have an executor come in a while."""
        self.started += 1
        executor = Executor(self, number=self.started, summoned=not is_tick)
        self.at(self.now + self.draw(self.surroundings.starts_in), executor.come)

    def _let_in(self, left: int, per_sec: float) -> None:
        def come() -> None:
            if self.rng.random() >= self.surroundings.cancelled:
                self.pending.append(self.now)
            self._wake(self.rng.choice(self._containers))
            self._let_in(left - 1, per_sec)

        self._expected = left
        if left:
            self.at(self.now + self.rng.expovariate(per_sec), come)

    def _wake(self, container: Debounce) -> None:
        container.ask(self.now)
        if self.surroundings.wakes and container.is_due(self.now):
            container.tried(self.now)
            container.came(self.now)
            self.summon()

    def _tick(self) -> None:
        self.summon(is_tick=True)
        self.at(self.now + self.surroundings.tick, self._tick)


class Executor:
    """One invocation; without a seat it ends at once."""

    def __init__(self, world: World, *, number: int, summoned: bool) -> None:
        self._world = world
        self._number = number
        self._summoned = summoned and world.surroundings.woken_linger
        self._started = 0.0
        self._worked_at: float | None = None
        self._running = 0
        self._is_looking = False
        self._report = Report()

    def come(self) -> None:
        """Take a seat and look, or knock."""
        world, self._started = self._world, self._world.now
        until = self._started + world.surroundings.claims_for + GRACE_SEC
        if world.seats.take(self._number, until=until, now=self._started):
            self._look_at(self._started)
        else:
            world.turned_away += 1

    def _look_at(self, moment: float) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._world.at(moment, self._look)

    def _look(self) -> None:
        self._is_looking = False
        world = self._world
        room = world.surroundings.slots - self._running
        if world.now >= self._started + world.surroundings.claims_for:
            self._leave_when_done()
            return
        if not room:
            return  # it looks again when something ends
        claimed = min(room, len(world.pending))
        self._report.backlog = claimed == room
        for _ in range(claimed):
            self._start(world.pending.popleft())
        if claimed:
            self._look_at(world.now + CLAIM_SEC)
        elif self._running:
            self._look_at(world.now + MAX_WAIT_SEC)
        else:
            self._linger()

    def _start(self, came_at: float) -> None:
        world = self._world
        world.waits.append(world.now - came_at)
        self._running += 1
        world.at(world.now + CLAIM_SEC + world.draw(world.surroundings.runs_for), self._end)

    def _end(self) -> None:
        self._running -= 1
        self._report["done"] += 1
        self._worked_at = self._world.now
        if self._world.now >= self._started + self._world.surroundings.claims_for:
            self._leave_when_done()
        elif self._running == self._world.surroundings.slots - 1:
            self._look_at(self._world.now)

    def _linger(self) -> None:
        until = lingers_until(
            started=self._started,
            worked_at=self._worked_at,
            summoned=self._summoned,
            next_due=None,
            longest=self._world.surroundings.linger,
        )
        if self._world.now < until:
            self._look_at(min(self._world.now + POLL_SEC, until))
        else:
            self._report.backlog = False
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        if not self._running and not self._is_looking:
            self._is_looking = True  # and will not look again
            self._world.at(self._world.now + self._world.draw(self._world.surroundings.leaves_in), self._leave)

    def _leave(self) -> None:
        knocked = self._world.seats.leave(self._number) and self._world.surroundings.knocks
        if is_succeeded(self._report, knocked=knocked):
            self._world.summon()
