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

from tidemill.adoption import missing_fields
from tidemill.clock import Clock
from tidemill.model import Failed, Failure, Malformed, Outcome, RetryPolicy, Run, Task
from tidemill.retry import after_loss
from tidemill.settlement import Settlement
from tidemill.store import Tasks, losses, settles, sweeps

BATCH: Final = 500
NAMES: Final = ("reclaimed", "failed", "expired", "adopted", "quarantined", "raced", "stuck")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What reclaiming needs. ``policy`` resolves a task's retries without importing its function."""

    tasks: Tasks
    clock: Clock
    policy: Callable[[Task], RetryPolicy]
    adopt_as: str | None = None
    rng: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic


def reclaim(keeper: Keeper, *, until: float, dead_owner: str | None = None) -> dict[str, int]:
    """Take back lost leases, expire, adopt and quarantine, in batches, until done or *until* (monotonic) is past.

    Every step is guarded and can be stopped, repeated and run twice at once. What *dead_owner* holds is lost now,
    without waiting for its leases. Returns the counts of `NAMES`.
    """
    report: Counter[str] = Counter()
    for step in _steps(keeper, report, dead_owner):
        while keeper.monotonic() < until and step():
            pass
    return {name: report[name] for name in NAMES}


def _steps(keeper: Keeper, report: Counter[str], dead_owner: str | None) -> list[Callable[[], bool]]:
    """Return the steps; each works off one batch and tells whether another may be there."""
    steps: list[Callable[[], bool]] = []
    if dead_owner is not None:
        steps.append(lambda: _take_back(keeper, report, losses.held_by(keeper.tasks, dead_owner, limit=BATCH)))
    return [*steps, *(lambda step=step: step(keeper, report) for step in (_lost, _leaseless, _expire, _adopt))]


def _lost(keeper: Keeper, report: Counter[str]) -> bool:
    now = keeper.clock.now()
    found = losses.expired_leases(keeper.tasks, before=now, limit=BATCH)
    return _take_back(keeper, report, found, expired_before=now)


def _leaseless(keeper: Keeper, report: Counter[str]) -> bool:
    return _take_back(keeper, report, losses.leaseless(keeper.tasks, limit=BATCH))


def _take_back(
    keeper: Keeper, report: Counter[str], found: list[Task | Malformed], *, expired_before: datetime | None = None
) -> bool:
    if not found:
        return False
    now = keeper.clock.now()
    reclaimer = f"reclaim-{uuid.uuid4().hex}"
    lost = [replace(_settlement(keeper, task, now=now), reclaimer=reclaimer) for task in found]
    verdict = settles.settle(keeper.tasks, lost, now=now, expired_before=expired_before)
    failed = sum(isinstance(one.outcome, Failed) for one in verdict.settled)
    report["failed"] += failed
    report["reclaimed"] += len(verdict.settled) - failed
    report["raced"] += len(verdict.lost)
    report["stuck"] += len(verdict.stuck)
    return len(found) == BATCH and bool(verdict.settled)


def _settlement(keeper: Keeper, task: Task | Malformed, *, now: datetime) -> Settlement:
    if isinstance(task, Malformed):
        failure = Failure(message=task.problem, code="malformed", retryable=False, by_function=False)
        return Settlement(task=task, outcome=Failed(failure=failure, reason="malformed"))
    outcome: Outcome = after_loss(task, keeper.policy(task), now=now, draw=keeper.rng.random())
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
