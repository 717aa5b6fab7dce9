"""Rules of claimers: with scans of their own, or as executors claim; and what a whole executor does."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from unittest.mock import ANY

from tidemill.control.queues import OptionsReader
from tidemill.executor.claimer import Claimer, ClaimResult
from tidemill.executor.context import ExecutionContext, ExecutionOptions, Report, Runtime
from tidemill.executor.execution import execute
from tidemill.executor.lifetime import Worker
from tidemill.executor.retry_permits import RetryPermits
from tidemill.model import LANES, Backoff, Lease, Malformed, RetryPolicy, Task
from tidemill.policy.scheduling import Lanes
from tidemill.settings import Settings
from tidemill.store import claims, recovery
from tidemill.store.claims import Claim
from tidemill.store.scan import Scan
from tools.chaos.model import executing, living
from tools.chaos.model.actions import Action
from tools.chaos.model.base import OWNERS, QUEUES, Base
from tools.chaos.model.world import Document, World, due, is_count, queues_of

LANE_CHOICES: Final[tuple[Lanes, ...]] = (LANES, ("fresh",), ("retry",))
LEASES: Final = tuple(timedelta(seconds=seconds) for seconds in (30, 120, 1, 900))
POLICY: Final = RetryPolicy(
    max_retries=living.RETRIES,
    backoff=Backoff(strategy="fixed", base_sec=living.WAIT.total_seconds(), jitter="none"),
)
SETTINGS: Final = Settings(linger=timedelta(0), retry=POLICY)
LIFE: Final = timedelta(seconds=120)


class Claiming(Base):
    """Claims: alone, by several, and by a whole executor."""

    def __init__(self) -> None:
        super().__init__()
        self._scans: dict[tuple[str, str, Lanes], Scan] = {}
        self._claimers: dict[str, Claimer] = {}
        self._registry = executing.registry()

    def claim(self, a: int, b: int, limit: int) -> None:
        """Claim behind what was claimed last."""
        self.alone(self.a_claim(a, b, limit))

    def claim_from_the_head(self, a: int, limit: int) -> None:
        """Claim what comes first."""
        self.alone(self.a_claim(a, 0, limit, from_head=True))

    def claim_as_executors_do(self, a: int, b: int, free: int) -> None:
        """Claim with all that an executor knows of where to look."""
        self.alone(self.an_executors_claim(OWNERS[a % 3], free=1 + free % 6, final=b % 2 == 0))

    def execute(self) -> None:
        """Have an executor run all that is due."""
        self.alone(self.an_execution())

    def a_claim(self, a: int, b: int, limit: int, *, from_head: bool = False) -> Action:
        """Return the claim of some tasks behind what the same claimer took last, or from the head."""
        owner, queue, lanes = OWNERS[a % 3], QUEUES[(a // 3) % 2], LANE_CHOICES[(b // 2) % 3]
        scan = self._scans.get((owner, queue, lanes), Scan(queue=queue, lanes=lanes))
        until = self.clock.now() + LEASES[limit // 7]
        lease = Lease(token=uuid.uuid4().hex, owner=owner, expires_at=until)
        return self.claim_of(scan.from_head() if from_head or b % 2 else scan, lease, many=1 + limit % 7)

    def claim_of(self, scan: Scan, lease: Lease, *, many: int) -> Action:
        """Return the claim of up to *many* tasks under *lease*."""
        now, queue, lanes = self.clock.now(), scan.queue, scan.lanes

        def do() -> Claim:
            claim = claims.claim(self.tasks, scan, limit=many, lease=lease, now=now, rng=self.rng)
            for one in claim.unclaimable:
                recovery.quarantine(self.tasks, one, now=now)
            return claim

        def steps(world: World) -> Sequence[World]:
            keys = _behind(due(world, queue=queue, lanes=lanes, now=now), scan)[:many]
            good = [one["_id"] for one in keys if is_count(one["attempts"])]
            stamped = living.claimed(world, good, lease, now=now)
            bad = [one["_id"] for one in keys if not is_count(one["attempts"])]
            return stamped, stamped.each_task(bad, lambda one: living.quarantined(one, now=now))

        def agrees(claim: Claim, before: World, _: World) -> str | None:
            left = due(before, queue=queue, lanes=lanes, now=now)
            wanted = [one["_id"] for one in _behind(left, scan)[:many]]
            got = [*(one.id for one in claim.tasks), *(one.id for one in claim.unclaimable)]
            if sorted(map(str, got)) != sorted(map(str, wanted)):
                return f"a claim brought {got}, where {wanted} come next"
            if claim.dry and scan.after is None and len(left) > many:
                return "a claim says that nothing is left, and there is"
            return None

        def then(claim: Claim) -> None:
            self._scans[lease.owner, queue, lanes] = replace(claim.scan, width=1.0, passed=False)
            self.take(claim.tasks, "claimed")

        where = "the head" if scan.after is None else "behind its last"
        name = f"{lease.owner} claims {many} of {queue} {lanes} from {where}"
        return Action(kind="claim", calls=3, name=name, do=do, steps=steps, agrees=agrees, then=then)

    def an_executors_claim(self, owner: str, *, free: int, final: bool) -> Action:
        """Return what an executor that has so many slots free claims, by its own notion of where to look."""
        now = self.clock.now()
        claimer = self._claimers.setdefault(owner, self._claimer(owner))

        def do() -> ClaimResult:
            return claimer.claim(free=free, slots=8, now=now, thorough=final)

        def agrees(claimed: ClaimResult, before: World, after: World) -> str | None:
            held = claimed.tasks
            open_ones = self.due_anywhere(before, now=now)
            clean = all(is_count(one["attempts"]) for one in open_ones)
            least = min(free, len(open_ones)) if final and clean else 0
            if not least <= len(held) <= free:
                return f"a claim of {free} brought {len(held)}, where {len(open_ones)} are due"
            if any(one.lease is None or living.token_of(after.tasks[one.id]) != one.lease.token for one in held):
                return "a claim brought tasks that bear another token"
            if claimed.exhausted and self.due_anywhere(after, now=now):
                return "a claimer says that it looked everywhere and nothing is left, and there is"
            return None

        def then(claimed: ClaimResult) -> None:
            self.take(claimed.tasks, "claimed by a claimer")

        def steps(world: World) -> Sequence[World]:
            found = self.due_anywhere(world, now=now)
            lease = Lease(token=ANY, owner=owner, expires_at=now + LIFE)
            good = [one["_id"] for one in found if is_count(one["attempts"])]
            bad = [one["_id"] for one in found if not is_count(one["attempts"])]
            stamped = living.claimed(world, good, lease, now=now)
            return [stamped.each_task(bad, lambda one: living.quarantined(one, now=now))]

        name = f"{owner}, {free} free{', finally' * final}, claims"
        return Action(kind="claim", calls=3, name=name, do=do, steps=steps, agrees=agrees, then=then, is_loose=True)

    def an_execution(self) -> Action:
        """Return the life of an executor, from its first claim until it finds nothing more."""
        now, lanes = self.clock.now(), self.served_lanes()
        runtime = Runtime(
            tasks=self.tasks,
            registry=self._registry,
            settings=SETTINGS,
            clock=self.clock,
            options=OptionsReader(self.db).options,
            rng=random.Random(7),
        )

        def do() -> Report:
            order_ = ExecutionOptions(owner=f"run-{uuid.uuid4().hex}", remaining=LIFE, concurrency=2)
            return execute(runtime, order_)

        def then(report: Report) -> None:
            self.count("executed", report["claimed"])

        def steps(world: World) -> Sequence[World]:
            return [executing.executed(world, lanes=lanes, now=now)]

        return Action(kind="execute", name="an executor runs what is due", do=do, steps=steps, then=then)

    def take(self, held: Sequence[Task | Malformed], what: str) -> None:
        """Remember claims, to be settled by and by."""
        self.count(what, len(held))
        self.count("claimed malformed", sum(isinstance(one, Malformed) for one in held))
        self.held += held

    def _claimer(self, owner: str) -> Claimer:
        runtime = Runtime(
            tasks=self.tasks,
            registry=self._registry,
            settings=SETTINGS,
            clock=self.clock,
            options=lambda queue: OptionsReader(self.db).options(queue),
            rng=random.Random(1),
            monotonic=self.monotonic,
        )
        context = ExecutionContext(
            runtime=runtime,
            options=ExecutionOptions(owner=owner, remaining=LIFE),
            lifetime=Worker(threading.Event(), lease=LIFE),
        )
        return Claimer(context, permits=RetryPermits(context), avoided=lambda: ())

    def due_anywhere(self, world: World, *, now: datetime) -> list[Document]:
        """Return what executors could claim."""
        queues, lanes = queues_of(world), self.served_lanes()
        return [one for queue in queues for one in due(world, queue=queue, lanes=lanes(queue), now=now)]

    def served_lanes(self) -> Callable[[str], Lanes]:
        """Return the lanes of a queue that executors claim from, as its options are now."""
        paused, without_retries = frozenset(self.paused), frozenset(self.without_retries)
        return lambda queue: () if queue in paused else ("fresh",) if queue in without_retries else LANES


def _behind(found: Sequence[Document], scan: Scan) -> Sequence[Document]:
    """Return those of *found* that come behind what *scan* has taken: numbers only, as DESIGN has it."""
    if scan.after is None:
        return found
    last = scan.after
    place = (-last.priority, last.due_at, last.id)
    numbered = [one for one in found if isinstance(one.get("priority"), int)]
    return [one for one in numbered if (-one["priority"], one["due_at"], one["_id"]) > place]
