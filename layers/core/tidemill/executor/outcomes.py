"""Decide the settlement of an attempt from the result of its function.

The functions are pure; time and draw are arguments. `OutcomeDecider` supplies both, the policies and the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from tidemill.control.pressure import PressureMonitor
from tidemill.errors import TaskTimeoutError
from tidemill.executor.context import Runtime
from tidemill.model import Cancelled, Failed, Failure, Malformed, Outcome, Retried, RetryPolicy, Run, Succeeded, Task
from tidemill.policy.failures import COMMON, MAX_MESSAGE_CHARS, Rules, is_retried, plan_snooze, truncate_text
from tidemill.policy.retry import NO_LOAD, Load, decide_after_failure, decide_after_loss
from tidemill.runner.results import Crashed, Lost, NotStarted, Raised, Returned, SnoozeRequested, TimedOut
from tidemill.runner.worker_thread import FinishedRun, RunningTask
from tidemill.store.outcomes import Settlement

MAX_NOTE_CHARS: Final = 200
"""Characters of the note in the log of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Inputs of the decision about a failed attempt: the task's policy, its function's rules, its queue's load."""

    policy: RetryPolicy
    rules: Rules = COMMON
    load: Load = NO_LOAD


def after_end(ended: FinishedRun, terms: Terms, *, now: datetime, draw: float) -> Settlement:
    """Return the settlement of an attempt whose run has ended.

    Raises:
        ValueError: The function was not called; the caller must release the task.
    """
    attempt = _Attempt(running=ended.running, terms=terms, now=now, draw=draw)
    match ended.result:
        case Returned(result=result):
            return _build_settlement(ended, Succeeded(result=result))
        case Raised(failure=failure):
            return _build_settlement(ended, attempt.decide_failure(failure))
        case SnoozeRequested(until=until):
            return _build_settlement(ended, plan_snooze(until, now=now))
        case Crashed(description=description):
            return _build_settlement(ended, attempt.decide_crash(description), crashed=True)
        case Lost(description=description):
            return attempt.settle_loss(description, duration=ended.duration)
        case TimedOut():
            return attempt.settle_timeout(by_function=True)
        case NotStarted(description=description):
            raise ValueError(f"nothing to settle: {description}")
        case _:
            assert_never(ended.result)


def after_timeout(late: RunningTask, terms: Terms, *, now: datetime, draw: float) -> Settlement:
    """Return the settlement of an attempt that exceeded its timeout and was abandoned.

    An abandoned process did not report that its function began, so that timeout does not count as the function's.
    """
    attempt = _Attempt(running=late, terms=terms, now=now, draw=draw)
    return attempt.settle_timeout(by_function=not late.is_isolated)


def fail_malformed(document: Malformed) -> Failed:
    """Return the outcome of a claimed document that is not a valid task."""
    failure = Failure(message=document.problem, code="malformed", retryable=False, by_function=False)
    return Failed(failure=failure, reason="malformed")


class OutcomeDecider:
    """Decides the settlements of one execution. It may read the load of a queue, at most once a second."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loads = PressureMonitor(runtime.tasks, runtime.options, monotonic=runtime.monotonic)

    def decide(self, ended: Iterable[FinishedRun], overdue: Iterable[RunningTask]) -> list[Settlement]:
        """Return the settlements of attempts that have ended, and of attempts that exceeded their timeout."""
        return [*map(self.decide_ended, ended), *map(self.decide_overdue, overdue)]

    def decide_ended(self, ended: FinishedRun) -> Settlement:
        """Return the settlement of an attempt whose function was called."""
        now = self._runtime.clock.now()
        terms = self._load_terms(ended.running.task, now=now)
        settlement = after_end(ended, terms, now=now, draw=self._runtime.rng.random())
        return self._apply_cancellation(settlement, ended.running)

    def decide_overdue(self, late: RunningTask) -> Settlement:
        """Return the settlement of an attempt that exceeded its timeout and was abandoned."""
        now = self._runtime.clock.now()
        terms = self._load_terms(late.task, now=now)
        return self._apply_cancellation(after_timeout(late, terms, now=now, draw=self._runtime.rng.random()), late)

    def _load_terms(self, task: Task, *, now: datetime) -> Terms:
        load = self._loads.current_load(task.queue, now=now)
        return Terms(policy=self._runtime.policy(task), rules=self._runtime.rules(task), load=load)

    def _apply_cancellation(self, settlement: Settlement, running: RunningTask) -> Settlement:
        if running.cancel.is_set() and not isinstance(settlement.outcome, Succeeded):
            # The write stores this outcome anyway; the counts must agree.
            return replace(settlement, outcome=Cancelled())
        if isinstance(settlement.outcome, Retried) and isinstance(settlement.task, Task):
            self._loads.count_retry(settlement.task.queue)
        return settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    running: RunningTask
    terms: Terms
    now: datetime
    draw: float

    def decide_failure(self, failure: Failure) -> Retried | Failed:
        attempts, policy, load = self.running.task.attempts, self.terms.policy, self.terms.load
        return decide_after_failure(failure, policy, attempts=attempts, now=self.now, draw=self.draw, load=load)

    def decide_crash(self, description: str) -> Retried | Failed:
        failure = Failure(message=truncate_text(description, MAX_MESSAGE_CHARS), code="crashed", by_function=False)
        outcome = self.decide_failure(failure)
        return replace(outcome, reason="worker_lost") if isinstance(outcome, Failed) else outcome

    def settle_loss(self, description: str, *, duration: timedelta) -> Settlement:
        task, policy, load = self.running.task, self.terms.policy, self.terms.load
        outcome = decide_after_loss(task, policy, now=self.now, draw=self.draw, load=load)
        note = truncate_text(description, MAX_NOTE_CHARS)
        run = Run(started_at=self.running.started_at, duration=duration, status="lost", note=note)
        return Settlement(task=task, outcome=outcome, run=run, lost=True)

    def settle_timeout(self, *, by_function: bool) -> Settlement:
        allowed = timedelta(seconds=self.running.ctx.deadline - self.running.started)
        failure = Failure(
            message=f"it ran longer than {allowed.total_seconds():g} s",
            code="timeout",
            retryable=is_retried(TaskTimeoutError, self.terms.rules),
            by_function=by_function,
        )
        run = Run(started_at=self.running.started_at, duration=allowed, status="timed_out", note=failure.message)
        return Settlement(task=self.running.task, outcome=self.decide_failure(failure), run=run)


def _build_settlement(ended: FinishedRun, outcome: Outcome, *, crashed: bool = False) -> Settlement:
    run = Run(
        started_at=ended.running.started_at,
        duration=ended.duration,
        status="failed" if isinstance(outcome, Retried | Failed) else "succeeded",
        note=_build_note(outcome),
    )
    return Settlement(task=ended.running.task, outcome=outcome, run=run, crashed=crashed)


def _build_note(outcome: Outcome) -> str:
    if not isinstance(outcome, Retried | Failed):
        return ""
    code, message = outcome.failure.code, outcome.failure.message
    return truncate_text(message if message.startswith(code) else f"{code}: {message}", MAX_NOTE_CHARS)
