"""Take back what vanished workers held, and tend to what no claim can see."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from tidemill import control
from tidemill.adoption import missing_fields
from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.load import Loads
from tidemill.model import Cancelled, Failed, Failure, Malformed, Outcome, Retried, Run, Task
from tidemill.policies import QueueOptions, RetryPolicy
from tidemill.retry import after_loss
from tidemill.settlement import Settlement
from tidemill.stats import Tally
from tidemill.store import Tasks, losses, settles, sweeps

BATCH: Final = 500
NAMES: Final = ("reclaimed", "failed", "expired", "adopted", "quarantined", "raced", "stuck", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What reclaiming needs.

    ``policy`` resolves a task's retries without importing its function, ``options`` tells what a queue chooses.
    """

    tasks: Tasks
    clock: Clock
    policy: Callable[[Task], RetryPolicy]
    options: Callable[[str], QueueOptions]
    adopt_as: str | None = None
    rng: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic


def reclaim(keeper: Keeper, *, until: float, dead_owner: str | None = None) -> dict[str, int]:
    """Take back lost leases, expire, adopt and quarantine, in batches, until done or *until* (monotonic) is past.

    Every step is guarded and can be stopped, repeated and run twice at once. What *dead_owner* holds is lost now,
    without waiting for its leases. Returns the counts of `NAMES`.
    """
    report: Counter[str] = Counter()
    losing = _Losing(keeper, report)
    for step in _steps(keeper, report, losing, dead_owner):
        while keeper.monotonic() < until and step():
            pass
    try:  # neither is worth the report: permits end by themselves, and statistics may be short of some
        if dead_owner is not None and keeper.monotonic() < until:  # else it may hold tasks yet
            control.let_go(keeper.tasks.database, dead_owner)
        losing.tally.write(now=keeper.clock.now(), force=True)
    except TidemillError:
        report["errors"] += 1
    return {name: report[name] for name in NAMES}


def _steps(keeper: Keeper, report: Counter[str], losing: _Losing, dead_owner: str | None) -> list[Callable[[], bool]]:
    """Return the steps; each works off one batch and tells whether another may be there."""
    steps: list[Callable[[], bool]] = [losing.expired, losing.leaseless]
    if dead_owner is not None:
        steps.insert(0, lambda: losing.held_by(dead_owner))
    return [*steps, lambda: _expire(keeper, report), lambda: _adopt(keeper, report)]


class _Losing:
    """Takes tasks back from workers that vanished, batch by batch."""

    def __init__(self, keeper: Keeper, report: Counter[str]) -> None:
        self._keeper = keeper
        self._report = report
        self._loads = Loads(keeper.tasks, keeper.options, monotonic=keeper.monotonic)
        self.tally = Tally(keeper.tasks, monotonic=keeper.monotonic)

    def held_by(self, owner: str) -> bool:
        return self._take_back(losses.held_by(self._keeper.tasks, owner, limit=BATCH))

    def expired(self) -> bool:
        now = self._keeper.clock.now()
        found = losses.expired_leases(self._keeper.tasks, before=now, limit=BATCH)
        return self._take_back(found, expired_before=now)

    def leaseless(self) -> bool:
        return self._take_back(losses.leaseless(self._keeper.tasks, limit=BATCH))

    def _take_back(self, found: list[Task | Malformed], *, expired_before: datetime | None = None) -> bool:
        if not found:
            return False
        now = self._keeper.clock.now()
        reclaimer = f"reclaim-{uuid.uuid4().hex}"
        lost = [replace(self._settlement(task, now=now), reclaimer=reclaimer) for task in found]
        verdict = settles.settle(self._keeper.tasks, lost, now=now, expired_before=expired_before)
        failed = sum(isinstance(one.outcome, Failed) for one in verdict.settled)
        self._report["failed"] += failed
        self._report["reclaimed"] += len(verdict.settled) - failed
        self._report["raced"] += len(verdict.lost)
        self._report["stuck"] += len(verdict.stuck)
        self.tally.settled(verdict.settled, now=now)
        return len(found) == BATCH and bool(verdict.settled)

    def _settlement(self, task: Task | Malformed, *, now: datetime) -> Settlement:
        if isinstance(task, Malformed):
            failure = Failure(message=task.problem, code="malformed", retryable=False, by_function=False)
            return Settlement(task=task, outcome=Failed(failure=failure, reason="malformed"))
        load = self._loads.of(task.queue, now=now)
        policy, draw = self._keeper.policy(task), self._keeper.rng.random()
        outcome: Outcome = after_loss(task, policy, now=now, draw=draw, load=load)
        if task.cancel_requested_at is not None:
            outcome = Cancelled()
        if isinstance(outcome, Retried):
            self._loads.retried(task.queue)
        return _lost(task, outcome, now=now)


def _lost(task: Task, outcome: Outcome, *, now: datetime) -> Settlement:
    note = "its worker vanished; not counted" if task.crashes == 0 else "its worker vanished"
    run = Run(started_at=task.updated_at, duration=max(now - task.updated_at, now - now), status="lost", note=note)
    return Settlement(task=task, outcome=outcome, run=run, lost=True)


def _expire(keeper: Keeper, report: Counter[str]) -> bool:
    now = keeper.clock.now()
    found = sweeps.expired(keeper.tasks, now=now, limit=BATCH)
    expired = sweeps.expire(keeper.tasks, found, now=now) if found else 0
    report["expired"] += expired
    return len(found) == BATCH and expired > 0


def _adopt(keeper: Keeper, report: Counter[str]) -> bool:
    now = keeper.clock.now()
    strays = sweeps.strays(keeper.tasks, limit=BATCH)
    changed = 0
    for raw in strays:
        verdict = missing_fields(raw, now=now, adopt_as=keeper.adopt_as)
        if isinstance(verdict, Malformed):
            was_changed, name = sweeps.quarantine(keeper.tasks, verdict, now=now), "quarantined"
        else:
            was_changed, name = sweeps.adopt(keeper.tasks, raw["_id"], verdict), "adopted"
        report[name] += was_changed
        changed += was_changed
    return len(strays) == BATCH and changed > 0
