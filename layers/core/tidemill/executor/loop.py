"""The main thread of an execution: claim, start, collect, watch deadlines, settle, until dry or out of time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Final

from tidemill.admission import Release, Start, admit
from tidemill.errors import TidemillError
from tidemill.executor.cancellations import Cancellations
from tidemill.executor.claimer import Claimer
from tidemill.executor.giving_back import GivingBack
from tidemill.executor.judge import Judge
from tidemill.executor.outcomes import malformed
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.executor.runtime import Order, Runtime
from tidemill.executor.settler import Settler
from tidemill.model import Malformed, Retried, Task, TaskId
from tidemill.settlement import Settlement
from tidemill.slots import Slots
from tidemill.stats import Tally
from tidemill.store import within

LEASE_GRACE: Final = timedelta(seconds=5)
"""What a lease outlives its invocation by: nothing living is ever reclaimed."""

LAST_SECONDS: Final = 2.0
"""Kept of an invocation for its report."""

OPERATION_SEC: Final = 10.0
MAX_WAIT_SEC: Final = 0.5
FIRST_PAUSE_SEC: Final = 0.02
MAX_INTERRUPTIONS: Final = 12
"""So many stamps in a row may fail: enough for a fail-over, and to single out one bad document in a batch."""


def execute(runtime: Runtime, order: Order) -> Report:
    """Run due tasks until none is left or the time is up, and return the counts.

    Stopped at any point it leaves nothing worse than leases, which end with the invocation.

    Raises:
        TidemillError: MongoDB could not be asked for work, and nothing had been claimed.
    """
    return Execution(runtime, order).run()


class Execution:
    """One invocation of the executor."""

    def __init__(self, runtime: Runtime, order: Order) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._monotonic = runtime.monotonic
        self._deadline = runtime.monotonic() + order.remaining.total_seconds()
        self._batch_size = order.batch_size or runtime.settings.batch_size
        self._report = Report()
        self._slots = Slots(order.concurrency or runtime.settings.concurrency, monotonic=runtime.monotonic)
        self._settler = Settler(runtime.tasks, report=self._report, monotonic=runtime.monotonic)
        self._caps = RetryCaps(
            runtime.tasks.database,
            owner=order.owner,
            lease_until=self._lease_until,
            report=self._report,
            monotonic=runtime.monotonic,
        )
        self._claimer = Claimer(
            runtime.tasks,
            owner=order.owner,
            lease_until=self._lease_until,
            queues=order.queues,
            serving=lambda queue: runtime.serving(queue, order),
            caps=self._caps,
            report=self._report,
            rng=runtime.rng,
            monotonic=runtime.monotonic,
        )
        self._giving_back = GivingBack(
            runtime.tasks, owner=order.owner, clock=runtime.clock, caps=self._caps, report=self._report
        )
        self._judge = Judge(runtime)
        self._tally = Tally(runtime.tasks, slots=self._slots.size, monotonic=runtime.monotonic)
        self._started: list[TaskId] = []
        self._alone = False
        self._next_claim = 0.0
        self._cancellations = Cancellations(
            runtime.tasks, owner=order.owner, report=self._report, monotonic=runtime.monotonic
        )

    def run(self) -> Report:
        """Work until dry or out of time."""
        try:
            while self._step():
                pass
        finally:
            self._finish()
        return self._report

    def _within(self) -> AbstractContextManager[None]:
        """Bound an operation by the life of the invocation: past that nobody reads its answer."""
        return within(min(self._remaining().total_seconds() - LAST_SECONDS / 2, OPERATION_SEC))

    def _step(self) -> bool:
        claimed = self._claim(final=False)
        if not claimed and not self._slots.running:
            self._flush(force=True)
            if self._claimer.was_thorough or not (self._claim(final=True) or self._may_try_again()):
                return False
        ended = self._slots.ended(wait=self._wait())
        late = self._slots.overdue()
        self._report["timed_out"] += len(late)
        with self._within():
            settlements = [*map(self._judge.ended, ended), *map(self._judge.late, late)]
        for settlement in settlements:
            self._settler.add(settlement)
        is_waited_for = any(self._caps.is_full(one.task.queue) for one in (*(end.running for end in ended), *late))
        self._flush(force=is_waited_for or not self._slots.running)
        self._write_statistics(force=False)
        if self._slots.running:
            with self._within():
                self._cancellations.look(self._slots.running)
        return True

    # Claiming and starting

    def _claim(self, *, final: bool) -> bool:
        """Fill free slots; true where anything was claimed."""
        if not self._may_claim(final=final):
            return False
        now = self._now()
        if self._claimer.suspects and not self._slots.running:
            self._alone = True
            with self._within():
                held = self._claimer.take_suspect(self._claimer.suspects.pop(0), now=now)
            self._admit(held)
            return True
        with self._within():
            held = self._claimer.claim(
                free=min(self._slots.free, self._batch_size),
                slots=self._slots.size,
                retries_in_flight=sum(one.task.lane == "retry" for one in self._slots.running),
                now=now,
                final=final,
            )
        self._admit(held)
        self._next_claim = 0.0 if held else self._monotonic() + MAX_WAIT_SEC
        if not held:
            self._give_up_if_useless()
        return bool(held or self._claimer.suspects)

    def _may_claim(self, *, final: bool) -> bool:
        if not self._has_time():
            return False
        if self._alone or self._claimer.suspects:
            # What may kill the process runs with nothing beside it that could come to harm.
            self._alone = self._alone and bool(self._slots.running)
            return not self._slots.running
        return self._slots.free > 0 and (final or self._monotonic() >= self._next_claim)

    def _may_try_again(self) -> bool:
        """Pause after a claim that failed or came too late, longer each time; false where none did or too many."""
        in_vain = max(self._claimer.interrupted, self._claimer.beaten)
        if not 0 < in_vain <= MAX_INTERRUPTIONS or not self._has_time():
            return False
        longest = min(FIRST_PAUSE_SEC * 2 ** (in_vain - 1), MAX_WAIT_SEC)
        time.sleep(longest * self._runtime.rng.uniform(0.5, 1))
        return True

    def _give_up_if_useless(self) -> None:
        trouble = self._claimer.trouble
        if trouble is not None and not self._report["claimed"]:
            raise trouble

    def _admit(self, held: Sequence[Task | Malformed]) -> None:
        released: list[Task] = []
        for task in held:
            if isinstance(task, Malformed):
                self._settler.add(Settlement(task=task, outcome=malformed(task)))
                continue
            now, limits = self._now(), self._runtime.limits(task)
            admission = admit(task, limits, now=now, remaining=self._remaining())
            match admission:
                case Start(timeout=timeout):
                    self._start(task, timeout=timeout, max_retries=limits.max_retries, now=now)
                case Release():
                    released.append(task)
                case _:
                    self._settler.add(Settlement(task=task, outcome=admission))
        with self._within():
            self._giving_back.release(released)

    def _start(self, task: Task, *, timeout: timedelta, max_retries: int, now: datetime) -> None:
        task_type = self._runtime.registry.get(task.name)
        if task_type is None:  # admission has refused it
            return
        self._started.append(task.id)
        is_last = task.attempts > max_retries
        self._slots.start(task, task_type, timeout=timeout, is_last_attempt=is_last, now=now)

    # Settling, watching, leaving

    def _flush(self, *, force: bool) -> None:
        if not (force or self._settler.is_due()):
            return
        now = self._now()
        with self._within():
            verdict = self._settler.flush(now=now)
            if self._caps.ended([one.task for one in (*verdict.settled, *verdict.lost)], now=now):
                self._next_claim = 0.0  # what was denied before may be had now
        self._tally.settled(verdict.settled, now=now)
        for settlement in verdict.settled:
            outcome, task = settlement.outcome, settlement.task
            if isinstance(outcome, Retried) and isinstance(task, Task):
                self._claimer.put_back(task, due_at=outcome.next_retry_at, lane="retry")

    def _finish(self) -> None:
        while len(self._settler) and self._remaining() > timedelta(seconds=LAST_SECONDS):
            self._flush(force=True)
            if len(self._settler):
                time.sleep(min(max((self._settler.next_flush() or 0) - self._monotonic(), 0), 1.0))
        self._settler.give_up()
        with self._within():
            if self._giving_back.release_unseen(self._claimer.unseen_tokens, started=self._started):
                self._caps.close(now=self._now())
        self._write_statistics(force=True)
        self._report["leftovers"] += self._slots.leftovers()
        self._slots.close()

    def _write_statistics(self, *, force: bool) -> None:
        self._tally.overtook(self._claimer.overtakes)
        self._claimer.overtakes.clear()
        try:
            with self._within():
                self._tally.write(now=self._now(), force=force)
        except TidemillError:
            self._report["errors"] += 1

    def _wait(self) -> float:
        if not self._slots.running:
            return 0.0
        moments = [self._slots.next_deadline(), self._settler.next_flush(), self._cancellations.next_look]
        if self._slots.free and self._has_time() and not self._alone and not self._claimer.suspects:
            moments.append(self._next_claim)
        first = min(moment for moment in moments if moment is not None)
        return min(max(first - self._monotonic(), 0.0), MAX_WAIT_SEC)

    def _has_time(self) -> bool:
        return self._remaining() >= self._settings.max_task_timeout + self._settings.margin

    def _lease_until(self) -> datetime:
        # Both read now: a time that was read before a slow operation would end the lease before the invocation.
        return self._now() + self._remaining() + LEASE_GRACE

    def _remaining(self) -> timedelta:
        return timedelta(seconds=self._deadline - self._monotonic())

    def _now(self) -> datetime:
        return self._runtime.clock.now()
