"""The next step of an execution: it claims again, waits, or stops. `decide_next_step` has the rules, and is pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeAlias

from tidemill.errors import TidemillError
from tidemill.executor.claimer import ClaimResult
from tidemill.executor.context import ExecutionContext
from tidemill.executor.lifetime import Timing
from tidemill.store import tasks

MAX_CLAIMS_IN_VAIN: Final = 12
"""Claims in vain in a row before an executor exits: enough for a fail-over, and to isolate one bad document."""

MAX_DELAYED_TASKS_READ: Final = 100
"""Delayed tasks that are read to find the first in the served queues and lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Go on with the next step; with *thorough* its claim reads every lane from its head."""

    thorough: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Claim again after *seconds*."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the execution."""


NextStep: TypeAlias = Continue | Wait | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBackoff:
    """Claims in vain, and the pause that follows from them.

    Attributes:
        failed: Number of claims in a row that failed.
        contended: Number of claims in a row that found tasks and lost all of them to other executors.
    """

    failed: int = 0
    contended: int = 0

    def after(self, result: ClaimResult) -> ClaimBackoff:
        """Return the state after a claim with *result*."""
        # After a failure the pause still grows while nothing is tried.
        is_failed = result.failed or (self.failed > 0 and not (result.tried or result.exhausted))
        return ClaimBackoff(
            failed=self.failed + 1 if is_failed and not result.tasks else 0,
            contended=self.contended + 1 if result.contended else 0,
        )

    @property
    def in_vain(self) -> int:
        """Number of claims in vain in a row, for either reason."""
        return max(self.failed, self.contended)


def compute_pause(in_vain: int, *, timing: Timing, draw: float) -> float:
    """Return the seconds to pause after *in_vain* claims in a row without tasks: longer each time, up to a limit.

    *draw* is a number in [0, 1) that spreads the pauses, so that competing executors do not claim at once again.
    """
    growing = timing.first_claim_pause_sec * 2.0 ** min(in_vain - 1, MAX_CLAIMS_IN_VAIN)
    return min(growing, timing.longest_claim_pause_sec) * (1 + draw) / 2


def compute_linger_end(
    *,
    started: float,
    worked_at: float | None,
    launched: bool,
    next_due: float | None,
    longest: float,
    timing: Timing,
) -> float:
    """Return the time until which an idle executor lingers.

    *worked_at* is the time at which it last had a task in hand. *next_due* is the time at which the next delayed task
    becomes due, if known. It lingers for at most *longest* seconds after it became idle, and does not wait for a task
    that is due later. With *longest* of 0 it does not linger. A tick without tasks, due or due soon, exits at once.
    """
    idle_since = started if worked_at is None else worked_at
    until = started
    if worked_at is not None:
        until = max(until, worked_at + min(timing.linger_after_work_sec, longest))
    if launched:
        until = max(until, started + min(timing.linger_after_launch_sec, longest))
    if next_due is not None and next_due - idle_since <= longest:
        until = max(until, next_due)
    return until


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts that decide the next step of an execution without a task in hand.

    Attributes:
        claimed: The last claim.
        backoff: The claims in vain so far, the last claim included.
        may_claim: A task that is claimed now can still finish.
        has_returned: A task became pending again after the last claim: retried, snoozed or released.
        persists: The executor continues without tasks and without MongoDB.
        linger_sec: Seconds for which an idle executor still lingers.
        draw: Random number in [0, 1).
    """

    claimed: ClaimResult
    backoff: ClaimBackoff
    may_claim: bool
    has_returned: bool
    persists: bool
    linger_sec: float = 0.0
    draw: float = 0.0

    @property
    def expects_tasks(self) -> bool:
        """True if the next claim is likely to find tasks: the last one did, or a task became pending again."""
        return bool(self.claimed.tasks) or self.has_returned

    @property
    def may_linger(self) -> bool:
        """True if the execution is idle and no error keeps it from waiting for more tasks."""
        return self.may_claim and not (self.expects_tasks or self.persists or self.backoff.failed)


def decide_next_step(situation: Situation, timing: Timing) -> NextStep:
    """Return the next step of an execution without a task in hand.

    It stops if it may not claim any more. It continues if the last claim found tasks, or if a task became pending
    since. Otherwise a worker waits, and an invocation lingers for a while. After that it stops if the last claim was
    exhausted; else it makes one thorough claim. It repeats that, with growing pauses, while claims fail or other
    executors are faster, up to `MAX_CLAIMS_IN_VAIN` times.
    """
    claimed, backoff, draw = situation.claimed, situation.backoff, situation.draw
    if not situation.may_claim:
        return Stop()
    if situation.expects_tasks:
        return Continue()
    if situation.persists:
        return Wait(seconds=timing.linger_poll_sec if claimed.error is None else timing.longest_claim_pause_sec)
    if situation.may_linger and situation.linger_sec > 0:
        pause = compute_pause(backoff.in_vain, timing=timing, draw=draw) if backoff.in_vain else math.inf
        return Wait(seconds=min(situation.linger_sec, timing.linger_poll_sec, pause))
    if claimed.exhausted:
        return Stop()
    if not claimed.thorough:
        return Continue(thorough=True)
    if 0 < backoff.in_vain <= MAX_CLAIMS_IN_VAIN:
        return Wait(seconds=compute_pause(backoff.in_vain, timing=timing, draw=draw))
    return Stop()


class Idle:
    """Decides the next steps of one execution. It knows since when the execution is idle."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._started_at = context.monotonic()
        self._worked_at: float | None = None
        self._next_due: float | None = None
        self._knows_next_due = False

    def record_work(self) -> None:
        """Record that a task was in hand."""
        self._worked_at = self._context.monotonic()
        self._knows_next_due = False

    def next_step(self, claimed: ClaimResult, backoff: ClaimBackoff, *, is_busy: bool, has_returned: bool) -> NextStep:
        """Return the next step after the last claim: a busy execution continues.

        An idle one may read the time of the next delayed task.
        """
        if is_busy:
            return Continue()
        situation = Situation(
            claimed=claimed,
            backoff=backoff,
            may_claim=self._context.may_claim(),
            has_returned=has_returned,
            persists=self._context.lifetime.persists,
            draw=self._context.draw(),
        )
        if situation.may_linger and self._context.runtime.settings.linger:
            situation = replace(situation, linger_sec=self._compute_linger_sec(claimed))
        return decide_next_step(situation, self._context.timing)

    def _compute_linger_sec(self, claimed: ClaimResult) -> float:
        now, knew_next_due = self._context.monotonic(), self._knows_next_due
        left = self._compute_linger_end(claimed) - now
        if left <= 0 and knew_next_due:  # the task was due and not found: claimed elsewhere, or the clock was set
            self._knows_next_due = False
            left = self._compute_linger_end(claimed) - now
        return left

    def _compute_linger_end(self, claimed: ClaimResult) -> float:
        if claimed.queues and not self._knows_next_due:
            self._next_due = self._read_next_due()
            self._knows_next_due = True
        return compute_linger_end(
            started=self._started_at,
            worked_at=self._worked_at,
            launched=self._context.options.source != "tick",
            next_due=self._next_due,
            longest=self._context.runtime.settings.linger.total_seconds(),
            timing=self._context.timing,
        )

    def _read_next_due(self) -> float | None:
        """Return the due time, on the monotonic clock, of the next delayed task that this execution may run."""
        context = self._context
        now, monotonic = context.now(), context.monotonic()
        until = now + context.runtime.settings.linger
        try:
            found = tasks.find_next_due(context.tasks, now=now, until=until, limit=MAX_DELAYED_TASKS_READ)
            due = [at for at, queue, lane in found if self._serves(queue, lane)]
        except TidemillError:
            return None
        return monotonic + (due[0] - now) / timedelta(seconds=1) if due else None

    def _serves(self, queue: str, lane: str) -> bool:
        options = self._context.options
        is_selected = queue in options.queues or not options.queues
        return is_selected and lane in options.lanes and not self._context.runtime.queue_choices(queue, options).paused
