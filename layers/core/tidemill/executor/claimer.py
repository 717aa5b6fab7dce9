"""Which tasks an execution takes next: queues in turn, lanes by their share, never over the same ground twice."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidemill.documents import EARLIEST
from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.model import LANES, Lane, Lease, Malformed, Task, TaskId
from tidemill.selection import lane_quotas
from tidemill.store import Tasks, claims, sweeps
from tidemill.store.scans import Scan

LOOK_AGAIN_SEC: Final = 1.0
"""How often a scan starts from the head, for higher priorities and for what was put back behind it."""

LOOK_COST: Final = 30.0
"""A full look may take one part in so many of the time."""

DRY_SEC: Final = 0.5
"""How long a lane without due tasks is left alone."""


@dataclass(slots=True, kw_only=True)
class _Place:
    """Where the scan of one lane is; times are readings of the monotonic clock."""

    scan: Scan
    full_look_at: float = -1e9
    full_look_cost: float = 0.0
    dry_since: float | None = None


class Claimer:
    """Takes due tasks under leases of *owner* that end at *lease_until*."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        owner: str,
        lease_until: Callable[[datetime], datetime],
        queues: Sequence[str],
        lanes: Sequence[Lane] = LANES,
        retry_share: float,
        report: Report,
        rng: random.Random,
        monotonic: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._owner = owner
        self._lease_until = lease_until
        self._queues = list(queues)
        self._lanes = lanes
        self._retry_share = retry_share
        self._report = report
        self._rng = rng
        self._monotonic = monotonic
        self._places: dict[tuple[str, Lane], _Place] = {}
        self._known_queues: list[str] = []
        self._next_queue_look = -1e9
        self._claim_started = 0.0
        self._turn = rng.randrange(1 << 16)
        self.trouble: TidemillError | None = None
        self.was_thorough = False
        self.interrupted = 0
        self.suspects: list[TaskId] = []
        self.unseen_tokens: list[str] = []

    def claim(
        self, *, free: int, slots: int, retries_in_flight: int, now: datetime, final: bool = False
    ) -> list[Task | Malformed]:
        """Return up to *free* tasks, newly leased. *final* looks at everything again before giving up.

        What went wrong, if anything, is left in `trouble`; what is returned is held nevertheless. `was_thorough`
        tells whether every lane was looked at from its head in vain, `interrupted` how many stamps in a row failed.
        """
        self.trouble = None
        self.was_thorough = True
        self._claim_started = self._monotonic()
        queues = self._queues or self._pending_queues(final=final)
        held: list[Task | Malformed] = []
        self._turn += 1
        for offset in range(len(queues)):
            left = free - len(held)
            if left <= 0:
                break
            queue = queues[(self._turn + offset) % len(queues)]
            flying = retries_in_flight + sum(isinstance(one, Task) and one.lane == "retry" for one in held)
            quotas = lane_quotas(
                free=left, slots=slots, retries_in_flight=flying, retry_share=self._retry_share, draw=self._rng.random()
            )
            held += self._from_queue(queue, quotas, now=now, final=final)
        self.was_thorough = self.was_thorough and not held
        return held

    def take_suspect(self, task_id: TaskId, *, now: datetime) -> list[Task | Malformed]:
        """Claim one task whose worker vanished before; the caller runs nothing beside it."""
        lease = self._lease(now)
        claim = claims.take(self._tasks, [task_id], lease=lease, now=now, suspects=True)
        return self._held(claim, now=now, token=lease.token)

    def put_back(self, task: Task, *, due_at: datetime, lane: Lane) -> None:
        """Note that *task* is pending again: a scan that has passed its place must look again."""
        self.was_thorough = False
        place = self._places.get((task.queue, lane))
        if place is not None:
            place.dry_since = None
            if place.scan.after is not None and due_at <= _time(place.scan.after.due_at):
                place.scan = place.scan.from_head()

    def _pending_queues(self, *, final: bool) -> list[str]:
        """Return the queues that have work. Finding them steps over all that was claimed, so not at every claim."""
        started = self._monotonic()
        if not final and started < self._next_queue_look:
            self.was_thorough = False
            return self._known_queues
        try:
            self._known_queues = [queue for queue in claims.queues(self._tasks) if isinstance(queue, str)]
        except TidemillError as error:
            self._note(error)
        cost = self._monotonic() - started
        self._next_queue_look = started + max(LOOK_AGAIN_SEC, LOOK_COST * cost)
        return self._known_queues

    def _note(self, error: TidemillError) -> None:
        self._report["errors"] += 1
        self.trouble = error
        self.was_thorough = False

    def _from_queue(
        self, queue: str, quotas: list[tuple[Lane, int]], *, now: datetime, final: bool
    ) -> list[Task | Malformed]:
        held: list[Task | Malformed] = []
        unused = 0
        for lane, quota in quotas:
            wanted = quota + unused
            found = self._from_lane(queue, lane, wanted, now=now, final=final)
            held += found
            unused = wanted - len(found)
        first, _ = quotas[0]
        if not self._was_found_dry(queue, first):  # it gets what no other lane could use
            held += self._from_lane(queue, first, unused, now=now, final=final)
        return held

    def _was_found_dry(self, queue: str, lane: Lane) -> bool:
        """Tell whether this very claim has looked there and found fewer than it wanted."""
        place = self._places.get((queue, lane))
        return place is not None and place.dry_since is not None and place.dry_since >= self._claim_started

    def _from_lane(self, queue: str, lane: Lane, limit: int, *, now: datetime, final: bool) -> list[Task | Malformed]:
        if lane not in self._lanes or limit <= 0 or self.trouble is not None:
            return []
        place = self._places.setdefault((queue, lane), _Place(scan=Scan(queue=queue, lane=lane)))
        started = self._monotonic()
        if final or self._wants_full_look(place, started):
            place.scan = place.scan.from_head()
        elif place.dry_since is not None and started - place.dry_since < DRY_SEC:
            self.was_thorough = False
            return []
        is_full = place.scan.after is None
        self.was_thorough = self.was_thorough and is_full
        lease = self._lease(now)
        try:
            claim = claims.claim(self._tasks, place.scan, limit=limit, lease=lease, now=now, rng=self._rng)
        except TidemillError as error:  # kept, not raised: tasks of another lane may be held already
            self._note(error)
            return []
        if is_full:
            place.full_look_at = started
            place.full_look_cost = self._monotonic() - started
        place.scan = claim.scan
        place.dry_since = started if claim.dry else None
        return self._held(claim, now=now, token=lease.token)

    def _wants_full_look(self, place: _Place, at: float) -> bool:
        return at - place.full_look_at > max(LOOK_AGAIN_SEC, LOOK_COST * place.full_look_cost)

    def _held(self, claim: claims.Claim, *, now: datetime, token: str) -> list[Task | Malformed]:
        self._report["claimed"] += len(claim.tasks)
        self._report["missed"] += claim.lost
        self.suspects += [one for one in claim.suspects if one not in self.suspects]
        self._note_interruption(claim)
        if claim.unresolved:
            self.unseen_tokens.append(token)
        self._quarantine(claim.unclaimable, now=now)
        return list(claim.tasks)

    def _note_interruption(self, claim: claims.Claim) -> None:
        if claim.error is None:
            self.interrupted = 0 if claim.scanned else self.interrupted
            return
        self._report["errors"] += 1
        self.interrupted += 1
        self.was_thorough = False

    def _quarantine(self, documents: Sequence[Malformed], *, now: datetime) -> None:
        for document in documents:
            try:
                self._report["quarantined"] += sweeps.quarantine(self._tasks, document, now=now)
            except TidemillError:  # no trouble for anybody else: it stays where it is, and the next look finds it
                self._report["errors"] += 1

    def _lease(self, now: datetime) -> Lease:
        return Lease(token=uuid.uuid4().hex, owner=self._owner, expires_at=self._lease_until(now))


def _time(value: object) -> datetime:
    return value if isinstance(value, datetime) else EARLIEST
