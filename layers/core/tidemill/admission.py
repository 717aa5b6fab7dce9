"""Whether a claimed task may start: one pure decision between the claim and the run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from tidemill.model import Cancelled, Failed, Failure, Reason, Snoozed, Task

UNKNOWN_NAME_PATIENCE = timedelta(minutes=10)
UNKNOWN_NAME_SNOOZE = timedelta(seconds=15)
EXPIRED = "it was not started before its expires_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """It may run, for at most *timeout*."""

    timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """It cannot finish in the time that is left: somebody else may have it."""


Admission: TypeAlias = Start | Release | Failed | Snoozed | Cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What admission needs to know of the task's function and of the deployment.

    ``timeout`` and ``max_retries`` are the resolved ones: task, then registration, then deployment.
    """

    known: bool
    timeout: timedelta
    max_retries: int
    max_timeout: timedelta
    margin: timedelta


def admit(task: Task, limits: Limits, *, now: datetime, remaining: timedelta) -> Admission:
    """Decide whether the claimed *task* starts. Nothing that is refused counts as an attempt.

    *remaining* is what is left of the invocation. ``exhausted`` looks at the attempts before this claim.
    """
    refusal = _refusal(task, limits, now=now)
    if refusal is not None:
        return refusal
    if limits.timeout + limits.margin > remaining:
        return Release()
    return Start(timeout=limits.timeout)


def was_started(task: Task, *, attempts: int) -> bool:
    """Tell whether *task* may have been started before its ``expires_at``, in *attempts* or in one that was lost.

    A claim that came too late itself was no start, though nobody lived to say so.
    """
    if attempts > 0 or task.crashes == 0:
        return attempts > 0
    if not task.attempt_log:
        return task.redrives == 0  # what came back begins anew, and so does its log
    return any(task.expires_at is None or line.started_at < task.expires_at for line in task.attempt_log)


def _refusal(task: Task, limits: Limits, *, now: datetime) -> Failed | Snoozed | Cancelled | None:
    if task.cancel_requested_at is not None:
        return Cancelled()
    is_over = task.expires_at is not None and task.expires_at <= now
    if is_over and not was_started(task, attempts=task.attempts - 1):
        return _failed("expired", EXPIRED)
    if task.attempts - 1 > limits.max_retries:
        return _failed("exhausted", f"it had used its {limits.max_retries} retries before this claim")
    if not limits.known:
        return _unknown(task, now=now)
    if limits.timeout > limits.max_timeout:
        return _failed("timeout_too_long", "its timeout is longer than an executor of this deployment lives")
    return None


def _unknown(task: Task, *, now: datetime) -> Failed | Snoozed:
    age = now - task.created_at
    if age < UNKNOWN_NAME_PATIENCE:
        # A deploy in progress. Waits grow with the age, so that an hour-long roll-out costs little.
        return Snoozed(until=now + max(UNKNOWN_NAME_SNOOZE, age / 4))
    return _failed("unknown_task", "no function of this name is registered")


def _failed(reason: Reason, message: str) -> Failed:
    return Failed(failure=Failure(message=message, code=reason, retryable=False, by_function=False), reason=reason)
