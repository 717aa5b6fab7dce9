"""Which tasks an execution takes next: queues in turn, lanes as chosen, never over the same ground twice."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tidemill.documents import is_text
from tidemill.errors import TidemillError
from tidemill.executor.places import CHEAP_LOOK_SEC, LOOK_AGAIN_SEC, LOOK_COST, Places
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.executor.serving import Serving
from tidemill.model import LANES, Lane, Lease, Malformed, Task, TaskId
from tidemill.selection import FRESH, RETRY, Lanes, mixed, served, shares
from tidemill.store import Tasks, claims, sweeps
from tidemill.store.scans import Key, Scan, key_of

TRIES_OF_THE_FIRST: Final = 3
"""How often a claim asks once more for what goes first, while others are quicker."""

TRIES_OF_THE_BEATEN: Final = 2
"""How often a claim that lost all it read looks again, elsewhere: quicker than a pause."""

MANY_LANES: Final = 100
"""Lanes of so many queues are looked at at once."""

DRAW_SEC: Final = 1.0
"""How long one draw decides whether a fraction of a slot is one or none."""


class Claimer:
    """Takes due tasks under leases of *owner* that end at *lease_until*, from *queues* as *serving* says.

    No *queues* are all that have pending tasks. Tasks that *avoided* names are left to others.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        owner: str,
        lease_until: Callable[[], datetime],
        queues: Sequence[str],
        lanes: Lanes,
        serving: Callable[[str], Serving],
        avoided: Callable[[], Sequence[TaskId]],
        caps: RetryCaps,
        report: Report,
        rng: random.Random,
        monotonic: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._owner = owner
        self._lease_until = lease_until
        self._queues = list(queues)
        self._lanes = lanes
        self._serving = serving
        self._avoided = avoided
        self._caps = caps
        self._report = report
        self._rng = rng
        self._monotonic = monotonic
        self._places = Places()
        self._known_queues: list[str] = []
        self._next_queue_look = -1e9
        self._queue_look_cost = 0.0
        self._least_queue_look = 1e9
        self._claim_started = 0.0
        self._heads: dict[tuple[str, Lanes], Key] = {}
        self._turn = rng.randrange(1 << 16)
        self._was_beaten = False
        self._lost_all = False
        self._draw = 0.0
        self._next_draw = -1e9
        self.trouble: TidemillError | None = None
        self.answered = False
        self.was_thorough = False
        self.left_some = False
        self.retries_go_first = False
        self.interrupted = 0
        self.beaten = 0
        self.unseen_tokens: list[str] = []
        self.overtakes: list[Task] = []

    def claim(
        self,
        *,
        free: int,
        slots: int,
        in_hand: Sequence[Task] = (),
        now: datetime,
        idle: bool = False,
        final: bool = False,
    ) -> list[Task | Malformed]:
        """Return up to *free* tasks, newly leased. *final* looks at everything again before giving up.

        Of *slots*, those that *in_hand* takes for other queues are none of a queue, and so are retries of those.

        *idle* says that nothing is in hand: then one look at all lanes of all queues comes first, which costs less
        where nothing is due.

        What went wrong, if anything, is left in `trouble`; what is returned is held nevertheless. `answered` tells
        whether MongoDB was asked at all and answered, `was_thorough` whether every lane was looked at from its head
        and is empty, `left_some` whether something due may have been left, `interrupted` how many claims in a row
        failed, `beaten` how many claims in a row brought nothing because others were quicker, `retries_go_first`
        whether a queue was served in which they are to.
        Retries that the selection put before fresh tasks are added to `overtakes`, and the token of a claim that may
        have stamped more than it saw to `unseen_tokens`.
        """
        self.trouble = None
        self.answered = False
        self.was_thorough = True
        self.left_some = False
        self.retries_go_first = False
        self._was_beaten = False
        self._caps.failed = False
        self.unseen_tokens = []
        self._heads.clear()
        self._claim_started = self._monotonic()
        interrupted_before = self.interrupted
        queues = self._queues or self._pending_queues(final=final)
        held: list[Task | Malformed] = []
        taken = Counter(one.queue for one in in_hand)
        retries = Counter(one.queue for one in in_hand if one.lane == "retry")
        self._turn += 1
        if idle and self._nothing_due(queues, now=now):
            queues = []
        for offset in range(len(queues)):
            left = free - len(held)
            if left <= 0:
                break
            queue = queues[(self._turn + offset) % len(queues)]
            its_slots = slots - (len(in_hand) - taken[queue]) - len(held)
            held += self._from_queue(
                queue, free=left, slots=its_slots, retries_in_flight=retries[queue], now=now, final=final
            )
        self.was_thorough = self.was_thorough and not held
        self.beaten = self.beaten + 1 if self._was_beaten and not held else 0
        if self._met_trouble():
            self.interrupted = max(self.interrupted, interrupted_before + 1)
        elif self.was_thorough:
            self.interrupted = 0
        elif self.interrupted == interrupted_before and not held:
            self.interrupted += min(interrupted_before, 1)  # nothing could even be tried: the pause grows all the same
        return held

    @property
    def queues(self) -> Sequence[str]:
        """The queues that are served, as far as they are known."""
        return self._queues or self._known_queues

    @property
    def has_pending(self) -> bool:
        """Whether there may be pending tasks, due or not, in the queues that are served."""
        return bool(self.queues)

    def put_back(self, task: Task, *, due_at: datetime, lane: Lane) -> None:
        """Note that *task* is pending again: a scan that has passed its place must look again."""
        self.was_thorough = False
        self._places.put_back(task, due_at=due_at, lane=lane)

    def _draw_of(self, at: float) -> float:
        """Return the draw of this second: one for every claim would top a fraction up and never give it back."""
        if at >= self._next_draw:
            self._draw, self._next_draw = self._rng.random(), at + DRAW_SEC
        return self._draw

    def _pending_queues(self, *, final: bool) -> list[str]:
        """Return the queues that have work. Finding them steps over all that was claimed, so not at every claim."""
        started = self._monotonic()
        if not (final or self._queue_look_is_due(started)):
            self.was_thorough = False
            return self._known_queues
        try:
            heads = [head for head in claims.heads(self._tasks) if is_text(head["queue"])]
            self._known_queues = [head["queue"] for head in heads]
            self._see(heads)
        except TidemillError as error:
            self._note(error)
        else:
            self.answered = True
            self._places.forget_all_but(self._known_queues)
            # One slow look says nothing, several do.
            cost = self._monotonic() - started
            self._queue_look_cost = min(cost, 2 * self._queue_look_cost + CHEAP_LOOK_SEC / 3)
            self._least_queue_look = min(cost, self._least_queue_look)
        self._next_queue_look = started + max(LOOK_AGAIN_SEC, LOOK_COST * self._queue_look_cost)
        return self._known_queues

    def _queue_look_is_due(self, at: float) -> bool:
        """Tell whether to look for queues: in time, and while none is known at every claim, where that is cheap.

        Else an executor that looks for work four times a second would see the first task of a queue a second late.
        """
        cheap = max(CHEAP_LOOK_SEC, 3 * self._least_queue_look)
        return at >= self._next_queue_look or (not self._known_queues and self._queue_look_cost < cheap)

    def _nothing_due(self, queues: Sequence[str], *, now: datetime) -> bool:
        """Tell whether a look from the head, at all lanes of all *queues* at once, finds nothing."""
        places = [self._places.of(queue, self._lanes) for queue in queues]
        started = self._monotonic()
        is_cheap = all(place.full_look_is_due(started, now=now, goes_first=True) for place in places)
        if not is_cheap or not 1 < len(queues) * len(self._lanes) <= MANY_LANES:
            return False
        try:
            if self._is_due(now) or self._finds_first(queues, now=now):
                for queue in queues:
                    self._places.restart(queue)
                return False
        except TidemillError as error:
            self._note(error)
            return True
        self.answered = True
        for place in places:
            place.scan = place.scan.from_head()
            place.looked(at=started, cost=self._monotonic() - started, now=now, dry=True, denied=False)
        return True

    def _is_due(self, now: datetime) -> bool:
        """Tell whether something that this claim has seen to come first is due."""
        avoided = self._avoided()
        return any(
            isinstance(head.due_at, datetime) and head.due_at <= now and head.id not in avoided
            for (_, lanes), head in self._heads.items()
            if set(lanes) <= set(self._lanes)
        )

    def _finds_first(self, queues: Sequence[str], *, now: datetime) -> bool:
        first = claims.first_due(self._tasks, queues, lanes=self._lanes, without=self._avoided(), now=now)
        if first is None:
            return False
        self._heads.clear()  # what was seen before was not due, and this may lie where no look from there gets
        self._see([first])
        return True

    def _met_trouble(self) -> bool:
        return self.trouble is not None or self._caps.failed

    def _note(self, error: TidemillError) -> None:
        self._report["errors"] += 1
        self.trouble = error
        self.was_thorough = False
        self.left_some = True

    def _from_queue(
        self, queue: str, *, free: int, slots: int, retries_in_flight: int, now: datetime, final: bool
    ) -> list[Task | Malformed]:
        try:
            choices = self._serving(queue)
        except TidemillError as error:  # nobody knows whether it is paused
            self._note(error)
            return []
        lanes = choices.lanes
        if not final and self._caps.is_full(queue):
            lanes = tuple(lane for lane in lanes if lane != "retry")
            self.was_thorough = False
            self.left_some = True
        if choices.paused or not lanes:
            return []
        asked = shares(
            choices.selection,
            lanes=lanes,
            free=free,
            slots=slots,
            retries_in_flight=retries_in_flight,
            retry_share=choices.retry_share,
            draw=self._draw_of(self._claim_started),
        )

        def take(lanes: Lanes, limit: int) -> list[Task | Malformed]:
            return self._from_lanes(queue, lanes, limit, choices, now=now, final=final)

        held = served(asked, take)
        self.retries_go_first = self.retries_go_first or choices.selection == "retries_first"
        if choices.selection != "weighted":
            return held
        retries = [one for one in held if isinstance(one, Task) and one.lane == "retry"]
        return mixed(retries, [one for one in held if not (isinstance(one, Task) and one.lane == "retry")])

    def _from_lanes(
        self, queue: str, lanes: Lanes, limit: int, choices: Serving, *, now: datetime, final: bool
    ) -> list[Task | Malformed]:
        goes_first = choices.selection == "retries_first" and lanes == RETRY
        held = self._look(queue, lanes, limit, choices, from_head=goes_first, now=now, final=final)
        for _ in range(TRIES_OF_THE_FIRST if goes_first else TRIES_OF_THE_BEATEN):
            is_enough = len(held) >= limit if goes_first else not self._lost_all
            if is_enough or self._is_exhausted(queue, lanes):
                break
            held += self._look(queue, lanes, limit - len(held), choices, from_head=False, now=now, final=False)
        return held

    def _is_exhausted(self, queue: str, lanes: Lanes) -> bool:
        return self.trouble is not None or self._places.is_exhausted(queue, lanes, since=self._claim_started)

    def _look(
        self,
        queue: str,
        lanes: Lanes,
        limit: int,
        choices: Serving,
        *,
        from_head: bool,
        now: datetime,
        final: bool,
    ) -> list[Task | Malformed]:
        self._lost_all = False
        if self._is_exhausted(queue, lanes):
            return []
        follows = choices.selection == "retries_first" and lanes == FRESH
        if follows and self._places.is_contested(queue, RETRY, since=self._claim_started):
            self._was_beaten = True
            return []
        place = self._places.of(queue, lanes)
        started = self._monotonic()
        if final or place.full_look_is_due(started, now=now, goes_first=from_head):
            place.scan = place.scan.from_head()
        elif place.is_dry(started) and not from_head:
            self.was_thorough = False
            return []
        head = None if final else self._heads.get((queue, lanes))
        scan = place.scan.from_head(head) if place.scan.after is None else place.scan
        is_full = scan.after is None and head is None
        claim = self._claimed(queue, scan, limit, choices, now=now)
        if claim is None:
            return []
        place.looked(at=started, cost=claim.look_sec, now=now, dry=claim.dry, denied=claim.denied > 0)
        place.scan = replace(claim.scan, head=None)
        self.was_thorough = self.was_thorough and is_full and claim.dry
        self.left_some = self.left_some or not claim.dry
        self._was_beaten = self._was_beaten or not (claim.dry or claim.denied or claim.error)
        self._lost_all = claim.lost > 0 and not claim.tasks and claim.error is None
        return list(claim.tasks)

    def _see(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Note what this claim has seen to come first in its lane, so that no look steps over the same again."""
        for document in documents:
            key = key_of(document)
            if key is not None and document["lane"] in LANES and is_text(document["queue"]):
                self._heads[document["queue"], (document["lane"],)] = key

    def _claimed(self, queue: str, scan: Scan, limit: int, choices: Serving, *, now: datetime) -> claims.Claim | None:
        """Claim, and account for what was claimed; ``None`` where that is not known, and noted."""
        granted = 0

        def grant(wanted: int) -> int:
            nonlocal granted
            granted = self._caps.grant(queue, wanted, limit=choices.max_in_flight_retries, now=now)
            return granted

        lease = self._lease()
        try:
            claim = claims.claim(
                self._tasks,
                scan,
                limit=limit,
                lease=lease,
                now=now,
                rng=self._rng,
                grant=grant,
                without=self._avoided(),
                monotonic=self._monotonic,
            )
        except TidemillError as error:  # kept, not raised: tasks of another lane may be held already
            self._note(error)
            return None
        self.answered = True
        self._caps.took(queue, claim, granted=granted, limit=choices.max_in_flight_retries, now=now)
        held = self._held(claim, now=now, token=lease.token)
        if choices.selection != "oldest_first" and len(choices.lanes) > 1:
            self.overtakes += [one for one in held if isinstance(one, Task) and one.lane == "retry"]
        return claim

    def _held(self, claim: claims.Claim, *, now: datetime, token: str) -> list[Task | Malformed]:
        self._report["claimed"] += len(claim.tasks)
        self._report["missed"] += claim.lost
        self._note_interruption(claim)
        if claim.is_doubtful:
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

    def _lease(self) -> Lease:
        return Lease(token=uuid.uuid4().hex, owner=self._owner, expires_at=self._lease_until())
