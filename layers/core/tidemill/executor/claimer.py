"""The claims of one execution: queues in turn, lanes by the selection, no part of a lane scanned twice."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeGuard

from tidemill.documents import id_key, is_text
from tidemill.errors import TidemillError
from tidemill.executor.context import ExecutionContext, QueueChoices
from tidemill.executor.retry_permits import RetryPermits
from tidemill.executor.scan_positions import PendingQueues, ScanPositions
from tidemill.model import LANES, Lane, Lease, Malformed, Task, TaskId
from tidemill.policy.scheduling import FRESH, RETRY, Lanes, interleave, shares, take_shares
from tidemill.store import claims, recovery
from tidemill.store.scan import Key, find_first_due, read_key

RETRIES_FIRST_EXTRA_LOOKS: Final = 3
"""Extra looks of a claim at retries that go first, while other executors claim them faster."""

CONTENDED_EXTRA_LOOKS: Final = 2
"""Extra looks, at other positions, of a claim that lost all tasks that it read. They are faster than a pause."""

MAX_LANES_PER_LOOK: Final = 100
"""Lanes, over all queues, that one look covers at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """Result of one claim of an execution.

    Attributes:
        tasks: Claimed tasks, in the order of their starts. They are leased even after an ``error``.
        queues: Served queues that may have pending tasks, due or not.
        error: The last error that kept the claim from a queue.
        failed: An operation of the claim failed.
        tried: A stamp of due tasks succeeded, although other executors may have been faster.
        answered: MongoDB was asked and answered.
        thorough: Every lane was to be read from its head.
        exhausted: At the time of the claim every lane was read from its head, and nothing was due.
        more_due: Due tasks may be left.
        contended: Other executors were faster.
        retries_first: A queue with the selection ``retries_first`` was served.
        overtaking: Retries that the selection put before fresh tasks.
        unconfirmed_tokens: Tokens under which tasks may be leased that no read has returned.
    """

    tasks: tuple[Task | Malformed, ...] = ()
    queues: tuple[str, ...] = ()
    error: TidemillError | None = None
    failed: bool = False
    tried: bool = False
    answered: bool = False
    thorough: bool = False
    exhausted: bool = False
    more_due: bool = False
    contended: bool = False
    retries_first: bool = False
    overtaking: tuple[Task, ...] = ()
    unconfirmed_tokens: tuple[str, ...] = ()


class Claimer:
    """Claims due tasks for one execution. It does not claim the ids that *avoided* returns."""

    def __init__(
        self, context: ExecutionContext, *, permits: RetryPermits, avoided: Callable[[], Sequence[TaskId]]
    ) -> None:
        self._context = context
        self._permits = permits
        self._find_avoided_ids = avoided
        self._positions = ScanPositions(context.timing)
        self._pending_queues = PendingQueues(context)
        self._queue_turn = context.runtime.rng.randrange(1 << 16)
        self._draw = 0.0
        self._next_draw_at = -1e9

    def claim(
        self,
        *,
        free: int,
        slots: int,
        in_hand: Sequence[Task] = (),
        now: datetime,
        idle: bool = False,
        thorough: bool = False,
    ) -> ClaimResult:
        """Claim up to *free* tasks. A *thorough* claim reads every lane from its head.

        The share of a queue is computed from *slots* minus the tasks of other queues in *in_hand*; the share of its
        retries likewise. *idle* means that nothing is in hand. Then one look at all lanes of all queues comes first,
        because it costs less if nothing is due.
        """
        current = _CurrentClaim(
            context=self._context,
            permits=self._permits,
            positions=self._positions,
            find_avoided_ids=self._find_avoided_ids,
            draw=self._current_draw(),
            now=now,
            thorough=thorough,
        )
        current.read_queues(self._pending_queues)
        queues = self._pending_queues.names
        self._queue_turn += 1
        if queues and not (idle and current.finds_nothing_due(queues)):
            start = self._queue_turn % len(queues)
            current.claim_from_queues([*queues[start:], *queues[:start]], free=free, slots=slots, in_hand=in_hand)
        return current.build_result(free=free, queues=queues)

    def put_back(self, task: Task, *, due_at: datetime, lane: Lane) -> None:
        """Record that *task* is pending again, so that a scan that has passed it looks again."""
        self._positions.put_back(task, due_at=due_at, lane=lane)

    def _current_draw(self) -> float:
        """Return the draw of this second. A draw per claim would round a fraction up sooner or later, for good."""
        at = self._context.monotonic()
        if at >= self._next_draw_at:
            self._draw, self._next_draw_at = self._context.draw(), at + self._context.timing.draw_sec
        return self._draw


@dataclass(slots=True, kw_only=True)
class _CurrentClaim:
    """One claim while it is made: the looks so far, and the heads of lanes that were read."""

    context: ExecutionContext
    permits: RetryPermits
    positions: ScanPositions
    find_avoided_ids: Callable[[], Sequence[TaskId]]
    draw: float
    now: datetime
    thorough: bool
    started: float = field(init=False)
    tasks: list[Task | Malformed] = field(default_factory=list)
    looks: list[_Look] = field(default_factory=list)
    heads: dict[tuple[str, Lanes], Key] = field(default_factory=dict)
    retries_first: bool = False
    error: TidemillError | None = None

    def __post_init__(self) -> None:
        self.started = self.context.monotonic()

    def build_result(self, *, free: int, queues: Sequence[str]) -> ClaimResult:
        """Return the result of all looks."""
        looks, tasks = self.looks, tuple(self.tasks)
        return ClaimResult(
            tasks=tasks,
            queues=tuple(queues),
            error=self.error,
            failed=any(look.failed for look in looks),
            tried=any(look.tried for look in looks),
            answered=any(look.answered for look in looks),
            thorough=self.thorough,
            exhausted=not tasks and all(look.exhausted for look in looks),
            more_due=len(tasks) >= free or any(look.more_due for look in looks),
            contended=not tasks and any(look.contended for look in looks),
            retries_first=self.retries_first,
            overtaking=tuple(task for look in looks for task in look.overtaking),
            unconfirmed_tokens=tuple(token for look in looks for token in look.unconfirmed_tokens),
        )

    def read_queues(self, pending_queues: PendingQueues) -> None:
        """Read the queues with pending tasks, if that is due."""
        if pending_queues.is_fixed:
            return
        if not (self.thorough or pending_queues.is_read_due(self.started)):
            self.looks.append(_Look())  # another queue may have a due task
            return
        try:
            self._record_heads(pending_queues.read())
        except TidemillError as error:
            self._record_error(error)
            return
        self.looks.append(_Look(answered=True, exhausted=True))
        self.positions.forget_all_but(pending_queues.names)

    def finds_nothing_due(self, queues: Sequence[str]) -> bool:
        """Return whether a look from the head, at all lanes of all *queues* at once, finds nothing."""
        lanes = self.context.options.lanes
        positions = [self.positions.position(queue, lanes) for queue in queues]
        started = self.context.monotonic()
        is_cheap = all(position.is_full_look_due(started, now=self.now, goes_first=True) for position in positions)
        if not is_cheap or not 1 < len(queues) * len(lanes) <= MAX_LANES_PER_LOOK:
            return False
        try:
            if self._has_due_head() or self._reads_due_head(queues):
                for queue in queues:
                    self.positions.expect_due(queue)
                return False
        except TidemillError as error:
            self._record_error(error)
            return True
        self.looks.append(_Look(answered=True, exhausted=True))
        for position in positions:
            position.record_nothing_due(at=started, cost=self.context.monotonic() - started, now=self.now)
        return True

    def claim_from_queues(self, queues: Sequence[str], *, free: int, slots: int, in_hand: Sequence[Task]) -> None:
        """Claim up to *free* tasks of *queues*, in this order."""
        tasks_in_hand = Counter(task.queue for task in in_hand)
        retries_in_hand = Counter(task.queue for task in in_hand if task.lane == "retry")
        for queue in queues:
            left = free - len(self.tasks)
            if left <= 0:
                break
            self.tasks += self._claim_from_queue(
                queue,
                free=left,
                slots=slots - (len(in_hand) - tasks_in_hand[queue]) - len(self.tasks),
                retries_in_flight=retries_in_hand[queue],
            )

    def _claim_from_queue(self, queue: str, *, free: int, slots: int, retries_in_flight: int) -> list[Task | Malformed]:
        try:
            choices = self.context.runtime.queue_choices(queue, self.context.options)
        except TidemillError as error:  # the queue may be paused
            self._record_error(error)
            return []
        lanes = self.context.options.lanes
        if choices.max_in_flight_retries == 0:  # its retries are paused
            lanes = _without_retries(lanes)
        elif not self.thorough and self.permits.is_full(queue):
            lanes = _without_retries(lanes)
            self.looks.append(_Look(more_due=True))
        if choices.paused or not lanes:
            return []
        quotas = shares(
            choices.selection,
            lanes=lanes,
            free=free,
            slots=slots,
            retries_in_flight=retries_in_flight,
            retry_share=choices.retry_share,
            draw=self.draw,
        )
        claimed = take_shares(quotas, lambda lanes, limit: self._claim_from_lanes(queue, lanes, limit, choices))
        self.retries_first = self.retries_first or choices.selection == "retries_first"
        if choices.selection != "weighted":
            return claimed
        retries = [task for task in claimed if _is_retry(task)]
        return interleave(retries, [task for task in claimed if not _is_retry(task)])

    def _claim_from_lanes(self, queue: str, lanes: Lanes, limit: int, choices: QueueChoices) -> list[Task | Malformed]:
        goes_first = choices.selection == "retries_first" and lanes == RETRY
        look = self._look_at(queue, lanes, limit, choices, goes_first=goes_first, from_head=self.thorough)
        claimed = list(look.tasks)
        for _ in range(RETRIES_FIRST_EXTRA_LOOKS if goes_first else CONTENDED_EXTRA_LOOKS):
            is_enough = len(claimed) >= limit if goes_first else not look.lost_all
            if is_enough or self._is_used_up(queue, lanes):
                break
            look = self._look_at(queue, lanes, limit - len(claimed), choices, goes_first=False, from_head=False)
            claimed += look.tasks
        return claimed

    def _look_at(
        self, queue: str, lanes: Lanes, limit: int, choices: QueueChoices, *, goes_first: bool, from_head: bool
    ) -> _Look:
        """Look at *lanes* once and claim what is found.

        With *goes_first* the look starts at the head if that is cheap, with *from_head* in any case.
        """
        if self._is_used_up(queue, lanes):
            return _Look()
        follows = choices.selection == "retries_first" and lanes == FRESH
        if follows and self.positions.position(queue, RETRY).may_have_left(since=self.started):
            return self._record_look(_Look(contended=True))
        position = self.positions.position(queue, lanes)
        at = self.context.monotonic()
        if from_head or position.is_full_look_due(at, now=self.now, goes_first=goes_first):
            position.restart()
        elif position.is_dry(at) and not goes_first:
            return self._record_look(_Look())
        head = None if from_head else self.heads.get((queue, lanes))
        scan = position.next_scan(head)
        token = uuid.uuid4().hex
        reservation = self.permits.reserve(queue, limit=choices.max_in_flight_retries, now=self.now)
        try:
            claim = claims.claim(
                self.context.tasks,
                scan,
                limit=limit,
                lease=Lease(token=token, owner=self.context.options.owner, expires_at=self.context.lease_until()),
                now=self.now,
                rng=self.context.runtime.rng,
                grant=reservation.grant,
                without=self.find_avoided_ids(),
                monotonic=self.context.monotonic,
            )
        except TidemillError as error:  # kept, not raised: tasks of another lane may be leased already
            return self._record_error(error)
        self.permits.record_claim(reservation, claim, now=self.now)
        position.record_look(
            claim.scan, at=at, cost=claim.look_sec, now=self.now, dry=claim.dry, denied=claim.denied > 0
        )
        self._count_claim(claim)
        is_overtaking = choices.selection != "oldest_first" and len(self.context.options.lanes) > 1
        return self._record_look(
            _Look(
                tasks=claim.tasks,
                failed=claim.error is not None or reservation.failed,
                tried=claim.scanned > 0 and claim.error is None,
                answered=True,
                exhausted=claim.dry and scan.after is None and head is None,
                more_due=not claim.dry,
                contended=not (claim.dry or claim.denied or claim.error),
                lost_all=claim.lost > 0 and not claim.tasks and claim.error is None,
                overtaking=tuple(filter(_is_retry, claim.tasks)) if is_overtaking else (),
                unconfirmed_tokens=(token,) if claim.is_unconfirmed else (),
            )
        )

    def _is_used_up(self, queue: str, lanes: Lanes) -> bool:
        return self.error is not None or self.positions.is_used_up(queue, lanes, since=self.started)

    def _has_due_head(self) -> bool:
        """Return whether a head that was read is due and not avoided."""
        avoided = set(map(id_key, self.find_avoided_ids()))
        return any(
            isinstance(head.due_at, datetime) and head.due_at <= self.now and id_key(head.id) not in avoided
            for (_, lanes), head in self.heads.items()
            if set(lanes) <= set(self.context.options.lanes)
        )

    def _reads_due_head(self, queues: Sequence[str]) -> bool:
        first = find_first_due(
            self.context.tasks,
            queues,
            lanes=self.context.options.lanes,
            without=self.find_avoided_ids(),
            now=self.now,
        )
        if first is None:
            return False
        self.heads.clear()  # the heads were not due, and a look from them may miss this task
        self._record_heads([first])
        return True

    def _record_heads(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Record the first tasks of lanes, so that no look of this claim steps over the same documents again."""
        for document in documents:
            key = read_key(document)
            if key is not None and document["lane"] in LANES and is_text(document["queue"]):
                self.heads[document["queue"], (document["lane"],)] = key

    def _record_look(self, look: _Look) -> _Look:
        self.looks.append(look)
        return look

    def _record_error(self, error: TidemillError) -> _Look:
        self.error = error
        self.context.report["errors"] += 1
        return self._record_look(_Look(failed=True, more_due=True))

    def _count_claim(self, claim: claims.Claim) -> None:
        report = self.context.report
        report["claimed"] += len(claim.tasks)
        report["contended_ids"] += claim.lost
        report["errors"] += claim.error is not None
        for document in claim.unclaimable:
            # An error affects no other task: the document stays, and the next look finds it.
            quarantine = partial(recovery.quarantine, self.context.tasks, document, now=self.now)
            report["quarantined"] += self.context.attempt(quarantine, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look(ClaimResult):
    """Result of one look at lanes of a queue. ``lost_all``: other executors claimed every task that was found."""

    lost_all: bool = False


def _without_retries(lanes: Lanes) -> Lanes:
    return tuple(lane for lane in lanes if lane != "retry")


def _is_retry(task: Task | Malformed) -> TypeGuard[Task]:
    return isinstance(task, Task) and task.lane == "retry"
