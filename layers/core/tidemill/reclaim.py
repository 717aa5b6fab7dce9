"""Reclaim: take back the tasks of lost workers, sweep documents that no claim can take, measure the gauges.

Every write is guarded by the lease that was read, so two runs may overlap, and a run may stop at any point.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.clock import Clock, read_monotonic
from tidemill.control import semaphores
from tidemill.control.queues import PressureMonitor
from tidemill.documents import complete, decode, missing_fields
from tidemill.errors import CredentialsError, TidemillError
from tidemill.model import (
    OUTCOME_NAMES,
    Cancelled,
    Malformed,
    Outcome,
    QueueOptions,
    Retried,
    RetryPolicy,
    Run,
    Snoozed,
    Task,
    TaskId,
)
from tidemill.policy.retry import DEFAULT, decide_after_loss
from tidemill.policy.scheduling import fail_malformed
from tidemill.store import adoption, counts, recovery, settle
from tidemill.store.adoption import Adoption, State
from tidemill.store.connection import Tasks, limit_time
from tidemill.store.settle import Settlement
from tidemill.store.stats import StatsRecorder

NAMES: Final = (
    "reclaimed",  # lost tasks that will run again
    "failed",  # lost tasks without attempts left
    "cancelled",  # lost tasks whose cancellation was requested
    "expired",
    "adopted",
    "quarantined",
    "lost_race",  # settled by another process first
    "write_rejected",  # writes that MongoDB rejects
    "errors",  # steps that failed
)

BATCH_SIZE: Final = 500
"""Documents of one batch. The time that is left is checked between batches."""

BATCH_TIMEOUT_SEC: Final = 5.0
"""Timeout of one batch."""

BATCH_TIMEOUT_AFTER_ERROR_SEC: Final = 1.0
"""Timeout of one batch after an error: an unreachable server costs seconds, not the whole invocation."""

BATCHES_TIME_SHARE: Final = 0.8
"""Share of the time for the batches. The rest is for statistics and gauges, which matter most under overload."""

DECISION_BUDGET_SEC: Final = 0.5
"""Time budget for deciding the outcomes of one batch. The remainder goes to the next batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimContext:
    """Collaborators of `reclaim`.

    ``policy`` resolves a task's retry policy without importing its function. ``options`` returns a queue's options.
    ``observe`` is called for each attempt that was taken back; it must not raise. ``adopt_as`` is the name of the task
    type under which documents without a name are adopted. ``observe_error`` is called for each step that failed; it
    must not raise. ``loss_delay_share`` is the share of the longest delay after a first loss that is used.
    ``batch_timeout_sec`` bounds one batch, and ``batch_timeout_after_error_sec`` one batch after an error.
    """

    tasks: Tasks
    clock: Clock
    policy: Callable[[Task], RetryPolicy]
    options: Callable[[str], QueueOptions]
    adopt_as: str | None = None
    observe: Callable[[Settlement], None] = lambda _: None
    observe_error: Callable[[TidemillError], None] = lambda _: None
    loss_delay_share: float = 1.0
    rng: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = read_monotonic
    batch_timeout_sec: float = BATCH_TIMEOUT_SEC
    batch_timeout_after_error_sec: float = BATCH_TIMEOUT_AFTER_ERROR_SEC


def reclaim_expired(reclaim_context: ReclaimContext, *, until: float) -> dict[str, int]:
    """Take back the tasks whose lease has expired, and fail the expired tasks, until done or *until*. Nothing else.

    Documents that no task can be read from stay as they are, so that a process without the settings of the deployment
    may call it. It stops, repeats and overlaps as `reclaim` does. Returns the counts of `NAMES`.
    """
    return _Run(reclaim_context, until=until).reclaim_expired()


def reclaim(reclaim_context: ReclaimContext, *, until: float, dead_owner: str | None = None) -> dict[str, int]:
    """Take back lost tasks, expire, adopt, quarantine and measure, until done or *until* on the monotonic clock.

    Every step may stop, repeat and overlap with another run. The tasks and permits of *dead_owner* are taken back now,
    before their leases expire. A step that fails is counted and not repeated; the other steps still run.
    Returns the counts of `NAMES`, and those of `tidemill.store.counts.GAUGES` if they could be measured.

    Raises:
        TidemillError: No step succeeded. A CredentialsError is raised at once.
    """
    return _Run(reclaim_context, until=until).reclaim(dead_owner)


class _Run:
    def __init__(self, reclaim_context: ReclaimContext, *, until: float) -> None:
        now = reclaim_context.monotonic()
        self._context = reclaim_context
        self._until = until
        self._until_work = now + (until - now) * BATCHES_TIME_SHARE
        self._report: Counter[str] = Counter()
        self._gauges: dict[str, int] = {}
        self._first_error: TidemillError | None = None
        self._has_succeeded = False

    def reclaim(self, dead_owner: str | None) -> dict[str, int]:
        lost, sweep = LostTasks(self._context, self._report), PendingSweep(self._context, self._report)
        if dead_owner is not None and self._process_batches(lambda: lost.reclaim_owned(dead_owner)):
            # Only after its tasks were taken back: until then they need the permits.
            self._try_once(lambda: semaphores.release_all(self._context.tasks.database, dead_owner))
        foreign = ForeignSweep(self._context, self._report)
        self._process_batches(lost.reclaim_expired)
        adopts = self._context.adopt_as is not None
        # A document that is still to be adopted has no lease, too.
        if not adopts or self._process_batches(foreign.adopt_processing):
            self._process_batches(lost.reclaim_leaseless)
        steps = [sweep.expire, sweep.adopt, foreign.adopt_failed]
        for step in [*steps, foreign.adopt_ended] if adopts else steps:
            self._process_batches(step)
        self._try_once(lambda: lost.statistics.write(now=self._context.clock.now()))
        self._try_once(self._measure)
        if self._first_error is not None and not self._has_succeeded:
            raise self._first_error
        return {name: self._report[name] for name in NAMES} | self._gauges

    def reclaim_expired(self) -> dict[str, int]:
        lost = LostTasks(self._context, self._report, quarantines=False)
        for step in (lost.reclaim_expired, PendingSweep(self._context, self._report).expire):
            self._process_batches(step)
        self._try_once(lambda: lost.statistics.write(now=self._context.clock.now()))
        return {name: self._report[name] for name in NAMES}

    def _process_batches(self, step: Callable[[], bool]) -> bool:
        """Call *step* until it returns that nothing is left. Return false if it failed or the time is up."""
        while self._context.monotonic() < self._until_work:
            try:
                with limit_time(self._operation_timeout(self._until_work)):
                    may_have_more = step()
            except TidemillError as error:
                self._record_error(error)
                return False
            self._has_succeeded = True
            if not may_have_more:
                return True
        return False

    def _try_once(self, step: Callable[[], None]) -> None:
        if self._context.monotonic() >= self._until:
            return
        try:
            with limit_time(self._operation_timeout(self._until)):
                step()
        except TidemillError as error:
            self._record_error(error)

    def _measure(self) -> None:
        self._gauges = counts.measure_gauges(self._context.tasks, now=self._context.clock.now())
        self._has_succeeded = True

    def _record_error(self, error: TidemillError) -> None:
        if isinstance(error, CredentialsError) and not self._has_succeeded:
            raise error  # every other step would wait and fail with the same credentials
        self._report["errors"] += 1
        self._context.observe_error(error)
        self._first_error = self._first_error or error

    def _operation_timeout(self, until: float) -> float:
        context, is_first = self._context, self._first_error is None
        timeout = context.batch_timeout_sec if is_first else context.batch_timeout_after_error_sec
        return min(until - context.monotonic(), timeout)


class LostTasks:
    """Takes back the tasks of lost workers. Each method processes one batch and returns whether more may be left.

    A task that could not be taken back is skipped by later batches, so that it cannot block other tasks. Malformed
    documents are skipped, too, unless it *quarantines* them.
    """

    def __init__(self, reclaim_context: ReclaimContext, report: Counter[str], *, quarantines: bool = True) -> None:
        self._context = reclaim_context
        self._report = report
        self._quarantines = quarantines
        self._loads = PressureMonitor(
            reclaim_context.tasks, reclaim_context.options, monotonic=reclaim_context.monotonic
        )
        self._skipped_ids: list[TaskId] = []
        self._can_read_policies = True
        self.statistics = StatsRecorder(reclaim_context.tasks, monotonic=reclaim_context.monotonic)

    def reclaim_owned(self, owner: str) -> bool:
        """Take back the tasks that *owner*, known to be dead, has leased now."""
        return self._take_back(
            recovery.find_leased_by(self._context.tasks, owner, limit=BATCH_SIZE, excluded_ids=self._skipped_ids)
        )

    def reclaim_expired(self) -> bool:
        """Take back the tasks whose lease has expired."""
        now = self._context.clock.now()
        found = recovery.find_expired_leases(
            self._context.tasks, before=now, limit=BATCH_SIZE, excluded_ids=self._skipped_ids
        )
        return self._take_back(found, expired_before=now)

    def reclaim_leaseless(self) -> bool:
        """Take back the tasks that are processing without a lease."""
        return self._take_back(
            recovery.find_leaseless(self._context.tasks, limit=BATCH_SIZE, excluded_ids=self._skipped_ids)
        )

    def _take_back(self, found: Sequence[Task | Malformed], *, expired_before: datetime | None = None) -> bool:
        if not found:
            return False
        now = self._context.clock.now()
        broken = [task.id for task in found if task.lease is None and self._quarantines]
        recovery.remove_broken_leases(self._context.tasks, broken)
        reclaimer = f"reclaim-{uuid.uuid4().hex}"
        decided = [(task, self._decide_settlement(task, now=now)) for task in self._limit_time(found)]
        lost = [replace(settlement, reclaimer=reclaimer) for _, settlement in decided if settlement is not None]
        verdict = settle.settle(self._context.tasks, lost, now=now, expired_before=expired_before)
        for settlement in verdict.settled:
            is_pending = isinstance(settlement.outcome, Retried | Snoozed)
            self._report["reclaimed" if is_pending else OUTCOME_NAMES[type(settlement.outcome)]] += 1
            self._context.observe(settlement)
        self._report["lost_race"] += len(verdict.lost)
        self._report["write_rejected"] += len(verdict.stuck)
        self._skipped_ids += [settlement.task.id for settlement in (*verdict.lost, *verdict.stuck)]
        self._skipped_ids += [task.id for task, settlement in decided if settlement is None]
        self.statistics.count_settled(verdict.settled, now=now)
        return len(found) == BATCH_SIZE or len(decided) < len(found)

    def _limit_time(self, found: Sequence[Task | Malformed]) -> Iterator[Task | Malformed]:
        """Yield tasks of *found* within the time budget: each decision may read the task's queue or its type."""
        until = self._context.monotonic() + DECISION_BUDGET_SEC
        for task in found:
            yield task
            if self._context.monotonic() >= until:
                return

    def _decide_settlement(self, task: Task | Malformed, *, now: datetime) -> Settlement | None:
        """Return the settlement of the lost *task*; ``None`` to skip it, if its retry policy cannot be read now."""
        if not self._quarantines and (isinstance(task, Malformed) or task.lease is None):
            return None
        if isinstance(task, Malformed):
            return Settlement(task=task, outcome=fail_malformed(task))
        outcome = self._decide_outcome(task, now=now)
        if outcome is None:
            return None
        duration = max(now - task.updated_at, timedelta(0))
        run = Run(started_at=task.updated_at, duration=duration, status="lost", note="its worker vanished")
        return Settlement(task=task, outcome=outcome, run=run, lost=True)

    def _decide_outcome(self, task: Task, *, now: datetime) -> Outcome | None:
        draw = self._context.rng.random()
        if task.cancel_requested_at is not None:
            return Cancelled()
        if task.crashes == 0:  # the first loss follows no policy: neither the type nor the load is read
            return decide_after_loss(task, DEFAULT, now=now, draw=draw * self._context.loss_delay_share)
        policy = self._resolve_policy(task)
        if policy is None:
            return None
        outcome = decide_after_loss(
            task, policy, now=now, draw=draw, load=self._loads.current_load(task.queue, now=now)
        )
        if isinstance(outcome, Retried):
            self._loads.count_retry(task.queue)
        return outcome

    def _resolve_policy(self, task: Task) -> RetryPolicy | None:
        if not self._can_read_policies:
            return None
        try:
            return self._context.policy(task)
        except TidemillError:  # tried once in a run: the next read would fail, too
            self._report["errors"] += 1
            self._can_read_policies = False
            return None


class PendingSweep:
    """Settles pending documents that no claim takes. Each method processes one batch and returns if more may be left.

    If a batch was not changed entirely, later batches skip its documents: each is tried once in a run.
    """

    def __init__(self, reclaim_context: ReclaimContext, report: Counter[str]) -> None:
        self._context = reclaim_context
        self._report = report
        self._skipped_ids: list[TaskId] = []

    def expire(self) -> bool:
        """Fail the tasks that were not started before their ``expires_at``."""
        now = self._context.clock.now()
        found = recovery.find_expired(self._context.tasks, now=now, limit=BATCH_SIZE, excluded_ids=self._skipped_ids)
        written = recovery.expire(self._context.tasks, found, now=now)
        self._report["expired"] += written.changed
        return self._record_tries(found, changed=written.changed, refused=written.refused)

    def adopt(self) -> bool:
        """Complete unclaimable documents if their missing fields can be derived; quarantine the rest unchanged."""
        now = self._context.clock.now()
        found = recovery.find_unclaimable(self._context.tasks, limit=BATCH_SIZE, excluded_ids=self._skipped_ids)
        verdicts = [
            (decode(raw)["_id"], missing_fields(raw, now=now, adopt_as=self._context.adopt_as)) for raw in found
        ]
        rejected = [verdict for _, verdict in verdicts if isinstance(verdict, Malformed)]
        adoptions = [(task_id, verdict) for task_id, verdict in verdicts if not isinstance(verdict, Malformed)]
        quarantined = recovery.quarantine_all(self._context.tasks, rejected, now=now)
        self._report["quarantined"] += quarantined.changed
        adopted = recovery.adopt(self._context.tasks, adoptions)
        self._report["adopted"] += adopted.changed
        ids = [task_id for task_id, _ in verdicts]
        changed, refused = quarantined.changed + adopted.changed, quarantined.refused + adopted.refused
        return self._record_tries(ids, changed=changed, refused=refused)

    def _record_tries(self, ids: Sequence[TaskId], *, changed: int, refused: int) -> bool:
        self._report["write_rejected"] += refused
        if changed < len(ids):
            self._skipped_ids += ids
        return len(ids) == BATCH_SIZE


class ForeignSweep:
    """Adopts documents of another program that it had started or ended, each tried once in a run.

    Each method processes one batch and returns whether more may be left. Without a function for adopted documents only
    failed ones with a name can be adopted.
    """

    def __init__(self, reclaim_context: ReclaimContext, report: Counter[str]) -> None:
        self._context = reclaim_context
        self._report = report
        self._skipped_ids: list[TaskId] = []

    def adopt_processing(self) -> bool:
        """Give documents that are processing a lease: the other program may still run them."""
        return self._adopt("processing")

    def adopt_failed(self) -> bool:
        """Complete failed documents, so that the archive can move them and they can be redriven."""
        return self._adopt("failed")

    def adopt_ended(self) -> bool:
        """Complete done and cancelled documents, so that their retention begins."""
        return self._adopt("ended")

    def _adopt(self, state: State) -> bool:
        context, now = self._context, self._context.clock.now()
        found = adoption.find_foreign(context.tasks, state, limit=BATCH_SIZE, excluded_ids=self._skipped_ids)
        verdicts = [(raw, complete(raw, now=now, adopt_as=context.adopt_as)) for raw in found]
        adoptions = [
            self._build_adoption(raw, *verdict, is_failed=state == "failed")
            for raw, verdict in verdicts
            if not isinstance(verdict, Malformed)
        ]
        written = adoption.adopt_foreign(context.tasks, state, adoptions, now=now)
        self._report["adopted"] += written.changed
        self._report["write_rejected"] += written.refused
        if state == "failed":
            rejected = [verdict for _, verdict in verdicts if isinstance(verdict, Malformed)]
            quarantined = adoption.quarantine_failed(context.tasks, rejected, now=now)
            self._report["quarantined"] += quarantined.changed
        self._skipped_ids += [decode(raw)["_id"] for raw in found]
        # Ended documents that cannot be adopted stay as they are: a batch of them must not lead to the next one.
        return len(found) == BATCH_SIZE and (state != "ended" or written.changed > 0)

    def _build_adoption(
        self, raw: RawBSONDocument, task: Task, fields: Mapping[str, Any], *, is_failed: bool
    ) -> Adoption:
        is_exhausted = is_failed and task.attempts > self._context.policy(task).max_retries
        names = frozenset(name for name, value in raw.items() if value is not None)
        return Adoption(task=task, fields=fields, names=names, is_exhausted=is_exhausted)
