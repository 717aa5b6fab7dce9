"""Scheduling: the share of each lane in a claim, and the decision whether a claimed task starts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias, TypeVar, assert_never

from tidemill.model import LANES, Cancelled, Failed, Failure, Lane, Malformed, Reason, Selection, Snoozed, Task

DEFAULT_RETRY_SHARE = 0.2
UNKNOWN_NAME_GRACE = timedelta(minutes=10)
UNKNOWN_NAME_SNOOZE = timedelta(seconds=15)
LONGEST_FAULT_SNOOZE = timedelta(seconds=60)
EXPIRED = "it was not started before its expires_at"
_T = TypeVar("_T")

Lanes: TypeAlias = tuple[Lane, ...]
"""One lane, or both lanes in one order: priority, then due time, then id."""

BOTH: Lanes = LANES
RETRY: Lanes = ("retry",)
FRESH: Lanes = ("fresh",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Number of tasks to claim from *lanes*."""

    lanes: Lanes
    count: int


def shares(
    selection: Selection,
    *,
    lanes: Lanes = LANES,
    free: int,
    slots: int,
    retries_in_flight: int,
    retry_share: float,
    draw: float,
) -> list[Share]:
    """Return the shares in the order of claiming; the counts sum up to *free*. Unused counts may be passed on.

    ``weighted``: while both lanes have work, retries occupy *retry_share* of all *slots*, not of one claim:
    ``clamp(floor(retry_share * slots + draw) - retries_in_flight, 0, free)``. *draw* in [0, 1) makes a fractional
    share right on average. ``retries_first``: all due retries before any fresh task. ``oldest_first``: both lanes in
    one order. If *lanes* is a single lane, all selections are the same.
    """
    if len(lanes) == 1:
        return [Share(lanes=lanes, count=free)]
    match selection:
        case "weighted":
            retries = min(max(math.floor(retry_share * slots + draw) - retries_in_flight, 0), free)
            return [Share(lanes=RETRY, count=retries), Share(lanes=FRESH, count=free - retries)]
        case "retries_first":
            return [Share(lanes=RETRY, count=free), Share(lanes=FRESH, count=0)]
        case "oldest_first":
            return [Share(lanes=BOTH, count=free), Share(lanes=FRESH, count=0)]
        case _:
            assert_never(selection)


def take_shares(asked: Sequence[Share], take: Callable[[Lanes, int], Sequence[_T]]) -> list[_T]:
    """Return the tasks that *take* returned for the shares in *asked*; each lane may use the unused count before it.

    *take* is called with lanes and a count above 0, and returns at most that many tasks. It is called once more for
    the first lanes if the last lanes left a count unused.
    """
    taken: list[_T] = []
    unused = 0
    for share in [*asked, Share(lanes=asked[0].lanes, count=0)] if len(asked) > 1 else asked:
        wanted = share.count + unused
        found = take(share.lanes, wanted) if wanted > 0 else []
        taken += found
        unused = wanted - len(found)
    return taken


def interleave(first: Sequence[_T], second: Sequence[_T]) -> list[_T]:
    """Return *first* and *second* interleaved: each prefix has both in the proportion of the whole.

    A claim may return more tasks than there are slots, and they start in this order. Interleaved, each lane keeps
    its share of the slots.
    """
    positions = [((n + 0.5) / len(tasks), tasks[n]) for tasks in (first, second) for n in range(len(tasks))]
    return [task for _, task in sorted(positions, key=lambda position: position[0])]


def time_saved(*, ahead: int, mean_run: timedelta, slots: int) -> timedelta:
    """Estimate the time that a retry gained by starting before *ahead* due fresh tasks.

    The estimate assumes one executor with *slots* slots, and the mean run time for every task.
    """
    return mean_run * ahead / slots


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

    ``known``: a function of the task's name is registered. ``is_faulty``: it is not, because its module or its
    registration has a fault, so that another release may run the task. ``timeout`` and ``max_retries`` are resolved:
    the task's own, then those of the registration, then those of the deployment. ``margin`` is the time kept for
    settling.
    """

    known: bool
    timeout: timedelta
    max_retries: int
    max_timeout: timedelta
    margin: timedelta
    is_faulty: bool = False


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


def fail_malformed(document: Malformed) -> Failed:
    """Return the outcome of a leased document that is not a valid task."""
    return _fail("malformed", document.problem)


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
    if limits.is_faulty:  # before the retries are counted: their number may be that of the registration
        age = now - task.created_at
        return Snoozed(until=now + min(max(UNKNOWN_NAME_SNOOZE, age / 4), LONGEST_FAULT_SNOOZE))
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
