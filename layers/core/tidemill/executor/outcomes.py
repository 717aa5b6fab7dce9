"""Settlements of attempts: decided from the results of the functions, gathered, written in bulk, and logged.

`after_end` and `after_timeout` are pure. `OutcomeDecider` supplies the time, the draw, the policies and the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, assert_never

from tidemill.control.queues import PressureMonitor
from tidemill.errors import TaskTimeoutError, TidemillError
from tidemill.executor.context import ExecutionContext, Runtime
from tidemill.model import (
    OUTCOME_NAMES,
    Cancelled,
    Failed,
    Failure,
    Outcome,
    Retried,
    RetryPolicy,
    Run,
    Snoozed,
    Succeeded,
    Task,
)
from tidemill.policy.failures import (
    COMMON,
    MAX_MESSAGE_CHARS,
    MAX_NOTE_CHARS,
    Rules,
    is_retried,
    plan_snooze,
    truncate_text,
)
from tidemill.policy.retry import NO_LOAD, Load, decide_after_failure, decide_after_loss
from tidemill.runner.results import Crashed, Lost, NotStarted, Raised, Returned, SnoozeRequested, TimedOut
from tidemill.runner.worker_thread import FinishedRun, RunningTask
from tidemill.store import settle
from tidemill.store.settle import Settlement, SettleResult
from tidemill.text import format_error

FLUSH_SIZE: Final = 100
"""Number of settlements that are written at once, without waiting."""

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Inputs of a decision: the task's policy, its function's rules, its queue's load, the time, a draw in [0, 1)."""

    policy: RetryPolicy
    rules: Rules = COMMON
    load: Load = NO_LOAD
    now: datetime
    draw: float


def after_end(ended: FinishedRun, terms: Terms) -> Settlement:
    """Return the settlement of an attempt whose run has ended.

    Raises:
        ValueError: The function was not called; the caller must release the task.
    """
    match ended.result:
        case Returned(result=result):
            return _build_settlement(ended, Succeeded(result=result))
        case Raised(failure=failure):
            return _build_settlement(ended, _decide_failure(failure, ended.running, terms))
        case SnoozeRequested(until=until):
            return _build_settlement(ended, plan_snooze(until, now=terms.now))
        case Crashed(description=description):
            return _settle_crash(ended, description, terms)
        case Lost(description=description):
            return _settle_loss(ended, description, terms)
        case TimedOut():
            return _settle_timeout(ended.running, terms, by_function=True)
        case NotStarted(description=description):
            raise ValueError(f"nothing to settle: {description}")
        case _:
            assert_never(ended.result)


def after_timeout(late: RunningTask, terms: Terms) -> Settlement:
    """Return the settlement of an attempt that exceeded its timeout and was abandoned.

    An abandoned process did not report that its function began, so that timeout does not count as the function's.
    """
    return _settle_timeout(late, terms, by_function=not late.is_isolated)


class OutcomeDecider:
    """Decides the settlements of one execution. It may read the load of a queue, at most once a second."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loads = PressureMonitor(runtime.tasks, runtime.options, monotonic=runtime.monotonic)

    def decide(self, ended: Iterable[FinishedRun], overdue: Iterable[RunningTask]) -> list[Settlement]:
        """Return the settlements of attempts whose functions ended, and of attempts that exceeded their timeout."""
        settlements = [self._decide(end.running, partial(after_end, end)) for end in ended]
        return settlements + [self._decide(late, partial(after_timeout, late)) for late in overdue]

    def _decide(self, running: RunningTask, decide: Callable[[Terms], Settlement]) -> Settlement:
        runtime, task, now = self._runtime, running.task, self._runtime.clock.now()
        terms = Terms(
            policy=runtime.policy(task),
            rules=runtime.rules(task),
            load=self._loads.current_load(task.queue, now=now),
            now=now,
            draw=runtime.rng.random(),
        )
        settlement = decide(terms)
        if running.cancel.is_set() and not isinstance(settlement.outcome, Succeeded):
            # The write stores this outcome anyway; the counts must agree.
            return replace(settlement, outcome=Cancelled())
        if isinstance(settlement.outcome, Retried):
            self._loads.count_retry(task.queue)
        return settlement


class Settler:
    """Writes settlements within a fraction of a second of their addition, on the thread that calls it.

    After a failure the settlements are kept and written again, with growing pauses. A settlement that took effect
    without an answer is recognised by its token.
    """

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._pending: list[Settlement] = []
        self._due_at = 0.0
        self._pause = 0.0
        self._error: TidemillError | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def error(self) -> TidemillError | None:
        """The error of the last flush, or ``None`` if it succeeded."""
        return self._error

    def add(self, settlement: Settlement) -> None:
        """Add *settlement* to the next flush."""
        if not self._pending:
            self._due_at = self._context.monotonic() + self._context.timing.flush_sec
        self._pending.append(settlement)

    def next_flush(self) -> float | None:
        """Return the time of the next flush on the monotonic clock, or ``None`` if nothing is pending."""
        return self._due_at if self._pending else None

    def is_due(self) -> bool:
        """Return whether a flush is due now."""
        is_full = len(self._pending) >= FLUSH_SIZE and not self._pause
        return bool(self._pending) and (is_full or self._context.monotonic() >= self._due_at)

    def flush(self, *, now: datetime) -> SettleResult:
        """Try to write all pending settlements, and return the verdict. After a failure `error` has the cause."""
        if not self._pending:
            return SettleResult()
        timing, report = self._context.timing, self._context.report
        try:
            verdict = settle.settle(self._context.tasks, self._pending, now=now)
        except TidemillError as error:
            report["errors"] += 1
            self._error = error
            self._pause = min(max(self._pause * 2, timing.first_flush_pause_sec), timing.longest_flush_pause_sec)
            self._due_at = self._context.monotonic() + self._pause
            return SettleResult()
        self._pause = 0.0
        self._error = None
        self._pending.clear()
        for settlement in verdict.settled:
            report.count_outcome(settlement.outcome)
        report["lost"] += len(verdict.lost)
        report["write_rejected"] += len(verdict.stuck)
        return verdict

    def give_up(self) -> None:
        """Count the pending settlements as unknown; their leases expire or they took effect."""
        self._context.report["unknown"] += len(self._pending)
        self._pending.clear()


def is_failure(settlement: Settlement) -> bool:
    """Return whether the attempt failed, with or without a retry, or was lost with its worker."""
    return settlement.lost or isinstance(settlement.outcome, Retried | Failed)


def should_log(settlement: Settlement) -> bool:
    """Return whether the attempt gets a log line: it failed, or its task has a correlation or trace id.

    Tasks that were enqueued over HTTP or by a direct invocation have one; tasks of `Queue` do not need one.
    """
    task = settlement.task
    return is_failure(settlement) or (isinstance(task, Task) and (task.correlation_id or task.traceparent) is not None)


def log_fields(settlement: Settlement) -> dict[str, Any]:
    """Return the log fields of the attempt."""
    task, outcome, run = settlement.task, settlement.outcome, settlement.run
    fields: dict[str, Any] = {"task_id": str(task.id), "outcome": _name_outcome(settlement)}
    if isinstance(task, Task):
        fields |= {"task_name": task.name, "queue": task.queue, "attempt": task.attempts}
        ids = {"correlation_id": task.correlation_id, "traceparent": task.traceparent}
        fields |= {name: value for name, value in ids.items() if value is not None}
    if isinstance(outcome, Retried | Failed):
        fields["code"] = outcome.failure.code
    if isinstance(outcome, Failed):
        fields["reason"] = outcome.reason
    if run is not None:
        fields["duration_ms"] = run.duration // _MS
    return fields


def _decide_failure(failure: Failure, running: RunningTask, terms: Terms) -> Retried | Failed:
    attempts = running.task.attempts
    return decide_after_failure(
        failure, terms.policy, attempts=attempts, now=terms.now, draw=terms.draw, load=terms.load
    )


def _settle_crash(ended: FinishedRun, description: str, terms: Terms) -> Settlement:
    failure = Failure(message=truncate_text(description, MAX_MESSAGE_CHARS), code="crashed", by_function=False)
    outcome = _decide_failure(failure, ended.running, terms)
    if isinstance(outcome, Failed):
        outcome = replace(outcome, reason="worker_lost")
    return replace(_build_settlement(ended, outcome), crashed=True)


def _settle_loss(ended: FinishedRun, description: str, terms: Terms) -> Settlement:
    task, note = ended.running.task, _build_note(truncate_text(description, MAX_NOTE_CHARS), ended.running)
    outcome = decide_after_loss(task, terms.policy, now=terms.now, draw=terms.draw, load=terms.load)
    run = Run(started_at=ended.running.started_at, duration=ended.duration, status="lost", note=note)
    return Settlement(task=task, outcome=outcome, run=run, lost=True)


def _settle_timeout(running: RunningTask, terms: Terms, *, by_function: bool) -> Settlement:
    allowed = timedelta(seconds=running.ctx.deadline - running.started)
    failure = Failure(
        message=f"it ran longer than {allowed.total_seconds():g} s",
        code="timeout",
        retryable=is_retried(TaskTimeoutError, terms.rules),
        by_function=by_function,
    )
    run = Run(
        started_at=running.started_at, duration=allowed, status="timed_out", note=_build_note(failure.message, running)
    )
    return Settlement(task=running.task, outcome=_decide_failure(failure, running, terms), run=run)


def _build_settlement(ended: FinishedRun, outcome: Outcome) -> Settlement:
    failure = outcome.failure if isinstance(outcome, Retried | Failed) else None
    run = Run(
        started_at=ended.running.started_at,
        duration=ended.duration,
        status="succeeded" if failure is None else "failed",
        note=_build_note("" if failure is None else _describe_failure(failure), ended.running),
    )
    return Settlement(task=ended.running.task, outcome=outcome, run=run)


def _build_note(cause: str, running: RunningTask) -> str:
    """Return the note of an attempt: the *cause* of its end, if any, and the note of its function."""
    return "; ".join(part for part in (cause, running.note) if part)


def _describe_failure(failure: Failure) -> str:
    return truncate_text(format_error(failure.code, failure.message), MAX_NOTE_CHARS)


def _name_outcome(settlement: Settlement) -> str:
    is_refunded = settlement.lost and isinstance(settlement.outcome, Snoozed)
    return "reclaimed" if is_refunded else OUTCOME_NAMES[type(settlement.outcome)]
