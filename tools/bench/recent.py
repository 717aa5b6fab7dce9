"""What a claim costs after others that were made in the same minute, whose index entries are still there, but dead.

Each measurement is an executor that starts: its first claim, with the looks at the head that come before it, and then
a second of claims. The clock runs ahead, so that what each second brings, a look at the head, is among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database

from tests.claimers import a_claimer
from tests.costs import skipped
from tests.databases import make
from tidemill.control.fleet import ExecutorSlots
from tidemill.executor.claimer import Claimer
from tidemill.executor.context import ExecutionOptions
from tidemill.executor.invocation import run_invocation
from tidemill.store.connection import open_tasks
from tools.bench import drains, stock
from tools.bench.backlog import FLAT, count
from tools.bench.drains import BATCH
from tools.bench.figures import Figure, Series, Target
from tools.bench.measuring import Spread, in_turns, ratio, seconds, spread

SKIPPED: Final = Target(at_most=5)
CLAIMS: Final = 20
AHEAD_SEC: Final = 0.05
"""So much more for each claim: an executor that runs 2,000 tasks a second has one look at the head in 20 claims."""

_TASKS: Final = CLAIMS * BATCH
_PER_SAMPLE: Final = BATCH + _TASKS
_MS: Final = 1000.0


@dataclass(slots=True)
class Clock:
    """Real time, and some more for every claim."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """Executors that start, one after the other.

    Kept of each are the seconds of its first claim and the dead entries it stepped over; then the mean seconds of a
    claim in the second that follows, and the entries for each of its tasks.
    """

    now: datetime
    first: list[float] = field(default_factory=list)
    first_skipped: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    later_skipped: list[float] = field(default_factory=list)

    def start(self, db: Database[Any]) -> float:
        """Return the seconds of a later claim."""
        clock = Clock()
        claimer = a_claimer(open_tasks(db), monotonic=clock)
        at_first = skipped(db)
        self.first.append(seconds(lambda: self._claim(claimer, idle=True)))
        before = skipped(db)
        took = 0.0
        for _ in range(CLAIMS):
            clock.ahead += AHEAD_SEC
            took += seconds(lambda: self._claim(claimer))
        self.later.append(took / CLAIMS)
        self.first_skipped.append(before - at_first)
        self.later_skipped.append((skipped(db) - before) / _TASKS)
        return self.later[-1]

    def _claim(self, claimer: Claimer, *, idle: bool = False) -> None:
        held = claimer.claim(free=BATCH, slots=BATCH, now=self.now, idle=idle).tasks
        if len(held) != BATCH:
            raise RuntimeError(f"a claim of {BATCH} brought {len(held)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What was measured after so many claims, and beside it, in the same rounds, without any."""

    claimed: int
    ours: Executors
    fresh: Executors


def after_claims(
    client: MongoClient[dict[str, Any]], levels: Sequence[int], *, told: Sequence[int], rounds: int
) -> tuple[list[Figure], Series]:
    """Return the figures of those of *levels* that are *told*, and the points of all: so many claims went before."""
    now = drains.this_second()
    db = make(client)
    total = levels[-1] + (len(levels) + 1) * rounds * _PER_SAMPLE
    stock.add(db, 0, total, now=now)
    each = [_after(client, db, level, rounds=rounds, now=now) for level in levels]
    stock.claim(db, 0, total, now=now)
    shown = [one for one in each if one.claimed in told]
    figures = [figure for one in shown for figure in _figures(one)]
    empty = _empty_tick(client, db, total, rounds=rounds)
    return [*figures, empty], [_none_before(each), *(_point(one) for one in each)]


def _after(client: MongoClient[dict[str, Any]], db: Database[Any], level: int, *, rounds: int, now: datetime) -> After:
    """Measure when the first *level* tasks are claimed; claims what is missing to that."""
    stock.claim(db, 0, level, now=now)
    ours, fresh = Executors(now=now), Executors(now=now)
    in_turns(rounds, {"ours": lambda: ours.start(db), "fresh": lambda: fresh.start(_new(client, now=now))})
    return After(claimed=level, ours=ours, fresh=fresh)


def _new(client: MongoClient[dict[str, Any]], *, now: datetime) -> Database[Any]:
    db = make(client)
    stock.add(db, 0, _PER_SAMPLE + BATCH, now=now)
    return db


def _figures(after: After) -> Iterator[Figure]:
    ours, fresh, name = after.ours, after.fresh, f"after {count(after.claimed)} others"
    yield _flat(f"claim of {BATCH}, {name}", ours.later, fresh.later)
    yield _flat(f"an executor's first claim of {BATCH}, {name}", ours.first, fresh.first)
    dead = spread(ours.later_skipped)
    yield Figure(
        name=f"claim of {BATCH}, {name}: dead entries stepped over",
        value=dead.median,
        unit="entries a task",
        absolute=f"{spread(ours.first_skipped).median:,.0f} by an executor's first claim",
        least=dead.least,
        most=dead.most,
        target=SKIPPED,
    )


def _empty_tick(client: MongoClient[dict[str, Any]], db: Database[Any], total: int, *, rounds: int) -> Figure:
    ours, none = _ticks(db), _ticks(make(client))
    for one in (ours, none):
        one()
    found = in_turns(rounds, {"ours": ours, "none": none})
    return _flat(f"empty tick after {count(total)} claims", found["ours"], found["none"])


def _ticks(db: Database[Any]) -> Callable[[], float]:
    """Return what takes an empty tick of a warm executor of *db*."""
    runtime, executor_slots = drains.runtime(db), ExecutorSlots(db, limit=5)
    order = ExecutionOptions(owner="A", remaining=drains.LIFE)

    def tick() -> float:
        return seconds(lambda: run_invocation(runtime, order, executor_slots=executor_slots, launcher=None))

    return tick


def _flat(name: str, values: Sequence[float], others: Sequence[float]) -> Figure:
    times = ratio(values, others)
    return Figure(
        name=name,
        value=times.median,
        unit="times",
        absolute=f"{spread(values).median * _MS:.1f} ms; after none {spread(others).median * _MS:.1f} ms",
        least=times.least,
        most=times.most,
        target=FLAT,
    )


def _point(after: After) -> dict[str, float]:
    return _drawn(after.claimed, spread(after.ours.later), spread(after.ours.later_skipped))


def _none_before(each: Sequence[After]) -> dict[str, float]:
    took = spread([value for one in each for value in one.fresh.later])
    return _drawn(0, took, spread([value for one in each for value in one.fresh.later_skipped]))


def _drawn(claimed: int, took: Spread, dead: Spread) -> dict[str, float]:
    return {
        "claimed_before": claimed,
        "ms": took.median * _MS,
        "least": took.least * _MS,
        "most": took.most * _MS,
        "skipped_per_task": dead.median,
    }
