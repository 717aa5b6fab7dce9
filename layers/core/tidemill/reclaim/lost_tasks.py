"""Tasks whose worker vanished: found batch by batch, and settled by the same guarded write as a worker's."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from tidemill.errors import TidemillError
from tidemill.load import Loads
from tidemill.model import Cancelled, Failed, Failure, Malformed, Outcome, Retried, Run, Task, TaskId
from tidemill.policies import RetryPolicy
from tidemill.reclaim.keeper import BATCH, Keeper
from tidemill.retry import DEFAULT, after_loss
from tidemill.settlement import Settlement
from tidemill.stats import Tally
from tidemill.store import losses, settles

JUDGING_SEC: Final = 0.5
"""So long what becomes of a batch is thought about; the rest of it is of the next."""


class LostTasks:
    """Takes tasks back from workers that vanished; each method works off one batch and tells whether more may be there.

    What could not be taken back in a batch is left alone in the next: it must not stand before the others for ever.
    """

    def __init__(self, keeper: Keeper, report: Counter[str]) -> None:
        self._keeper = keeper
        self._report = report
        self._loads = Loads(keeper.tasks, keeper.options, monotonic=keeper.monotonic)
        self._in_vain: list[TaskId] = []
        self._knows_policies = True
        self.tally = Tally(keeper.tasks, monotonic=keeper.monotonic)

    def held_by(self, owner: str) -> bool:
        """Take back what *owner*, known to be dead, holds now."""
        return self._take_back(losses.held_by(self._keeper.tasks, owner, limit=BATCH, but=self._in_vain))

    def expired(self) -> bool:
        """Take back what is held under leases that ran out."""
        now = self._keeper.clock.now()
        found = losses.expired_leases(self._keeper.tasks, before=now, limit=BATCH, but=self._in_vain)
        return self._take_back(found, expired_before=now)

    def leaseless(self) -> bool:
        """Take back what is called processing and held by nobody."""
        return self._take_back(losses.leaseless(self._keeper.tasks, limit=BATCH, but=self._in_vain))

    def _take_back(self, found: Sequence[Task | Malformed], *, expired_before: datetime | None = None) -> bool:
        if not found:
            return False
        now = self._keeper.clock.now()
        losses.clear(self._keeper.tasks, [task.id for task in found if task.lease is None])
        reclaimer = f"reclaim-{uuid.uuid4().hex}"
        judged = [(task, self._settlement(task, now=now)) for task in self._in_time(found)]
        lost = [replace(settlement, reclaimer=reclaimer) for _, settlement in judged if settlement is not None]
        verdict = settles.settle(self._keeper.tasks, lost, now=now, expired_before=expired_before)
        for settlement in verdict.settled:
            self._report[_name(settlement.outcome)] += 1
            self._keeper.observe(settlement)
        self._report["raced"] += len(verdict.lost)
        self._report["stuck"] += len(verdict.stuck)
        self._in_vain += [one.task.id for one in (*verdict.lost, *verdict.stuck)]
        self._in_vain += [task.id for task, settlement in judged if settlement is None]
        self.tally.settled(verdict.settled, now=now)
        return len(found) == BATCH or len(judged) < len(found)

    def _in_time(self, found: Sequence[Task | Malformed]) -> Iterator[Task | Malformed]:
        """Yield of *found* what can be judged and still be settled: each may need a look at its queue or its type."""
        until = self._keeper.monotonic() + JUDGING_SEC
        for task in found:
            yield task
            if self._keeper.monotonic() >= until:
                return

    def _settlement(self, task: Task | Malformed, *, now: datetime) -> Settlement | None:
        """Return what becomes of *task*, or ``None`` where that cannot be known now."""
        if isinstance(task, Malformed):
            failure = Failure(message=task.problem, code="malformed", retryable=False, by_function=False)
            return Settlement(task=task, outcome=Failed(failure=failure, reason="malformed"))
        outcome = self._outcome(task, now=now)
        if outcome is None:
            return None
        duration = max(now - task.updated_at, timedelta(0))
        run = Run(started_at=task.updated_at, duration=duration, status="lost", note="its worker vanished")
        return Settlement(task=task, outcome=outcome, run=run, lost=True)

    def _outcome(self, task: Task, *, now: datetime) -> Outcome | None:
        draw = self._keeper.rng.random()
        if task.cancel_requested_at is not None:
            return Cancelled()
        if task.crashes == 0:  # by nobody's policy: neither its type nor the load need be known
            return after_loss(task, DEFAULT, now=now, draw=draw)
        policy = self._policy(task)
        if policy is None:
            return None
        outcome = after_loss(task, policy, now=now, draw=draw, load=self._loads.of(task.queue, now=now))
        if isinstance(outcome, Retried):
            self._loads.retried(task.queue)
        return outcome

    def _policy(self, task: Task) -> RetryPolicy | None:
        if not self._knows_policies:
            return None
        try:
            return self._keeper.policy(task)
        except TidemillError:  # once in a run: it would be the same for the next
            self._report["errors"] += 1
            self._knows_policies = False
            return None


def _name(outcome: Outcome) -> str:
    match outcome:
        case Failed():
            return "failed"
        case Cancelled():
            return "cancelled"
        case _:
            return "reclaimed"
