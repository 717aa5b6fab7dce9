"""Containers that enqueue tasks and executors that claim them, on a clock that jumps from event to event.

The code of the product decides when to wake an executor, how long it polls, and whether it gets a successor. Times are
in seconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemill.executor.context import Report
from tidemill.executor.idle import compute_linger_end
from tidemill.executor.invocation import needs_successor
from tidemill.executor.lifetime import TIMING
from tidemill.executor.scaling import WAKE_DEBOUNCE_SEC, Debounce

if TYPE_CHECKING:
    from random import Random

CLAIM_SEC: Final = 0.005
GRACE_SEC: Final = 65.0
"""Time between the last claim of an executor and the end of its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a simulation; spans are pairs of the shortest and the longest, in seconds.

    ``cancelled`` is the share of the tasks that are cancelled at once: an executor that one of them woke finds no
    task. ``wakes``, ``records_refusals``, ``woken_poll`` and ``quiet_sec`` keep tasks from waiting for a tick. Each can
    be taken away.
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
    records_refusals: bool = True
    woken_poll: bool = True
    quiet_sec: float = WAKE_DEBOUNCE_SEC


class SimulatedSlots:
    """The executor slots of `tidemill.control`, in memory, for one thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: dict[int, float] = {}
        self._has_refused = False

    def acquire(self, executor: int, *, until: float, now: float) -> bool:
        """Acquire a slot until *until*; return false, and record the refusal, if no slot is free."""
        self._ends = {other: end for other, end in self._ends.items() if end > now and other != executor}
        if len(self._ends) >= self._limit:
            self._has_refused = True
            return False
        self._ends[executor] = until
        return True

    def release(self, executor: int) -> bool:
        """Release the slot; return whether an executor was refused since the last release."""
        self._ends.pop(executor, None)
        has_refused, self._has_refused = self._has_refused, False
        return has_refused


class World:
    """State of the simulation.

    Attributes:
        waits: Time from the enqueue to the claim of each task, without the cancelled tasks.
        started: Executors that were started.
        refused: Executors that found no free slot.
    """

    def __init__(self, conditions: Conditions, *, rng: Random) -> None:
        self.now = 0.0
        self.rng = rng
        self.conditions = conditions
        self.slots = SimulatedSlots(conditions.max_executors)
        self.pending: deque[float] = deque()
        self.waits: list[float] = []
        self.started = 0
        self.refused = 0
        self._containers = [Debounce(quiet_sec=conditions.quiet_sec) for _ in range(conditions.containers)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._expected = 0

    def run(self, *, tasks: int, per_sec: float) -> None:
        """Let *tasks* arrive, independent of each other, and stop after the last claim."""
        self._schedule_arrivals(tasks, per_sec)
        self._tick()
        while self._expected or self.pending:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Call *action* at *moment*."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, action))

    def draw(self, span: tuple[float, float]) -> float:
        """Draw from *span*; each order of magnitude is equally likely."""
        shortest, longest = span
        return float(shortest * (longest / shortest) ** self.rng.random())

    def launch(self, *, is_tick: bool = False) -> None:
        """Start an executor after a random delay."""
        self.started += 1
        executor = Executor(self, number=self.started, is_woken=not is_tick)
        self.at(self.now + self.draw(self.conditions.starts_in), executor.start)

    def _schedule_arrivals(self, left: int, per_sec: float) -> None:
        def arrive() -> None:
            if self.rng.random() >= self.conditions.cancelled:
                self.pending.append(self.now)
            self._wake(self.rng.choice(self._containers))
            self._schedule_arrivals(left - 1, per_sec)

        self._expected = left
        if left:
            self.at(self.now + self.rng.expovariate(per_sec), arrive)

    def _wake(self, container: Debounce) -> None:
        container.request(self.now)
        if self.conditions.wakes and container.is_due(self.now):
            container.record_try(self.now)
            container.record_start(self.now)
            self.launch()

    def _tick(self) -> None:
        self.launch(is_tick=True)
        self.at(self.now + self.conditions.tick, self._tick)


class Executor:
    """One invocation; it ends at once if it gets no slot."""

    def __init__(self, world: World, *, number: int, is_woken: bool) -> None:
        self._world = world
        self._number = number
        self._is_woken = is_woken and world.conditions.woken_poll
        self._started = 0.0
        self._worked_at: float | None = None
        self._running = 0
        self._has_claim_scheduled = False
        self._report = Report()

    def start(self) -> None:
        """Acquire a slot and claim."""
        world, self._started = self._world, self._world.now
        until = self._started + world.conditions.claims_for + GRACE_SEC
        if world.slots.acquire(self._number, until=until, now=self._started):
            self._claim_at(self._started)
        else:
            world.refused += 1

    def _claim_at(self, moment: float) -> None:
        if not self._has_claim_scheduled:
            self._has_claim_scheduled = True
            self._world.at(moment, self._claim)

    def _claim(self) -> None:
        self._has_claim_scheduled = False
        world = self._world
        room = world.conditions.slots - self._running
        if world.now >= self._started + world.conditions.claims_for:
            self._leave_when_done()
            return
        if not room:
            return  # the next task to end claims again
        claimed = min(room, len(world.pending))
        self._report.backlog = claimed == room
        for _ in range(claimed):
            self._run_task(world.pending.popleft())
        if claimed:
            self._claim_at(world.now + CLAIM_SEC)
        elif self._running:
            self._claim_at(world.now + TIMING.step_wait_sec)
        else:
            self._poll()

    def _run_task(self, enqueued_at: float) -> None:
        world = self._world
        world.waits.append(world.now - enqueued_at)
        self._running += 1
        world.at(world.now + CLAIM_SEC + world.draw(world.conditions.runs_for), self._end_task)

    def _end_task(self) -> None:
        self._running -= 1
        self._report["done"] += 1
        self._worked_at = self._world.now
        if self._world.now >= self._started + self._world.conditions.claims_for:
            self._leave_when_done()
        elif self._running == self._world.conditions.slots - 1:
            self._claim_at(self._world.now)

    def _poll(self) -> None:
        until = compute_linger_end(
            started=self._started,
            worked_at=self._worked_at,
            launched=self._is_woken,
            next_due=None,
            longest=self._world.conditions.linger,
            timing=TIMING,
        )
        if self._world.now < until:
            self._claim_at(min(self._world.now + TIMING.linger_poll_sec, until))
        else:
            self._report.backlog = False
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        if not self._running and not self._has_claim_scheduled:
            self._has_claim_scheduled = True  # and claims no more
            self._world.at(self._world.now + self._world.draw(self._world.conditions.leaves_in), self._leave)

    def _leave(self) -> None:
        has_refused = self._world.slots.release(self._number) and self._world.conditions.records_refusals
        if needs_successor(self._report, has_waiter=has_refused):
            self._world.launch()
