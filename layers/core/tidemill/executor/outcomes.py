"""From what a function did to what is written of it: pure, with the clock and the draw as arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from tidemill.classify import COMMON, MAX_MESSAGE, Rules, bounded, is_retried, snoozed
from tidemill.conclusions import Crashed, Lost, NotStarted, Overran, Raised, Returned, Snoozing
from tidemill.errors import TaskTimeoutError
from tidemill.model import Failed, Failure, Malformed, Outcome, Retried, Run, Succeeded
from tidemill.policies import RetryPolicy
from tidemill.pressure import CALM, Load
from tidemill.retry import after_failure, after_loss
from tidemill.settlement import Settlement
from tidemill.slots import Ended, Running

MAX_NOTE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What decides about a failed attempt: the task's policy, its function's rules, its queue's load."""

    policy: RetryPolicy
    rules: Rules = COMMON
    load: Load = CALM


def after_end(ended: Ended, terms: Terms, *, now: datetime, draw: float) -> Settlement:
    """Return how the attempt of a function that was called is settled, by what became of it.

    Raises:
        ValueError: It was not called: its task is to be given back.
    """
    attempt = _Attempt(running=ended.running, terms=terms, now=now, draw=draw)
    match ended.conclusion:
        case Returned(result=result):
            return _settled(ended, Succeeded(result=result))
        case Raised(failure=failure):
            return _settled(ended, attempt.failed(failure))
        case Snoozing(until=until):
            return _settled(ended, snoozed(until, now=now))
        case Crashed(description=description):
            return _settled(ended, attempt.crashed(description), crashed=True)
        case Lost(description=description):
            return attempt.lost(description, duration=ended.duration)
        case Overran():
            return attempt.overran(by_function=True)
        case NotStarted(description=description):
            raise ValueError(f"nothing to settle: {description}")
        case _:
            assert_never(ended.conclusion)


def after_timeout(late: Running, terms: Terms, *, now: datetime, draw: float) -> Settlement:
    """Return how the attempt of a function that was given up is settled.

    One in a process of its own that has to be given up never said whether the function began.
    """
    attempt = _Attempt(running=late, terms=terms, now=now, draw=draw)
    return attempt.overran(by_function=not late.is_isolated)


def malformed(document: Malformed) -> Failed:
    """Return the outcome of a document that was claimed and cannot be a task."""
    failure = Failure(message=document.problem, code="malformed", retryable=False, by_function=False)
    return Failed(failure=failure, reason="malformed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    running: Running
    terms: Terms
    now: datetime
    draw: float

    def failed(self, failure: Failure) -> Retried | Failed:
        attempts, policy, load = self.running.task.attempts, self.terms.policy, self.terms.load
        return after_failure(failure, policy, attempts=attempts, now=self.now, draw=self.draw, load=load)

    def crashed(self, description: str) -> Retried | Failed:
        failure = Failure(message=bounded(description, MAX_MESSAGE), code="crashed", by_function=False)
        outcome = self.failed(failure)
        return replace(outcome, reason="worker_lost") if isinstance(outcome, Failed) else outcome

    def lost(self, description: str, *, duration: timedelta) -> Settlement:
        task, policy, load = self.running.task, self.terms.policy, self.terms.load
        outcome = after_loss(task, policy, now=self.now, draw=self.draw, load=load)
        note = bounded(description, MAX_NOTE)
        run = Run(started_at=self.running.started_at, duration=duration, status="lost", note=note)
        return Settlement(task=task, outcome=outcome, run=run, lost=True)

    def overran(self, *, by_function: bool) -> Settlement:
        allowed = timedelta(seconds=self.running.ctx.deadline - self.running.started)
        failure = Failure(
            message=f"it ran longer than {allowed.total_seconds():g} s",
            code="timeout",
            retryable=is_retried(TaskTimeoutError, self.terms.rules),
            by_function=by_function,
        )
        run = Run(started_at=self.running.started_at, duration=allowed, status="timed_out", note=failure.message)
        return Settlement(task=self.running.task, outcome=self.failed(failure), run=run)


def _settled(ended: Ended, outcome: Outcome, *, crashed: bool = False) -> Settlement:
    run = Run(
        started_at=ended.running.started_at,
        duration=ended.duration,
        status="failed" if isinstance(outcome, Retried | Failed) else "succeeded",
        note=_note(outcome),
    )
    return Settlement(task=ended.running.task, outcome=outcome, run=run, crashed=crashed)


def _note(outcome: Outcome) -> str:
    if not isinstance(outcome, Retried | Failed):
        return ""
    code, message = outcome.failure.code, outcome.failure.message
    return bounded(message if message.startswith(code) else f"{code}: {message}", MAX_NOTE)
