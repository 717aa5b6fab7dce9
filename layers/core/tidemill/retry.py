"""When a failed task is tried again: the policy, pure. Presets and further strategies have their place here."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from tidemill.model import Backoff, Failed, Failure, Retried, RetryPolicy

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
    if not failure.retryable or attempts > policy.max_retries:
        return Failed(failure=failure)
    wait = failure.retry_after
    if wait is None:
        wait = backoff(policy.backoff, failures=attempts, draw=draw)
    return Retried(failure=failure, next_retry_at=now + wait)


def _growth(policy: Backoff, *, steps: int) -> float:
    # In logarithms: factor ** steps overflows long before the cap is compared with it.
    grows_past_cap = math.log(policy.base_sec) + steps * math.log(policy.factor) >= math.log(policy.max_sec)
    return policy.max_sec if grows_past_cap else policy.base_sec * policy.factor**steps
