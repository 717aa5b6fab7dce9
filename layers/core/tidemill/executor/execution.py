"""The main thread of an execution: claim, start, collect, settle and decide the next step, until idle or late."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from tidemill.executor.arrivals import Arrivals
from tidemill.executor.claimer import Claimer, ClaimResult
from tidemill.executor.context import ExecutionContext, ExecutionOptions, Report, Runtime
from tidemill.executor.dispatcher import Dispatcher
from tidemill.executor.heartbeat import Heartbeat
from tidemill.executor.idle import ClaimBackoff, Continue, Idle, NextStep, Stop, Wait, compute_pause
from tidemill.executor.lifetime import Invocation, Lifetime, Worker, claim_reserve
from tidemill.executor.outcomes import OutcomeDecider, Settler
from tidemill.executor.retry_permits import RetryPermits
from tidemill.executor.scaling import ScaleOut
from tidemill.model import Lane, Retried, Snoozed, Task
from tidemill.runner.process_pool import count_cores
from tidemill.runner.resources import CLOSE_TIMEOUT_SEC
from tidemill.runner.results import NotStarted
from tidemill.runner.thread_pool import ThreadPool
from tidemill.runner.worker_thread import FinishedRun, RunningTask
from tidemill.store.connection import limit_time
from tidemill.store.settle import Settlement
from tidemill.store.stats import StatsRecorder


def execute(runtime: Runtime, options: ExecutionOptions, *, scale_out: ScaleOut | None = None) -> Report:
    """Run due tasks until none is left or the time is up, and return the counts.

    *scale_out* launches other executors if this one cannot keep up. An execution that stops at any point leaves only
    leases, which end with the invocation.

    Raises:
        TidemillError: No claim succeeded because MongoDB failed.
    """
    reserve = claim_reserve(runtime.settings)
    lifetime = Invocation(options.remaining, reserve=reserve, monotonic=runtime.monotonic)
    return Execution(runtime, options, lifetime, scale_out).run() if lifetime.may_claim() else Report(skipped="time")


def work(runtime: Runtime, options: ExecutionOptions, worker: Worker) -> Report:
    """Run tasks as they become due until *worker* stops, finish the started ones, and return the counts.

    Leases are short and extended. If MongoDB does not answer, the claim is repeated until it does.
    """
    return Execution(runtime, options, worker).run()


class Execution:
    """One execution, bounded by *lifetime*. One thread runs it; the functions run in threads of the pool."""

    def __init__(
        self, runtime: Runtime, options: ExecutionOptions, lifetime: Lifetime, scale_out: ScaleOut | None = None
    ) -> None:
        context = ExecutionContext(runtime=runtime, options=options, lifetime=lifetime)
        self._context = context
        self._report = context.report
        self._scale_out = scale_out
        self._batch_size = options.batch_size or runtime.settings.batch_size
        self._pool = ThreadPool(
            options.concurrency or runtime.settings.concurrency,
            monotonic=runtime.monotonic,
            isolation=runtime.isolation,
            keeps_tracebacks=runtime.keeps_tracebacks,
        )
        self._permits = RetryPermits(context)
        self._settler = Settler(context)
        self._dispatcher = Dispatcher(
            context,
            pool=self._pool,
            settler=self._settler,
            permits=self._permits,
            core_count=options.isolated_concurrency or runtime.settings.isolated_concurrency or count_cores(),
        )
        self._claimer = Claimer(context, permits=self._permits, avoided=self._dispatcher.find_avoided_ids)
        self._outcomes = OutcomeDecider(runtime)
        self._heartbeat = Heartbeat(context, permits=self._permits, find_leased=self._dispatcher.find_leased)
        self._statistics = StatsRecorder(runtime.tasks, slots=self._pool.size, monotonic=runtime.monotonic)
        self._prefetch = runtime.make_prefetch(context.timing)
        self._idle = Idle(context)
        self._arrivals = Arrivals(context)
        self._claimed = ClaimResult()
        self._backoff = ClaimBackoff()
        self._has_returned = False
        self._next_claim_at = 0.0
        self._is_core_bound = False
        self._end_by = math.inf

    def run(self) -> Report:
        """Run until idle or out of time, and return the counts."""
        next_step: NextStep = Continue()
        try:
            while not isinstance(next_step, Stop):
                next_step = self._step(next_step)
        finally:
            try:
                self._finish()
            finally:  # also after an exception in it
                self._arrivals.close()
                self._pool.close(wait=max(min(self._seconds_left(), CLOSE_TIMEOUT_SEC), 0.0))
                self._context.runtime.watch(self._report)
        return self._report

    def _step(self, step: Continue | Wait) -> NextStep:
        if isinstance(step, Wait):
            self._claim(thorough=self._wait(step.seconds))
        else:
            self._claim(thorough=step.thorough)
            self._arrivals.close_unused()
        self._record_status()
        ended, overdue = self._collect()
        self._decide_outcomes(ended, overdue)
        self._dispatch()
        self._flush(force=not self._is_busy or self._frees_permits(ended, overdue))
        self._record_status()
        self._beat()
        self._launch_if_behind()
        if self._statistics.is_due:
            self._write_statistics()
        self._context.runtime.watch(self._report)
        return self._decide_next_step()

    def _wait(self, seconds: float) -> bool:
        """Wait before the next claim; return True if tasks may have arrived meanwhile."""
        if self._context.lifetime.persists and self._claimed.error is None:
            return self._arrivals.wait()
        self._context.lifetime.pause(seconds)
        return False

    @property
    def _is_busy(self) -> bool:
        return self._pool.free < self._pool.size or self._dispatcher.has_waiting

    @property
    def _has_backlog(self) -> bool:
        """True if due tasks may be left that this execution does not run now."""
        return self._claimed.more_due or self._has_returned or self._dispatcher.has_released

    # Claim and dispatch

    def _claim(self, *, thorough: bool) -> None:
        """Claim tasks for free slots, if a claim is due."""
        room = self._compute_room()
        if room <= 0 or not self._context.may_claim():
            return
        if self._context.monotonic() < self._next_claim_at:
            return
        began = self._context.monotonic()
        with self._limit_time():
            self._claimed = self._claimer.claim(
                free=room,
                # Prefetched tasks count as slots, so that every queue gets its share of them.
                slots=max(self._pool.size, len(self._pool.running) + len(self._dispatcher.waiting) + room),
                in_hand=[*(run.task for run in self._pool.running), *self._dispatcher.waiting],
                now=self._context.now(),
                idle=not self._is_busy,
                thorough=thorough,
            )
            took = self._context.monotonic() - began  # without the tasks, which may have started and ended below
            self._dispatcher.add(self._claimed.tasks, unconfirmed_tokens=self._claimed.unconfirmed_tokens)
            lacking = self._dispatcher.fill_slots()
        self._arrivals.record_claim(self._claimed.tasks)
        self._has_returned = False
        self._backoff = self._backoff.after(self._claimed)
        self._statistics.count_overtakes(self._claimed.overtaking)
        if self._claimed.tasks:
            self._prefetch.record_claim(began=began, took=took)
            self._is_core_bound = lacking > 0
            self._next_claim_at = self._context.monotonic() + self._context.timing.core_pause_sec if lacking else 0.0
        else:
            error = self._claimed.error
            if error is not None and not self._report["claimed"] and not self._context.lifetime.persists:
                raise error
            self._next_claim_at = self._context.monotonic() + self._compute_claim_pause()

    def _dispatch(self) -> None:
        if self._dispatcher.has_waiting:
            with self._limit_time():
                self._dispatcher.fill_slots()
        if (self._is_core_bound or self._dispatcher.lacks_cores) and self._dispatcher.has_unused_core:
            self._use_core()

    def _use_core(self) -> None:
        """Claim at once for a core that became free, the tasks first that were released for want of one."""
        for task in self._dispatcher.withdraw_offers_for_core():
            self._claimer.put_back(task, due_at=task.due_at, lane=task.lane)
            self._has_returned = True
        self._is_core_bound = False
        self._next_claim_at = 0.0

    def _compute_claim_pause(self) -> float:
        """Return the seconds until the next claim: few if other executors were faster, because tasks may be left."""
        timing = self._context.timing
        if not self._backoff.contended:
            return timing.step_wait_sec
        return compute_pause(self._backoff.contended, timing=timing, draw=self._context.draw())

    def _compute_room(self) -> int:
        """Return the number of tasks to claim: for free slots, and to prefetch."""
        prefetch = self._compute_prefetch()
        free, waiting = self._pool.free, self._dispatcher.waiting_count
        # A few tasks are not worth a round trip, unless slots are free or will be soon.
        is_time = free or waiting < min(prefetch, self._pool.size) / 2
        return min(free + prefetch - waiting, self._batch_size) if is_time else 0

    def _compute_prefetch(self) -> int:
        slots, at = self._pool.size, self._context.monotonic()
        if self._claimed.retries_first:  # a retry that becomes due cannot overtake prefetched tasks
            return self._prefetch.size_within_slots(slots=slots, at=at)
        return self._prefetch.size(slots=slots, most=self._batch_size, at=at)

    # Collect and settle

    def _collect(self) -> tuple[list[FinishedRun], list[RunningTask]]:
        """Wait for functions to end. Return those that have ended, and those that are abandoned past their timeout."""
        ended = self._pool.collect(wait=self._compute_wait())
        overdue = self._pool.abandon_overdue()
        if self._is_busy or ended:
            self._idle.record_work()
        self._prefetch.record_ended(len(ended) + len(overdue))
        return ended, overdue

    def _compute_wait(self) -> float:
        """Return the seconds to wait for the end of a function, until something else is due."""
        if self._pool.free == self._pool.size:
            return 0.0
        moments = [self._pool.next_deadline(), self._settler.next_flush(), self._heartbeat.next_beat_at]
        if self._compute_room() > 0 and self._context.may_claim():
            moments.append(self._next_claim_at)
        first = min(moment for moment in moments if moment is not None)
        return min(max(first - self._context.monotonic(), 0.0), self._context.timing.step_wait_sec)

    def _decide_outcomes(self, ended: Sequence[FinishedRun], overdue: Sequence[RunningTask]) -> None:
        """Decide the outcomes, and release the tasks whose functions could not start."""
        if not ended and not overdue:
            return
        not_started = [end for end in ended if isinstance(end.result, NotStarted)]
        with self._limit_time():
            settlements = self._outcomes.decide([end for end in ended if end not in not_started], overdue)
            self._release_not_started(not_started)
        for settlement in settlements:
            self._settler.add(settlement)
            self._report["timed_out"] += settlement.run is not None and settlement.run.status == "timed_out"

    def _release_not_started(self, ended: Sequence[FinishedRun]) -> None:
        self._report["errors"] += len(ended)
        for end in ended:
            if isinstance(end.result, NotStarted):
                self._report.not_started = self._report.not_started or end.result.description
        self._dispatcher.postpone([end.running for end in ended if end.running.is_isolated])
        without_thread = [end.running.task for end in ended if not end.running.is_isolated]
        if without_thread:  # abandoned functions occupy all threads of this process: another one must run these tasks
            self._dispatcher.release(without_thread)
            self._report.spent = True

    def _frees_permits(self, ended: Sequence[FinishedRun], overdue: Sequence[RunningTask]) -> bool:
        """Return whether a retry has ended in a queue whose retries wait for permits."""
        runs = [*(end.running for end in ended), *overdue]
        return any(self._permits.is_full(run.task.queue) for run in runs)

    def _flush(self, *, force: bool) -> None:
        if not (force or self._settler.is_due()):
            return
        now = self._context.now()
        with self._limit_time():
            verdict = self._settler.flush(now=now)
            finished = [settlement.task for settlement in (*verdict.settled, *verdict.lost, *verdict.stuck)]
            if self._permits.release_ended(finished, now=now):
                self._next_claim_at = 0.0  # retries that were denied may be granted now
                self._has_returned = True
        self._dispatcher.forget(finished)
        self._statistics.count_settled(verdict.settled, now=now)
        for settlement in verdict.settled:
            self._context.runtime.observe(settlement)
            self._put_back(settlement, now=now)

    def _put_back(self, settlement: Settlement, *, now: datetime) -> None:
        """Tell the claimer of a task that is pending again."""
        match settlement:
            case Settlement(task=Task() as task, outcome=Retried(next_retry_at=due_at)):
                lane: Lane = "retry"
            case Settlement(task=Task() as task, outcome=Snoozed(until=due_at)):
                lane = task.lane
            case _:
                return
        self._claimer.put_back(task, due_at=due_at, lane=lane)
        self._has_returned = self._has_returned or due_at <= now

    # Beside the tasks

    def _beat(self) -> None:
        """Do what is due beside the running tasks, and release what no claim of this execution should hold."""
        with self._limit_time():
            beat = self._heartbeat.beat(self._pool.running, is_busy=self._is_busy)
            self._dispatcher.forget(beat.lost)
            self._dispatcher.cancel(beat.cancelled)
            if self._dispatcher.is_recovery_due or not self._is_busy:
                self._recover()

    def _recover(self) -> bool:
        """Release unconfirmed claims. Return false if some may be left."""
        recovery = self._dispatcher.recover()
        self._has_returned = self._has_returned or recovery.released > 0
        return recovery.is_complete

    def _launch_if_behind(self) -> None:
        is_full = not self._pool.free or self._dispatcher.lacks_cores or not self._context.may_claim()
        if self._scale_out is not None and self._has_backlog and is_full:
            with self._limit_time():
                self._scale_out.launch_if_behind(self._claimed.queues, report=self._report, slots=self._pool.size)

    def _record_status(self) -> None:
        """Tell the lifetime how the execution stands, as soon as that may have changed: a next operation may hang."""
        self._context.lifetime.record_status(
            running=self._pool.size - self._pool.free,
            error=self._claimed.error or self._settler.error,
            answered=self._claimed.answered,
            not_started=self._report.not_started,
        )

    def _write_statistics(self) -> None:
        with self._limit_time():
            self._context.attempt(lambda: self._statistics.write(now=self._context.now()), default=None)

    def _decide_next_step(self) -> NextStep:
        if not self._is_busy and self._dispatcher.withdraw_offers():
            self._has_returned = True
        next_step = self._idle.next_step(
            self._claimed, self._backoff, is_busy=self._is_busy, has_returned=self._has_returned
        )
        if not self._is_busy:
            self._next_claim_at = 0.0
        return next_step

    # End

    def _finish(self) -> None:
        """Release what has not started, and write the last outcomes while time is left."""
        timing = self._context.timing
        self._end_by = self._context.monotonic() + min(self._seconds_left(), timing.final_flush_sec)
        with self._limit_time():
            self._dispatcher.release_waiting()
        while len(self._settler) and self._context.monotonic() < self._end_by:
            self._flush(force=True)
            if len(self._settler):
                time.sleep(min(max((self._settler.next_flush() or 0) - self._context.monotonic(), 0), 1.0))
        self._settler.give_up()
        with self._limit_time():
            if self._recover():
                self._permits.close(now=self._context.now())
            self._heartbeat.deregister()
        self._write_statistics()
        self._report.backlog = self._has_backlog and not self._context.may_claim()
        cleanup_sec = max(min(self._seconds_left(), timing.cleanup_wait_sec), 0.0)
        self._report["leftovers"] += self._pool.abandoned_threads(wait=cleanup_sec)

    def _seconds_left(self) -> float:
        """Return the seconds until the report is due."""
        return self._context.lifetime.remaining().total_seconds() - self._context.timing.report_reserve_sec

    def _limit_time(self) -> AbstractContextManager[None]:
        """Bound operations by the remaining time, because a later answer is of no use."""
        timing = self._context.timing
        left = min(self._seconds_left() + timing.report_reserve_sec / 2, self._end_by - self._context.monotonic() + 1)
        return limit_time(min(left, timing.step_timeout_sec))
