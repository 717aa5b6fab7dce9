"""Retries: presets, back-off with jitter, longer waits under load, and the decision after a failure or a loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, assert_never

from tidemill.model import MAX_RETRIES_LIMIT, Backoff, Failed, Failure, Pressure, Retried, RetryPolicy, Snoozed, Task

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
"""Named policies, for Python, HTTP and the environment."""

PRESET_EXPECTED: Final = f"must be the name of a preset ({', '.join(PRESETS)})"
FIRST_LOSS_JITTER: Final = timedelta(seconds=5)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Measured load of a queue, and its pressure options.

    Attributes:
        pressure: Options that lengthen the queue's waits.
        ready: Due tasks of both lanes, counted up to a limit.
        retries: Retries scheduled in the current clock minute.
    """

    pressure: Pressure = field(default_factory=Pressure)
    ready: int = 0
    retries: int = 0


NO_LOAD: Final = Load()


def backoff(policy: Backoff, *, failures: int, draw: float) -> timedelta:
    """Return the wait after the *failures*-th failed attempt, counted from 1. *draw* is a number in [0, 1).

    The strategy gives ``d``: exponential ``base_sec * factor ** (failures - 1)``, linear ``base_sec * failures``,
    fixed ``base_sec``, fibonacci ``base_sec * fib(failures)`` (1, 1, 2, 3, 5, ...), at most ``max_sec``. The jitter
    gives the wait: none ``d``; full ``uniform(0, d)``; decorrelated ``uniform(base_sec, d)``, after the first failure
    ``base_sec``; proportional ``d * (1 +- jitter_factor)``. The wait is at most ``max_sec``, finite for any count.

    Full jitter as in "Exponential Backoff and Jitter" (M. Brooker, AWS Architecture Blog, 2015). Decorrelated jitter
    draws from the previous wait there. It draws from the failure count here, so that no wait has to be stored.
    """
    grown = min(_grow_wait(policy, failures=max(failures, 1)), policy.max_sec)
    return timedelta(seconds=min(_apply_jitter(policy, grown, draw=draw), policy.max_sec))


def decide_after_failure(
    failure: Failure, policy: RetryPolicy, *, attempts: int, now: datetime, draw: float, load: Load = NO_LOAD
) -> Retried | Failed:
    """Return the outcome of a task whose *attempts*-th attempt ended in *failure*.

    *load* may lengthen the wait of the policy, never the wait that the function asked for.
    """
    if not failure.retryable:
        return Failed(failure=failure, reason="not_retryable")
    if attempts > policy.max_retries:
        return Failed(failure=failure, reason="exhausted")
    if failure.retry_after is not None:
        return Retried(failure=failure, next_retry_at=now + _round_up(failure.retry_after))
    planned = backoff(policy.backoff, failures=attempts, draw=draw)
    wait = lengthen(planned, load, cap=timedelta(seconds=policy.backoff.max_sec))
    return Retried(failure=failure, next_retry_at=now + wait)


def decide_after_loss(
    task: Task, policy: RetryPolicy, *, now: datetime, draw: float, load: Load = NO_LOAD
) -> Snoozed | Retried | Failed:
    """Return the outcome of a task whose worker vanished.

    The first loss is refunded, because another task may have crashed the worker: the task is due again within 5 s.
    Each later loss is a failure like any other.
    """
    if task.crashes == 0:
        return Snoozed(until=now + FIRST_LOSS_JITTER * draw)
    failure = Failure(message="its worker vanished", code="lease_expired", by_function=False)
    outcome = decide_after_failure(failure, policy, attempts=task.attempts, now=now, draw=draw, load=load)
    return Failed(failure=failure, reason="worker_lost") if isinstance(outcome, Failed) else outcome


def resolve_policy(task: Task, *, registered: RetryPolicy | None, deployment: RetryPolicy) -> RetryPolicy:
    """Return the policy of *task*: its own, then the policy of its registration, then the deployment's."""
    fallback = registered or deployment
    if task.max_retries is None and task.backoff is None:
        return fallback
    return RetryPolicy(
        max_retries=fallback.max_retries if task.max_retries is None else min(task.max_retries, MAX_RETRIES_LIMIT),
        backoff=fallback.backoff if task.backoff is None else task.backoff,
    )


def lengthen(wait: timedelta, load: Load, *, cap: timedelta) -> timedelta:
    """Return *wait*, lengthened under *load*: at least *wait*, at most *cap* or the cap of the pressure, if larger.

    Adaptive: ``max(wait, min(max_sec, wait * (1 + ready / scale)))``. A spent budget multiplies by its ``factor``.
    *cap* is the cap of the retry policy.
    """
    longest, longer = cap, wait
    adaptive, budget = load.pressure.adaptive, load.pressure.budget
    if adaptive is not None:
        # In seconds: a timedelta would overflow if many tasks are ready.
        crowded = wait.total_seconds() * (1 + load.ready / adaptive.scale)
        longer = max(longer, timedelta(seconds=min(crowded, adaptive.max_sec)))
        longest = max(longest, timedelta(seconds=adaptive.max_sec))
    if budget is not None and load.retries >= budget.per_minute:
        longer = max(longer, min(longest, longer * budget.factor))
    return longer


def _round_up(wait: timedelta) -> timedelta:
    # MongoDB truncates times to milliseconds: without rounding, the wait could end before the time asked for.
    return -(-wait // _MILLISECOND) * _MILLISECOND


def _grow_wait(policy: Backoff, *, failures: int) -> float:
    match policy.strategy:
        case "exponential":
            return _grow_exponentially(policy, steps=failures - 1)
        case "linear":
            return policy.base_sec * failures
        case "fixed":
            return policy.base_sec
        case "fibonacci":
            return _sum_fibonacci(policy, failures=failures)
        case _:
            assert_never(policy.strategy)


def _apply_jitter(policy: Backoff, wait: float, *, draw: float) -> float:
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


def _grow_exponentially(policy: Backoff, *, steps: int) -> float:
    # Compare logarithms: factor ** steps may overflow before it is compared with the cap.
    grows_past_cap = math.log(policy.base_sec) + steps * math.log(policy.factor) >= math.log(policy.max_sec)
    if grows_past_cap:
        return policy.max_sec
    # Multiply by two halves: with a tiny base the power may overflow although the product is below the cap.
    half = steps // 2
    return policy.base_sec * policy.factor**half * policy.factor ** (steps - half)


def _sum_fibonacci(policy: Backoff, *, failures: int) -> float:
    wait, following = policy.base_sec, policy.base_sec
    for _ in range(failures - 1):
        if wait >= policy.max_sec:
            break
        wait, following = following, wait + following
    return wait
