"""When a failed task is tried again: presets, strategies, jitters, and the decision itself. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, assert_never

from tidemill.model import Failed, Failure, Retried, Snoozed, Task
from tidemill.policies import MAX_RETRIES_LIMIT, Backoff, RetryPolicy
from tidemill.pressure import CALM, Load, stretched

DEFAULT: Final = RetryPolicy()

PRESETS: Final[Mapping[str, RetryPolicy]] = MappingProxyType(
    {
        "default": DEFAULT,
        "standard": RetryPolicy(max_retries=3, backoff=Backoff(base_sec=0.5, max_sec=30)),
        "conservative": RetryPolicy(max_retries=5, backoff=Backoff(base_sec=1, max_sec=60)),
        "aggressive": RetryPolicy(max_retries=2, backoff=Backoff(base_sec=0.1, max_sec=5)),
        "one_shot": RetryPolicy(max_retries=0),
        "quadrupling": RetryPolicy(max_retries=5, backoff=Backoff(base_sec=1, factor=4, max_sec=3600, jitter="none")),
        "patient": RetryPolicy(max_retries=3, backoff=Backoff(base_sec=60, max_sec=3600, jitter="proportional")),
    }
)
"""The policies that have a name, in Python, in HTTP and in the environment."""

PRESET_EXPECTED: Final = f"must be the name of a preset ({', '.join(PRESETS)})"
FIRST_LOSS_JITTER: Final = timedelta(seconds=5)
_MILLISECOND: Final = timedelta(milliseconds=1)


def backoff(policy: Backoff, *, failures: int, draw: float) -> timedelta:
    """Return the wait after the *failures*-th failed attempt, counted from 1. *draw* is a number in [0, 1).

    It grows to ``d``: exponential ``base_sec * factor ** (failures - 1)``, linear ``base_sec * failures``, fixed
    ``base_sec``, fibonacci ``base_sec * fib(failures)`` (1, 1, 2, 3, 5, ...), at most ``max_sec``. Then jitter:
    none ``d``; full ``uniform(0, d)``; decorrelated ``uniform(base_sec, d)``, at the first failure ``base_sec``
    itself; proportional ``d * (1 +- jitter_factor)``. The wait never exceeds ``max_sec`` and is finite for any count.

    Full jitter as in "Exponential Backoff and Jitter" (M. Brooker, AWS Architecture Blog, 2015). Its decorrelated
    jitter draws from the wait before; ours from the failure count, so that a wait needs no memory of the last one.
    """
    grown = min(_grown(policy, failures=max(failures, 1)), policy.max_sec)
    return timedelta(seconds=min(_jittered(policy, grown, draw=draw), policy.max_sec))


def after_failure(
    failure: Failure, policy: RetryPolicy, *, attempts: int, now: datetime, draw: float, load: Load = CALM
) -> Retried | Failed:
    """Decide what becomes of a task whose *attempts*-th attempt ended in *failure*.

    *load* may lengthen the wait of the policy, never one that the function asked for.
    """
    if not failure.retryable:
        return Failed(failure=failure, reason="not_retryable")
    if attempts > policy.max_retries:
        return Failed(failure=failure, reason="exhausted")
    if failure.retry_after is not None:
        return Retried(failure=failure, next_retry_at=now + _storable(failure.retry_after))
    planned = backoff(policy.backoff, failures=attempts, draw=draw)
    wait = stretched(planned, load, cap=timedelta(seconds=policy.backoff.max_sec))
    return Retried(failure=failure, next_retry_at=now + wait)


def resolved(task: Task, *, registered: RetryPolicy | None, deployment: RetryPolicy) -> RetryPolicy:
    """Return the policy that holds for *task*: its own, then that of its registration, then the deployment's."""
    fallback = registered or deployment
    if task.max_retries is None and task.backoff is None:
        return fallback
    return RetryPolicy(
        max_retries=fallback.max_retries if task.max_retries is None else min(task.max_retries, MAX_RETRIES_LIMIT),
        backoff=fallback.backoff if task.backoff is None else task.backoff,
    )


def after_loss(
    task: Task, policy: RetryPolicy, *, now: datetime, draw: float, load: Load = CALM
) -> Snoozed | Retried | Failed:
    """Decide what becomes of a task whose worker vanished.

    The first loss is refunded: the task may have been a bystander, and is due again within 5 s. Any later one
    is a failure like every other.
    """
    if task.crashes == 0:
        return Snoozed(until=now + FIRST_LOSS_JITTER * draw)
    lost = Failure(message="its worker vanished", code="lease_expired", by_function=False)
    outcome = after_failure(lost, policy, attempts=task.attempts, now=now, draw=draw, load=load)
    return Failed(failure=lost, reason="worker_lost") if isinstance(outcome, Failed) else outcome


def _storable(wait: timedelta) -> timedelta:
    # MongoDB keeps whole milliseconds and cuts the rest: a wait that was asked for would end early.
    return -(-wait // _MILLISECOND) * _MILLISECOND


def _grown(policy: Backoff, *, failures: int) -> float:
    match policy.strategy:
        case "exponential":
            return _exponential(policy, steps=failures - 1)
        case "linear":
            return policy.base_sec * failures
        case "fixed":
            return policy.base_sec
        case "fibonacci":
            return _fibonacci(policy, failures=failures)
        case _:
            assert_never(policy.strategy)


def _jittered(policy: Backoff, wait: float, *, draw: float) -> float:
    match policy.jitter:
        case "none":
            return wait
        case "full":
            return wait * draw
        case "decorrelated":
            return policy.base_sec + (wait - policy.base_sec) * draw
        case "proportional":
            return wait * (1 + policy.jitter_factor * (2 * draw - 1))
        case _:
            assert_never(policy.jitter)


def _exponential(policy: Backoff, *, steps: int) -> float:
    # In logarithms: factor ** steps overflows long before the cap is compared with it.
    grows_past_cap = math.log(policy.base_sec) + steps * math.log(policy.factor) >= math.log(policy.max_sec)
    if grows_past_cap:
        return policy.max_sec
    # In halves: beside a tiny base even a power below the cap may overflow.
    half = steps // 2
    return policy.base_sec * policy.factor**half * policy.factor ** (steps - half)


def _fibonacci(policy: Backoff, *, failures: int) -> float:
    wait, following = policy.base_sec, policy.base_sec
    for _ in range(failures - 1):
        if wait >= policy.max_sec:
            break
        wait, following = following, wait + following
    return wait
