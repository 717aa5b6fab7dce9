"""From what a function did to what is written of it: pure, with the clock and the draw as arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidemill.classify import COMMON, Rules, bounded, classify, is_retried, snoozed
from tidemill.errors import TaskTimeoutError
from tidemill.model import Failed, Failure, Malformed, Outcome, Retried, Run, Succeeded
from tidemill.policies import RetryPolicy
from tidemill.pressure import CALM, Load
from tidemill.results import storable
from tidemill.retry import after_failure
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
    """Return how the attempt of a function that returned or raised is settled."""
    outcome = _outcome(ended, terms, now=now, draw=draw)
    run = Run(
        started_at=ended.running.started_at,
        duration=ended.duration,
        status="failed" if isinstance(outcome, Retried | Failed) else "succeeded",
        note=_note(outcome),
    )
    return Settlement(task=ended.running.task, outcome=outcome, run=run)


def after_timeout(late: Running, terms: Terms, *, now: datetime, draw: float) -> Settlement:
    """Return how the attempt of a function that ran past its deadline is settled."""
    allowed = timedelta(seconds=late.ctx.deadline - late.started)
    failure = Failure(
        message=f"it ran longer than {allowed.total_seconds():g} s",
        code="timeout",
        retryable=is_retried(TaskTimeoutError, terms.rules),
    )
    outcome = after_failure(failure, terms.policy, attempts=late.task.attempts, now=now, draw=draw, load=terms.load)
    run = Run(started_at=late.started_at, duration=allowed, status="timed_out", note=failure.message)
    return Settlement(task=late.task, outcome=outcome, run=run)


def malformed(document: Malformed) -> Failed:
    """Return the outcome of a document that was claimed and cannot be a task."""
    failure = Failure(message=document.problem, code="malformed", retryable=False, by_function=False)
    return Failed(failure=failure, reason="malformed")


def _outcome(ended: Ended, terms: Terms, *, now: datetime, draw: float) -> Outcome:
    error = ended.error
    if error is None:
        return Succeeded(result=storable(ended.result))
    snooze = snoozed(error, now=now)
    if snooze is not None:
        return snooze
    failure = classify(error, terms.rules)
    attempts = ended.running.task.attempts
    return after_failure(failure, terms.policy, attempts=attempts, now=now, draw=draw, load=terms.load)


def _note(outcome: Outcome) -> str:
    if not isinstance(outcome, Retried | Failed):
        return ""
    code, message = outcome.failure.code, outcome.failure.message
    return bounded(message if message.startswith(code) else f"{code}: {message}", MAX_NOTE)
