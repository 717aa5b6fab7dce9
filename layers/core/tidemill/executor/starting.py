"""From the claim to the start: what waits for a slot, what may start, and what is given back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidemill.admission import Release, Start, admit
from tidemill.executor.giving_back import GivingBack
from tidemill.executor.held import Held, key
from tidemill.executor.life import Life
from tidemill.executor.outcomes import malformed
from tidemill.executor.runtime import Runtime
from tidemill.executor.settler import Settler
from tidemill.model import Cancelled, Malformed, Snoozed, Task, TaskId
from tidemill.settlement import Settlement
from tidemill.slots import Running, Slots

HOLD_SEC: Final = 1.0
"""How long a task waits for a slot before others may have it."""

ISOLATE_AGAIN_SEC: Final = 10.0
"""How long no process is asked for after one could not be had."""

POSTPONED_SEC: Final = (15.0, 60.0)
"""How long, at least and at most, a task waits for which no process could be had."""


class Starting:
    """Brings claimed tasks into *slots*, in the order of their claims, as far as admission lets them."""

    def __init__(
        self, runtime: Runtime, *, life: Life, held: Held, slots: Slots, settler: Settler, giving_back: GivingBack
    ) -> None:
        self._runtime = runtime
        self._life = life
        self._held = held
        self._slots = slots
        self._settler = settler
        self._giving_back = giving_back
        self._waiting: deque[tuple[float, Task]] = deque()
        self._isolates_again_at = -math.inf
        self._shunned: list[tuple[float, TaskId]] = []
        self._offered: list[tuple[float, TaskId]] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[Task]:
        """What is claimed and has no slot yet."""
        return [task for _, task in self._waiting]

    def take(self, claimed: Sequence[Task | Malformed]) -> None:
        """Take over what was claimed."""
        self._held.add(claimed)
        for task in claimed:
            if isinstance(task, Malformed):
                self._settler.add(Settlement(task=task, outcome=malformed(task)))
            else:
                self._waiting.append((self._runtime.monotonic(), task))

    def fill(self) -> None:
        """Start what waits as far as there are slots; give back what cannot finish any more, or waits too long."""
        if not self._waiting:
            return
        now, released = self._runtime.clock.now(), []
        running = {key(task_id) for task_id in (*self._slots.zombies(), *(one.task.id for one in self._slots.running))}
        while self._waiting and (self._slots.free or not self._life.left_for_tasks()):
            _, task = self._waiting.popleft()
            if not self._starts(task, running=running, now=now):
                released.append(task)
        self.give_back(released, shun_sec=self._life.shun_sec)
        self._let_go_of_hostages(now)

    def postpone(self, running: Sequence[Running]) -> None:
        """Put off tasks for which no process could be had, and for a while all that would need one."""
        self._isolates_again_at = self._runtime.monotonic() + ISOLATE_AGAIN_SEC
        for one in running:
            self._postpone(one.task)

    def cancel(self, asked: Collection[TaskId]) -> None:
        """Settle what waits and was asked to stop."""
        for one in [one for one in self._waiting if one[1].id in asked]:
            self._waiting.remove(one)
            self._settler.add(Settlement(task=one[1], outcome=Cancelled()))

    def give_back(self, tasks: Sequence[Task], *, shun_sec: float) -> None:
        """Give back *tasks*, unstarted, and leave them to others for so long."""
        if not tasks:
            return
        self._shunned += self._until(shun_sec, tasks)
        self._release(tasks)

    def avoided(self) -> list[TaskId]:
        """Return what this execution must not claim: what it gave back, and what still runs though it timed out."""
        now = self._runtime.monotonic()
        self._shunned = [one for one in self._shunned if one[0] > now]
        self._offered = [one for one in self._offered if one[0] > now]
        return [*(task_id for _, task_id in (*self._shunned, *self._offered)), *self._slots.zombies()]

    @property
    def leaves_some(self) -> bool:
        """Whether what was given back here may wait for others."""
        return bool(self._shunned or self._offered)

    def takes_back(self) -> bool:
        """Avoid no longer what only had no slot here; false where nothing was offered to others a moment ago."""
        had = bool(self._offered)
        self._offered.clear()
        return had

    def _starts(self, task: Task, *, running: set[bytes], now: datetime) -> bool:
        """Start *task*, or settle it without a run; false where it is to be given back.

        *running* are the keys of what this process runs already, and of what it was not let finish.
        """
        if task not in self._held or key(task.id) in running:
            return False
        if self._cannot_be_isolated(task):
            self._postpone(task)
            return True
        limits = self._runtime.limits(task)
        admission = admit(task, limits, now=now, remaining=self._life.left_for_tasks())
        task_type = self._runtime.registry.get(task.name)
        match admission:
            case Start(timeout=timeout) if task_type is not None:
                is_last = task.attempts > limits.max_retries
                self._slots.start(task, task_type, timeout=timeout, is_last_attempt=is_last, now=now)
                running.add(key(task.id))
            case Start() | Release():
                return False
            case _:
                self._settler.add(Settlement(task=task, outcome=admission))
        return True

    def _let_go_of_hostages(self, now: datetime) -> None:
        """Give back what waits behind functions that turned out to be slow, and what could not finish any more."""
        at, left = self._runtime.monotonic(), self._life.left_for_tasks()
        settings = self._runtime.settings
        has_time = left >= settings.max_task_timeout + settings.margin
        if not self._waiting or (has_time and at - self._waiting[0][0] <= HOLD_SEC):
            return
        long, late = [], []
        for since, task in self._waiting:
            if isinstance(admit(task, self._runtime.limits(task), now=now, remaining=left), Release):
                late.append(task)
            elif at - since > HOLD_SEC:
                long.append(task)
        self._waiting = deque(one for one in self._waiting if one[1] not in long and one[1] not in late)
        self.give_back(late, shun_sec=self._life.shun_sec)
        self._offer(long)

    def _offer(self, tasks: Sequence[Task]) -> None:
        if tasks:
            self._offered += self._until(HOLD_SEC, tasks)
            self._release(tasks)

    def _until(self, shun_sec: float, tasks: Sequence[Task]) -> list[tuple[float, TaskId]]:
        until = self._runtime.monotonic() + shun_sec
        return [(until, task.id) for task in tasks]

    def _release(self, tasks: Sequence[Task]) -> None:
        self._held.drop(tasks)
        self._giving_back.release(tasks)

    def _cannot_be_isolated(self, task: Task) -> bool:
        task_type = self._runtime.registry.get(task.name)
        is_isolated = task_type is not None and self._slots.isolates(task, task_type)
        return is_isolated and self._runtime.monotonic() < self._isolates_again_at

    def _postpone(self, task: Task) -> None:
        wait = timedelta(seconds=self._runtime.rng.uniform(*POSTPONED_SEC))
        self._settler.add(Settlement(task=task, outcome=Snoozed(until=self._runtime.clock.now() + wait)))
