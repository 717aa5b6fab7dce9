"""When a failed task is tried again: the policy, pure. Presets and further strategies have their place here."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from tidemill.model import MAX_RETRIES_LIMIT, Backoff, Failed, Failure, Retried, RetryPolicy, Snoozed, Task

DEFAULT = RetryPolicy()
FIRST_LOSS_JITTER = timedelta(seconds=5)


def backoff(policy: Backoff, *, failures: int, draw: float) -> timedelta:
    """Return the wait after the *failures*-th failed attempt, counted from 1.

    ``min(max_sec, base_sec * factor ** (failures - 1)) * draw``: exponential growth with full jitter, as in
    "Exponential Backoff and Jitter" (M. Brooker, AWS Architecture Blog, 2015). *draw* is a number in [0, 1).
    The wait never exceeds ``max_sec`` and is finite for any count.
    """
    return timedelta(seconds=_growth(policy, steps=max(failures, 1) - 1) * draw)


def after_failure(
    failure: Failure, policy: RetryPolicy, *, attempts: int, now: datetime, draw: float
) -> Retried | Failed:
    """Decide what becomes of a task whose *attempts*-th attempt ended in *failure*."""
    if not failure.retryable:
        return Failed(failure=failure, reason="not_retryable")
    if attempts > policy.max_retries:
        return Failed(failure=failure, reason="exhausted")
    wait = failure.retry_after
    if wait is None:
        wait = backoff(policy.backoff, failures=attempts, draw=draw)
    return Retried(failure=failure, next_retry_at=now + wait)


def resolved(task: Task, *, registered: RetryPolicy | None, deployment: RetryPolicy) -> RetryPolicy:
    """Return the policy that holds for *task*: its own, then that of its registration, then the deployment's."""
    fallback = registered or deployment
    return RetryPolicy(
        max_retries=fallback.max_retries if task.max_retries is None else min(task.max_retries, MAX_RETRIES_LIMIT),
        backoff=fallback.backoff if task.backoff is None else task.backoff,
    )


def after_loss(task: Task, policy: RetryPolicy, *, now: datetime, draw: float) -> Snoozed | Retried | Failed:
    """Decide what becomes of a task whose worker vanished.

    The first loss is refunded: the task may have been a bystander, and is due again within 5 s. Any later one
    is a failure like every other.
    """
    if task.crashes == 0:
        return Snoozed(until=now + FIRST_LOSS_JITTER * draw)
    lost = Failure(message="its worker vanished", code="lease_expired", by_function=False)
    outcome = after_failure(lost, policy, attempts=task.attempts, now=now, draw=draw)
    return Failed(failure=lost, reason="worker_lost") if isinstance(outcome, Failed) else outcome


def _growth(policy: Backoff, *, steps: int) -> float:
    # In logarithms: factor ** steps overflows long before the cap is compared with it.
    grows_past_cap = math.log(policy.base_sec) + steps * math.log(policy.factor) >= math.log(policy.max_sec)
    if grows_past_cap:
        return policy.max_sec
    # In halves: beside a tiny base even a power below the cap may overflow.
    half = steps // 2
    return min(policy.base_sec * policy.factor**half * policy.factor ** (steps - half), policy.max_sec)
