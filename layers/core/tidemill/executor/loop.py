"""The main thread of an execution: claim, start, collect, watch deadlines, settle, until dry or out of time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

from tidemill.conclusions import NotStarted
from tidemill.errors import TidemillError
from tidemill.executor.cancellations import Cancellations
from tidemill.executor.claimer import Claimer
from tidemill.executor.giving_back import GivingBack
from tidemill.executor.held import Held
from tidemill.executor.judge import Judge
from tidemill.executor.leases import Leases
from tidemill.executor.life import Invocation, Life, Worker
from tidemill.executor.pace import Pace
from tidemill.executor.presence import Present
from tidemill.executor.recruiting import Recruiter
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.executor.runtime import Order, Runtime
from tidemill.executor.settler import Settler
from tidemill.executor.starting import Starting
from tidemill.executor.waiting import Waiting, pause_after
from tidemill.model import Retried, Task
from tidemill.slots import Ended, Running, Slots
from tidemill.stats import Tally
from tidemill.store import within

LAST_SECONDS: Final = 2.0
"""Kept of an invocation for its report."""

LAST_TRIES_SEC: Final = 20.0
"""How long a worker that is to stop tries to write its last: well within what a supervisor grants it."""

LAST_PATIENCE_SEC: Final = 1.5

OPERATION_SEC: Final = 10.0
MAX_WAIT_SEC: Final = 0.5


def execute(runtime: Runtime, order: Order, *, recruiter: Recruiter | None = None) -> Report:
    """Run due tasks until none is left or the time is up, and return the counts.

    *recruiter* is asked for help where there is more to do than this one can.

    Stopped at any point it leaves nothing worse than leases, which end with the invocation.

    Raises:
        TidemillError: MongoDB could not be asked for work, and nothing had been claimed.
    """
    reserve = runtime.settings.max_task_timeout + runtime.settings.margin
    life = Invocation(order.remaining, reserve=reserve, monotonic=runtime.monotonic)
    return Execution(runtime, order, life, recruiter).run() if life.may_claim() else Report(skipped="time")


def work(runtime: Runtime, order: Order, worker: Worker) -> Report:
    """Run tasks as they become due until *worker* is to stop, finish what has begun, and return the counts.

    Leases are short and extended. Where MongoDB is away it is asked again until it is back.
    """
    return Execution(runtime, order, worker).run()


class Execution:
    """One executor at work, for as long as *life* lets it."""

    def __init__(self, runtime: Runtime, order: Order, life: Life, recruiter: Recruiter | None = None) -> None:
        self._runtime = runtime
        self._life = life
        self._recruiter = recruiter
        self._monotonic = runtime.monotonic
        self._batch_size = order.batch_size or runtime.settings.batch_size
        self._report = Report()
        self._held = Held()
        self._pace = Pace()
        self._slots = Slots(
            order.concurrency or runtime.settings.concurrency,
            monotonic=runtime.monotonic,
            isolation=runtime.isolation,
        )
        self._settler = Settler(runtime.tasks, report=self._report, monotonic=runtime.monotonic)
        self._caps = RetryCaps(
            runtime.tasks.database,
            owner=order.owner,
            lease_until=self._lease_until,
            report=self._report,
            monotonic=runtime.monotonic,
        )
        self._giving_back = GivingBack(
            runtime.tasks,
            owner=order.owner,
            clock=runtime.clock,
            caps=self._caps,
            report=self._report,
            monotonic=runtime.monotonic,
        )
        self._starting = Starting(
            runtime,
            life=life,
            held=self._held,
            slots=self._slots,
            settler=self._settler,
            giving_back=self._giving_back,
        )
        self._claimer = Claimer(
            runtime.tasks,
            owner=order.owner,
            lease_until=self._lease_until,
            queues=order.queues,
            lanes=order.lanes,
            serving=lambda queue: runtime.serving(queue, order),
            avoided=self._starting.avoided,
            caps=self._caps,
            report=self._report,
            rng=runtime.rng,
            monotonic=runtime.monotonic,
        )
        self._judge = Judge(runtime)
        self._tally = Tally(runtime.tasks, slots=self._slots.size, monotonic=runtime.monotonic)
        self._cancellations = Cancellations(
            runtime.tasks, owner=order.owner, report=self._report, monotonic=runtime.monotonic
        )
        self._leases = Leases(
            runtime.tasks,
            life=life,
            held=self._held,
            caps=self._caps,
            clock=runtime.clock,
            report=self._report,
            monotonic=runtime.monotonic,
        )
        self._present = Present(runtime, order, life=life)
        self._waiting = Waiting(runtime, order, life)
        self._next_claim = 0.0
        self._leave_by = math.inf

    def run(self) -> Report:
        """Work until dry or out of time."""
        try:
            while self._step():
                pass
        finally:
            try:
                self._finish()
            finally:  # whatever interrupts that, too
                self._slots.close()
                self._runtime.watch(self._report)
        return self._report

    def _step(self) -> bool:
        if not self._claim(final=False) and not self._has_work():
            self._flush(force=True)
            with self._within():
                self._recover()  # so that the last look finds what was stamped unseen
            if not self._goes_on():
                return False
        self._note()
        ended = self._slots.ended(wait=self._wait())
        late = self._slots.overdue()
        if self._has_work() or ended:
            self._waiting.worked()
        self._pace.ended(len(ended) + len(late))
        self._settle(ended, late)
        self._starting.fill()
        self._report.backlog = self._report.backlog or self._starting.leaves_some
        is_waited_for = any(self._caps.is_full(one.task.queue) for one in (*(end.running for end in ended), *late))
        self._flush(force=is_waited_for or not self._has_work())
        self._write_statistics(force=False)
        running = self._slots.running
        with self._within():
            if self._has_work():
                self._starting.cancel(self._cancellations.look(running))
            if self._leases.extend(running) or self._giving_back.is_due:
                self._recover()
            self._present.say()
            self._recruit()
        self._note()
        self._runtime.watch(self._report)
        return True

    def _recover(self) -> bool:
        """Give back what no look has seen; false where some of it may be left."""
        before = self._report["released"]
        is_done = self._giving_back.recover(started=self._held.ids)
        if self._report["released"] > before:
            self._claimer.was_thorough = False
            self._report.backlog = True
        return is_done

    def _note(self) -> None:
        self._life.note(
            running=len(self._slots.running),
            trouble=self._claimer.trouble or self._settler.trouble,
            answered=self._claimer.answered,
            not_started=self._report.not_started,
        )

    def _has_work(self) -> bool:
        return bool(self._slots.running or len(self._starting))

    def _goes_on(self) -> bool:
        """Look once more, or wait for more; false where it is time to leave."""
        if not self._may_claim():
            return False
        if self._starting.takes_back():
            self._next_claim = 0.0
            return True
        if self._waits():
            return True
        if self._claimer.was_thorough:
            return False
        # What kept it from waiting, trouble, may be over now.
        return self._claim(final=True) or self._waiting.tries_again(self._claimer) or self._waits()

    def _waits(self) -> bool:
        if not self._waiting.waits(self._claimer):
            return False
        self._next_claim = 0.0
        return True

    # Claiming

    def _claim(self, *, final: bool) -> bool:
        """Fill free slots; true where anything was claimed."""
        room = self._room()
        if not self._may_claim() or room <= 0 or (self._monotonic() < self._next_claim and not final):
            return False
        began = self._monotonic()
        with self._within():
            claimed = self._claimer.claim(
                free=room,
                # What is held ahead has its share, too.
                slots=max(self._slots.size, len(self._slots.running) + len(self._starting) + room),
                in_hand=[*(one.task for one in self._slots.running), *self._starting.waiting],
                now=self._now(),
                idle=not self._has_work(),
                final=final,
            )
            self._giving_back.look_for(self._claimer.unseen_tokens)
            self._starting.take(claimed)
            self._starting.fill()
        self._report.backlog = len(claimed) == room or self._claimer.left_some or self._starting.leaves_some
        if claimed:
            self._pace.claimed(began=began, took=self._monotonic() - began)
        else:
            self._give_up_if_useless()
        self._next_claim = 0.0 if claimed else self._monotonic() + self._pause()
        return bool(claimed)

    def _pause(self) -> float:
        """Return how long not to ask for more: hardly, where there is more and others were quicker."""
        beaten = self._claimer.beaten
        return pause_after(beaten, draw=self._runtime.rng.random()) if beaten else MAX_WAIT_SEC

    def _may_claim(self) -> bool:
        return self._life.may_claim() and not self._report.spent

    def _room(self) -> int:
        """Return how many more tasks to claim: for what is free, and for what one claim lets end."""
        ahead = self._ahead()
        free, waiting = self._slots.free, len(self._starting)
        # Few at a time are not worth the round trips, unless slots stand empty or are about to.
        is_time = free or waiting < min(ahead, self._slots.size) / 2
        return min(free + ahead - waiting, self._batch_size) if is_time else 0

    def _ahead(self) -> int:
        slots, at = self._slots.size, self._monotonic()
        if self._claimer.retries_go_first:  # one that comes due cannot go before what is held already
            return self._pace.ahead(slots=slots, at=at)
        return self._pace.supply(slots=slots, most=self._batch_size, at=at)

    def _give_up_if_useless(self) -> None:
        trouble = self._claimer.trouble
        if trouble is not None and not self._report["claimed"] and not self._life.persists:
            raise trouble

    def _recruit(self) -> None:
        is_busy = not self._slots.free or not self._may_claim()
        if self._recruiter is not None and self._report.backlog and is_busy:
            self._recruiter.look(self._claimer.queues, report=self._report, slots=self._slots.size)

    # Settling, watching, leaving

    def _settle(self, ended: Sequence[Ended], late: Sequence[Running]) -> None:
        unstarted = [one for one in ended if isinstance(one.conclusion, NotStarted)]
        with self._within():
            settlements = [self._judge.ended(one) for one in ended if one not in unstarted]
            settlements += map(self._judge.late, late)
            self._put_off(unstarted)
        for settlement in settlements:
            self._settler.add(settlement)
            self._report["timed_out"] += settlement.run is not None and settlement.run.status == "timed_out"
        self._report["errors"] += len(unstarted)

    def _put_off(self, unstarted: Sequence[Ended]) -> None:
        for one in unstarted:
            if isinstance(one.conclusion, NotStarted):
                self._report.not_started = self._report.not_started or one.conclusion.description
        isolated = [one.running for one in unstarted if one.running.is_isolated]
        threadless = [one.running.task for one in unstarted if not one.running.is_isolated]
        if isolated:
            self._starting.postpone(isolated)
        if threadless:  # functions have used up what threads a process may have: another one can do better
            self._starting.give_back(threadless, shun_sec=self._life.shun_sec)
            self._report.spent = True

    def _flush(self, *, force: bool) -> None:
        if not (force or self._settler.is_due()):
            return
        now = self._now()
        with self._within():
            verdict = self._settler.flush(now=now)
            over = [one.task for one in (*verdict.settled, *verdict.lost, *verdict.stuck)]
            if self._caps.ended(over, now=now):
                self._next_claim = 0.0  # what was denied before may be had now
                self._report.backlog = self._report.backlog or not self._may_claim()  # by others
        self._held.drop(over)
        self._tally.settled(verdict.settled, now=now)
        for settlement in verdict.settled:
            self._runtime.observe(settlement)
            outcome, task = settlement.outcome, settlement.task
            if isinstance(outcome, Retried) and isinstance(task, Task):
                self._claimer.put_back(task, due_at=outcome.next_retry_at, lane="retry")

    def _finish(self) -> None:
        self._leave_by = self._monotonic() + min(self._life.remaining().total_seconds() - LAST_SECONDS, LAST_TRIES_SEC)
        if len(self._starting):
            self._report.backlog = True
            with self._within():
                self._starting.give_back(self._starting.waiting, shun_sec=self._life.shun_sec)
        while len(self._settler) and self._monotonic() < self._leave_by:
            self._flush(force=True)
            if len(self._settler):
                time.sleep(min(max((self._settler.next_flush() or 0) - self._monotonic(), 0), 1.0))
        self._settler.give_up()
        with self._within():
            if self._recover():
                self._caps.close(now=self._now())
            self._present.leave()
        self._write_statistics(force=True)
        self._report.backlog = self._report.backlog and not self._may_claim()
        self._report["leftovers"] += self._slots.leftovers(wait=self._patience())

    def _patience(self) -> float:
        """Return how long to wait for functions that were interrupted: coroutines clean up first."""
        return max(min(self._life.remaining().total_seconds() - LAST_SECONDS, LAST_PATIENCE_SEC), 0.0)

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
        moments = [
            self._slots.next_deadline(),
            self._settler.next_flush(),
            self._cancellations.next_look,
            self._leases.next_extension,
        ]
        if self._room() > 0 and self._may_claim():
            moments.append(self._next_claim)
        first = min(moment for moment in moments if moment is not None)
        return min(max(first - self._monotonic(), 0.0), MAX_WAIT_SEC)

    def _within(self) -> AbstractContextManager[None]:
        """Bound an operation by the life of the invocation: past that nobody reads its answer."""
        left = min(self._life.remaining().total_seconds() - LAST_SECONDS / 2, self._leave_by - self._monotonic() + 1)
        return within(min(left, OPERATION_SEC))

    def _lease_until(self) -> datetime:
        # Read now: a time that was read before a slow operation would end the lease before the invocation.
        return self._life.lease_until(self._now())

    def _now(self) -> datetime:
        return self._runtime.clock.now()
