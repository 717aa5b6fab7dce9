"""Admission: the pure decision between the claim and the run of a task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from tidemill.model import Cancelled, Failed, Failure, Reason, Snoozed, Task

UNKNOWN_NAME_GRACE = timedelta(minutes=10)
UNKNOWN_NAME_SNOOZE = timedelta(seconds=15)
EXPIRED = "it was not started before its expires_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The task may run, for at most *timeout*."""

    timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The time that is left is too short for the task: another executor may run it."""


Admission: TypeAlias = Start | Release | Failed | Snoozed | Cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Facts about the task's function and the deployment that admission needs.

    ``known``: a function of the task's name is registered. ``timeout`` and ``max_retries`` are resolved: the task's
    own, then those of the registration, then those of the deployment. ``margin`` is the time kept for settling.
    """

    known: bool
    timeout: timedelta
    max_retries: int
    max_timeout: timedelta
    margin: timedelta


def admit(task: Task, limits: Limits, *, now: datetime, remaining: timedelta) -> Admission:
    """Return the decision about the claimed *task*. A task that is not started spends no attempt.

    *remaining* is the time left of the invocation. The reason ``exhausted`` counts the attempts before this claim.
    """
    refusal = _find_refusal(task, limits, now=now)
    if refusal is not None:
        return refusal
    if limits.timeout + limits.margin > remaining:
        return Release()
    return Start(timeout=limits.timeout)


def has_started(task: Task, *, attempts: int) -> bool:
    """Return True if *task* may have started before its ``expires_at``, in one of *attempts* or in a lost run.

    A lost run that began after ``expires_at`` does not count: its claim came too late.
    """
    if attempts > 0 or task.crashes == 0:
        return attempts > 0
    if not task.attempt_log:
        return task.redrives == 0  # a redrive empties the log
    return any(task.expires_at is None or line.started_at < task.expires_at for line in task.attempt_log)


def _find_refusal(task: Task, limits: Limits, *, now: datetime) -> Failed | Snoozed | Cancelled | None:
    if task.cancel_requested_at is not None:
        return Cancelled()
    is_over = task.expires_at is not None and task.expires_at <= now
    if is_over and not has_started(task, attempts=task.attempts - 1):
        return _fail("expired", EXPIRED)
    if task.attempts - 1 > limits.max_retries:
        return _fail("exhausted", f"it had used its {limits.max_retries} retries before this claim")
    if not limits.known:
        return _decide_unknown_name(task, now=now)
    if limits.timeout > limits.max_timeout:
        return _fail("timeout_too_long", "its timeout is longer than the lifetime of an executor of this deployment")
    return None


def _decide_unknown_name(task: Task, *, now: datetime) -> Failed | Snoozed:
    age = now - task.created_at
    if age < UNKNOWN_NAME_GRACE:
        # A deploy may be in progress. The waits grow with the age, so that a long roll-out costs few claims.
        return Snoozed(until=now + max(UNKNOWN_NAME_SNOOZE, age / 4))
    return _fail("unknown_task", "no function of this name is registered")


def _fail(reason: Reason, message: str) -> Failed:
    return Failed(failure=Failure(message=message, code=reason, retryable=False, by_function=False), reason=reason)
