"""What a claim costs beside all that waits, is delayed, or has finished: one database for each."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database

from tests.costs import explain
from tests.databases import make
from tidemill.model import Lease
from tidemill.store import claims
from tidemill.store.connection import open_tasks
from tools.bench import drains, stock
from tools.bench.bare import HEAD, LEASE
from tools.bench.drains import BATCH
from tools.bench.figures import Figure, Series, Target
from tools.bench.measuring import Spread, in_turns, ratio, seconds, spread

FLAT: Final = Target(at_most=1.5)
KEYS: Final = Target(at_most=1.1)
CLAIMS: Final = 3
"""So many in a row are one measurement."""

_DAY: Final = timedelta(days=1)
_MS: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What else there is beside the hundred that are claimed."""

    pending: int
    finished: int = 0
    delayed: int = 0

    def __str__(self) -> str:
        besides = [f"{count(n)} {what}" for n, what in ((self.finished, "finished"), (self.delayed, "delayed")) if n]
        return " beside ".join([f"{count(self.pending)} pending", *besides])


@dataclass(slots=True, kw_only=True)
class Claims:
    """Claims from one database, in which as many tasks become due as are taken."""

    db: Database[Any]
    now: datetime
    added: int
    scan: Any = HEAD
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def sample(self) -> float:
        """Return the seconds of one claim, of which each goes on where the last one was."""
        return sum(self._claim() for _ in range(CLAIMS)) / CLAIMS

    def keys_per_task(self) -> float:
        """Return how many keys the server examines to find the next ids."""
        plan = explain(self.db, self.scan, limit=BATCH, now=self.now)
        examined: int = plan["totalKeysExamined"]
        return examined / BATCH

    def _claim(self) -> float:
        stock.add(self.db, self.added, self.added + BATCH, now=self.now)
        self.added += BATCH
        found: list[claims.Claim] = []
        took = seconds(lambda: found.append(self._claimed()))
        [claim] = found
        if len(claim.tasks) != BATCH:
            raise RuntimeError(f"a claim of {BATCH} brought {len(claim.tasks)}")
        self.scan = claim.scan
        return took

    def _claimed(self) -> claims.Claim:
        lease = Lease(token=uuid.uuid4().hex, owner="A", expires_at=self.now + LEASE)
        return claims.claim(open_tasks(self.db), self.scan, limit=BATCH, lease=lease, now=self.now, rng=self.rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What the claims from one database cost, also as multiples of those from the smallest one."""

    crowd: Crowd
    took: Spread
    times: Spread
    keys_per_task: float


def grown(
    client: MongoClient[dict[str, Any]], pending: Sequence[int], *, beside: int, rounds: int
) -> tuple[list[Figure], Series]:
    """Return the figures and the points of claims beside so many *pending* ones, and *beside* others.

    The first of *pending* is what the others are compared with.
    """
    crowds = [
        Crowd(pending=n, finished=finished, delayed=delayed)
        for finished, delayed in ((0, 0), (beside, 0), (0, beside))
        for n in pending
    ]
    each = list(_measured(client, crowds, rounds=rounds))
    return list(_figures(each)), [_point(one) for one in each]


def count(number: int) -> str:
    """Return *number* as people say it: 1 k, 1 M."""
    for size, letter in ((1_000_000, " M"), (1_000, " k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return str(number)


def _measured(client: MongoClient[dict[str, Any]], crowds: Sequence[Crowd], *, rounds: int) -> Iterator[Grown]:
    now = drains.this_second()
    works = {str(crowd): _filled(client, crowd, now=now) for crowd in crowds}
    for work in works.values():
        work.sample()
    found = in_turns(rounds, {name: work.sample for name, work in works.items()})
    smallest = found[str(crowds[0])]
    for crowd in crowds:
        took = found[str(crowd)]
        keys = works[str(crowd)].keys_per_task()
        yield Grown(crowd=crowd, took=spread(took), times=ratio(took, smallest), keys_per_task=keys)


def _filled(client: MongoClient[dict[str, Any]], crowd: Crowd, *, now: datetime) -> Claims:
    db = make(client)
    kinds: Sequence[tuple[int, Mapping[str, Any]]] = (
        (crowd.finished, {"status": "done", "finished_at": now, "retain_from": now + _DAY, "attempts": 1}),
        (crowd.delayed, {"due_at": now + _DAY, "next_retry_at": now + _DAY}),
        (crowd.pending, {}),
    )
    made = 0
    for many, fields in kinds:
        stock.add(db, made, made + many, now=now, **fields)
        made += many
    return Claims(db=db, now=now, added=made)


def _figures(each: Sequence[Grown]) -> Iterator[Figure]:
    smallest, *others = each
    for one in others:
        if not one.crowd.finished and not one.crowd.delayed:
            yield _flat(one, smallest, name=str(one.crowd))
    for kind in ("finished", "delayed"):
        slowest = max((one for one in others if getattr(one.crowd, kind)), key=lambda one: one.times.median)
        most = count(getattr(slowest.crowd, kind))
        yield _flat(slowest, smallest, name=f"{most} {kind} (the slowest: {count(slowest.crowd.pending)} pending)")
    yield Figure(
        name=f"claim of {BATCH}: keys examined to find the ids, the most of all",
        value=max(one.keys_per_task for one in each),
        unit="keys a task",
        target=KEYS,
    )


def _flat(one: Grown, smallest: Grown, *, name: str) -> Figure:
    return Figure(
        name=f"claim of {BATCH}, {name}",
        value=one.times.median,
        unit="times",
        absolute=f"{one.took.median * _MS:.1f} ms; {smallest.crowd} {smallest.took.median * _MS:.1f} ms",
        least=one.times.least,
        most=one.times.most,
        target=FLAT,
    )


def _point(one: Grown) -> Mapping[str, float]:
    crowd, took = one.crowd, one.took
    return {
        "pending": crowd.pending,
        "finished": crowd.finished,
        "delayed": crowd.delayed,
        "ms": took.median * _MS,
        "least": took.least * _MS,
        "most": took.most * _MS,
        "keys_per_task": one.keys_per_task,
    }
