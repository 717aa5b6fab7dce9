"""The attack: servers, executors and callers are brought up, attacked, left in peace, and judged."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database

from tests.waiting import eventually
from tidemill import indexes
from tidemill.clock import ServerClock
from tidemill.executor.lifetime import LEASE_GRACE
from tools.chaos import invariants
from tools.chaos.found import Found
from tools.chaos.replica_set import chores, telling, verdict
from tools.chaos.replica_set.boxes import LOGS, Place, environment
from tools.chaos.replica_set.callers import BUSINESS, RETRYABLE, Callers
from tools.chaos.replica_set.cloud import Cloud
from tools.chaos.replica_set.ledger import Ledger, Wanted, orders, wishes
from tools.chaos.replica_set.nemesis import Nemesis
from tools.chaos.replica_set.servers import Servers
from tools.chaos.replica_set.traces import runs

DATABASE: Final = "chaos"
TASK_SEC: Final = 2.0
LIFE: Final = timedelta(seconds=16)
"""The timeout of an executor: it claims for the first four seconds, since so much has to be left for a longest task."""

LEASE_SEC: Final = (LIFE + LEASE_GRACE).total_seconds() + 5.0
"""What is held by an executor of whose death nobody hears is due again after so long, and the jitter of a loss."""

QUIET_WITHIN_SEC: Final = 8 * LEASE_SEC
"""Bounds a hang: after the last fault one lease and the tasks that are left have to pass, on a busy machine slowly."""

REGISTERED_WITHIN_SEC: Final = 120.0
"""Bounds a hang, too: the first executor has to start."""

LAST_SEC: Final = 2.0
"""Kept of the time for the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much there is to do in the time that is given.

    With *tells_again* reclaim hears once more of those who are dead and hold something in the calm, which is shorter
    than a lease.
    """

    tasks: int
    every_sec: float
    calm_sec: float
    tells_again: bool


FULL: Final = Scale(tasks=2000, every_sec=4.0, calm_sec=40.0, tells_again=False)
QUICK: Final = Scale(tasks=300, every_sec=1.0, calm_sec=12.0, tells_again=True)
LONG_SEC: Final = 60.0
"""From so many seconds on it is the full one."""


def attack(*, seconds: float, seed: int) -> Found:
    """Attack for *seconds*, and return what was found.

    Raises:
        TimeoutError: The servers do not come back, which says nothing of Tidemill; likewise `ServerEndedError`.
    """
    started = time.monotonic()
    scale = FULL if seconds >= LONG_SEC else QUICK
    wanted = wishes(scale.tasks, random.Random(f"wishes {seed}"))
    with Servers() as servers:
        variables = environment(
            servers.uri, database=DATABASE, package=chores.__name__, task_sec=TASK_SEC, concurrency=8
        )
        place = Place(variables=variables, folder=servers.folder / "left")
        (place.folder / LOGS).mkdir(parents=True)
        with MongoClient[dict[str, Any]](servers.uri, tz_aware=True, w="majority") as client:
            until = started + seconds - LAST_SEC
            return _Attack(servers, client[DATABASE], place, wanted, scale, seed=seed, until=until).found()


class _Attack:
    def __init__(
        self,
        servers: Servers,
        db: Database[dict[str, Any]],
        place: Place,
        wanted: list[Wanted],
        scale: Scale,
        *,
        seed: int,
        until: float,
    ) -> None:
        self._servers = servers
        self._db = db
        self._place = place
        self._wanted = wanted
        self._scale = scale
        self._seed = seed
        self._ledger = Ledger(place.folder / "acknowledged")
        self._cloud = Cloud(place, life=LIFE, tells_all_from=until - LEASE_SEC, rng=self._rng("cloud"))
        self._until = until
        self._late = ""

    def found(self) -> Found:
        indexes.create(self._db)
        attacked_until = self._until - self._scale.calm_sec
        callers = Callers(
            orders(self._wanted),
            self._ledger,
            uri=self._servers.uri,
            place=self._place,
            until=attacked_until - 1,
            rng=self._rng("callers"),
        )
        first_term = self._servers.term()
        with self._running(callers):
            faults = self._attacked(callers, until=attacked_until)
            elections = self._servers.term() - first_term
            calm_at = time.monotonic()
            self._calm(callers, until=calm_at + QUIET_WITHIN_SEC)
            calm_sec = time.monotonic() - calm_at
        found = self._judged()
        found.faults.update(faults)
        found.faults["ticks twice at once"] += self._cloud.counts["ticks twice at once"]
        found.faults["ticks twice under one id"] += self._cloud.counts["ticks twice at once under one id"]
        found.notes[:0] = [f"{elections} elections; quiet {calm_sec:.1f} s after the last fault"]
        found.broken += [self._late] if self._late else []
        return found

    @contextmanager
    def _running(self, callers: Callers) -> Iterator[None]:
        self._cloud.start()
        try:
            self._wait_for_names()
            callers.start()
            yield
        finally:
            callers.stop()
            self._cloud.stop()
            self._ledger.close()

    def _wait_for_names(self) -> None:
        """Return once an executor has registered its functions: over HTTP no other name is taken."""
        if not eventually(lambda: self._db["task_types"].find_one() is not None, within=REGISTERED_WITHIN_SEC):
            raise TimeoutError("no executor registered its functions")

    def _attacked(self, callers: Callers, *, until: float) -> Counter[str]:
        nemesis = Nemesis(
            self._servers,
            executors=self._cloud.executors,
            others=[self._cloud.reclaimer, self._cloud.archiver, *callers.fronts],
            every=self._scale.every_sec,
            rng=self._rng("nemesis"),
        )
        nemesis.start()
        try:
            time.sleep(max(until - time.monotonic(), 0))
        finally:
            nemesis.stop()
        return nemesis.faults

    def _calm(self, callers: Callers, *, until: float) -> None:
        """Let the ticks go on until there is nothing left to do."""
        self._cloud.is_calm = True
        if not callers.join(until=until):
            self._late = "not all that was asked for was acknowledged in the calm after the faults"
        while self._is_busy():
            if time.monotonic() > until:
                self._late = "it was not quiet in time after the last fault"
                return
            time.sleep(0.5)
            if self._scale.tells_again:
                self._tell_again()

    def _tell_again(self) -> None:
        for owner in self._db["tasks"].distinct("lease.owner", {"status": "processing"}):
            if owner in self._cloud.dead:
                self._cloud.tell(owner)

    def _is_busy(self) -> bool:
        unfinished = {"status": {"$in": ["pending", "processing", "failed"]}}
        return self._db["tasks"].find_one(unfinished, {"_id": 1}) is not None

    def _judged(self) -> Found:
        answers = self._ledger.answers
        evidence = verdict.Evidence(
            wanted=self._wanted,
            answers=answers,
            tasks=list(self._db["tasks"].find()),
            letters=verdict.letters_by_task(list(self._db["tasks_dlq"].find())),
            business={one["_id"] for one in self._db[BUSINESS].find()},
            runs=runs(self._place.folder),
            deaths=self._place.deaths,
            retryable=RETRYABLE,
        )
        found = verdict.judged(evidence)
        now = ServerClock(self._db).now()
        found.broken += invariants.broken(self._db, accepted=verdict.ids(answers), now=now, at_rest=True)
        found.notes += telling.notes(evidence, self._cloud.counts)
        return found

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{name} {self._seed}")
