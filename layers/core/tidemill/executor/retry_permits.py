"""Permits of one execution for retries of queues that limit them."""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from threading import Lock
from typing import Final

from tidemill.control import semaphores
from tidemill.documents import ClaimKey, claim_key, id_key
from tidemill.executor.context import ExecutionContext
from tidemill.model import Malformed, Task
from tidemill.store.claims import Claim

LIMIT_PAUSE_SEC: Final = 0.5
"""Seconds for which retries of a queue are not claimed after its limit was reached."""

UNCONFIRMED_CLAIM_SEC: Final = 10.0
"""Seconds for which an unanswered claim may still take effect: the longest duration of an operation."""

PERMIT_GRACE: Final = timedelta(seconds=5)
"""Time by which a permit outlives its lease."""


class Reservation:
    """Permits for the retries that one claim takes from *queue*. Without a *limit* the claim needs none.

    Pass `grant` to the claim, and then pass the claim to `RetryPermits.record_claim`.

    Attributes:
        granted: Number of permits granted, 0 before `grant`.
        failed: MongoDB did not answer, so nothing was granted.
    """

    def __init__(self, queue: str, *, limit: int | None, acquire: Callable[[Reservation, int], int | None]) -> None:
        self.queue = queue
        self.limit = limit
        self.granted = 0
        self.failed = False
        self._acquire = acquire

    def grant(self, wanted: int) -> int:
        """Acquire up to *wanted* permits and return the number granted: 0 if MongoDB does not answer."""
        granted = wanted if self.limit is None else self._acquire(self, wanted)
        self.granted, self.failed = granted or 0, granted is None
        return self.granted


class RetryPermits:
    """Permits of one execution, acquired before retries are leased and released when their claims end.

    A permit that cannot be released expires shortly after the leases that are taken now.

    One thread may claim while another one settles. The number of each update and its ``seq`` are drawn under one lock,
    and the lock is not held while MongoDB is asked. All queues of one call have the same ``seq``.
    """

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._owner = semaphores.PermitOwner(owner=context.options.owner, execution=uuid.uuid4().hex)
        self._lock = Lock()
        self._seq = 0
        self._queues: defaultdict[str, _QueuePermits] = defaultdict(_QueuePermits)

    def is_full(self, queue: str) -> bool:
        """Return whether the limit of *queue* was reached a moment ago, so that retries are not claimed now."""
        permits = self._queues.get(queue)
        return permits is not None and self._context.monotonic() - permits.full_since < LIMIT_PAUSE_SEC

    def reserve(self, queue: str, *, limit: int | None, now: datetime) -> Reservation:
        """Return a reservation for one claim of *queue*. Permits are acquired by its `Reservation.grant`."""
        return Reservation(queue, limit=limit, acquire=partial(self._acquire, now=now))

    def record_claim(self, reservation: Reservation, claim: Claim, *, now: datetime) -> None:
        """Record the retries that *claim* leased with the permits of *reservation*, and release the unused permits."""
        if reservation.limit is None or not reservation.granted:
            return
        retries = set(map(id_key, claim.retries))
        leased = {claim_key(task) for task in claim.tasks if id_key(task.id) in retries}
        with self._lock:
            permits = self._queues[reservation.queue]
            permits.leased |= leased
            unused = permits.granted.pop(reservation) - len(claim.retries)
            if claim.is_unconfirmed:
                permits.unconfirmed.append((self._context.monotonic() + UNCONFIRMED_CLAIM_SEC, unused))
        if unused > 0 and not claim.is_unconfirmed:
            self._release_unused([reservation.queue], now=now)

    def release_ended(self, tasks: Iterable[Task | Malformed], *, now: datetime) -> bool:
        """Release the permits of ended claims, and return whether there were any.

        Another claim of the same task keeps its permit.
        """
        with self._lock:
            capped = {queue: permits for queue, permits in self._queues.items() if permits.leased}
            ended = {claim_key(task) for task in tasks} if capped else set()
            freed = [queue for queue, permits in capped.items() if permits.leased & ended]
            for queue in freed:
                capped[queue].leased -= ended
                capped[queue].full_since = -math.inf
        self._release_unused(freed, now=now)
        return bool(freed)

    def renew(self, *, now: datetime) -> None:
        """Extend all permits to the end of the leases."""
        with self._lock:
            queues = [queue for queue, permits in self._queues.items() if permits.leased]
        self._release_unused(queues, now=now)

    def close(self, *, now: datetime) -> None:
        """Release unconfirmed permits. Call it when no unknown lease of this execution is left."""
        with self._lock:
            at = self._context.monotonic()
            queues = [queue for queue, permits in self._queues.items() if permits.has_surplus(at)]
            for queue in queues:
                self._queues[queue].unconfirmed.clear()
        self._release_unused(queues, now=now)

    def _acquire(self, reservation: Reservation, wanted: int, *, now: datetime) -> int | None:
        """Acquire permits for *reservation*. Return the number granted, or ``None`` without an answer."""
        until = self._context.lease_until() + PERMIT_GRACE
        with self._lock:
            permits = self._queues[reservation.queue]
            permits.limit = reservation.limit or 0
            permits.wanted[reservation] = wanted
        [number] = self._update([reservation.queue], until=until, now=now)
        with self._lock:
            del permits.wanted[reservation]
            # Compared with what is held now: tasks may have ended meanwhile, and *number* may be of a later update.
            granted = min(max((number or 0) - permits.count_held(self._context.monotonic()), 0), wanted)
            if granted:
                permits.granted[reservation] = granted
            if granted < wanted:
                permits.full_since = self._context.monotonic()
        return None if number is None else granted

    def _release_unused(self, queues: Sequence[str], *, now: datetime) -> None:
        """Set the permits of *queues* to what is held, until the end of the leases."""
        self._update(queues, until=self._context.lease_until() + PERMIT_GRACE, now=now)

    def _update(self, queues: Sequence[str], *, until: datetime, now: datetime) -> list[int | None]:
        """Set the permits of *queues* to what is held and wanted.

        Return the number of permits that this execution has in each; ``None`` without an answer.
        """
        with self._lock:
            self._seq += 1
            seq, at = self._seq, self._context.monotonic()
            updates = [(queue, self._queues[queue].draw(seq, until=until, now=now, at=at)) for queue in queues]
        return [self._send(queue, seq, update) for queue, update in updates]

    def _send(self, queue: str, seq: int, update: Callable[..., int]) -> int | None:
        # After an error the next call, or the end of the lease, corrects the number.
        acquire = partial(update, self._context.tasks.database, f"retries:{queue}", self._owner)
        number = self._context.attempt(acquire, default=None)
        if number is not None:
            with self._lock:
                self._queues[queue].record_answer(seq, number)
        return number


@dataclass(slots=True)
class _QueuePermits:
    """Permits of one queue, as this execution counts them.

    Attributes:
        leased: Claims of retries whose leases are held.
        unconfirmed: Numbers of permits for claims that may still take effect, each with its end.
        wanted, granted: Permits of open reservations, before and after the answer.
        unanswered: ``seq`` of updates without an answer, and the time until which they could have an effect.
        answered_seq, answered_number: The highest ``seq`` with an answer, and the number of permits in the answer.
    """

    limit: int = 0
    leased: set[ClaimKey] = field(default_factory=set)
    unconfirmed: list[tuple[float, int]] = field(default_factory=list)
    wanted: dict[Reservation, int] = field(default_factory=dict)
    granted: dict[Reservation, int] = field(default_factory=dict)
    unanswered: dict[int, datetime] = field(default_factory=dict)
    answered_seq: int = 0
    answered_number: int = 0
    full_since: float = -math.inf

    def count_held(self, at: float) -> int:
        unconfirmed = sum(count for end, count in self.unconfirmed if end > at)
        return len(self.leased) + unconfirmed + sum(self.granted.values())

    def has_surplus(self, at: float) -> bool:
        """Return whether MongoDB may count more permits than are held without doubt."""
        is_unknown = bool(self.unconfirmed) or max(self.unanswered, default=0) > self.answered_seq
        return is_unknown or self.answered_number > self.count_held(at)

    def draw(self, seq: int, *, until: datetime, now: datetime, at: float) -> Callable[..., int]:
        """Return the next update, which guards against earlier ones for as long as these could have an effect."""
        self.unconfirmed = [(end, count) for end, count in self.unconfirmed if end > at]
        self.unanswered = {earlier: end for earlier, end in self.unanswered.items() if end > now}
        guarded_until = max(self.unanswered.values(), default=now)
        self.unanswered[seq] = max(until, guarded_until)
        return partial(
            semaphores.acquire,
            seq=seq,
            held=self.count_held(at),
            wanted=sum(self.wanted.values()),
            limit=self.limit,
            until=max(until, guarded_until),
            now=now,
            zero_until=guarded_until,
        )

    def record_answer(self, seq: int, number: int) -> None:
        self.unanswered.pop(seq, None)
        if seq > self.answered_seq:
            self.answered_seq, self.answered_number = seq, number
