"""Many claimers on one queue: what they move together, and what they lose to one another.

Each is a process of its own with a client of its own, and claims and settles as an executor does, without running
anything in between. All start in the same moment and go on for the same time, with more to do than they can.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import document
from tests.databases import make
from tidemill.clock import ServerClock
from tidemill.executor.claimer import CONTENDED_EXTRA_LOOKS, Claimer, ClaimResult
from tidemill.executor.context import ExecutionContext, ExecutionOptions, Report, Runtime
from tidemill.executor.idle import ClaimBackoff, compute_pause
from tidemill.executor.lifetime import TIMING, Worker
from tidemill.executor.retry_permits import RetryPermits
from tidemill.model import Malformed, QueueOptions, Task
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store import settle
from tidemill.store.connection import open_tasks
from tools.bench.drains import BATCH, done, payload, this_second
from tools.bench.figures import Figure, Scale, Section, Target
from tools.bench.measuring import in_turns, ratio, spread

QUEUE: Final = "default"
SLOTS: Final = Settings().concurrency
LEASE: Final = timedelta(minutes=2)
PATIENCE_SEC: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured: for *seconds*, or until none of so many *tasks* is left."""

    claimers: Sequence[int]
    rounds: int
    tasks: int
    seconds: float


EXTENTS: Final[Mapping[Scale, Extent]] = {
    "toy": Extent(claimers=(1, 2), rounds=1, tasks=600, seconds=PATIENCE_SEC),
    "quick": Extent(claimers=(1, 16), rounds=5, tasks=8_000, seconds=0.7),
    "full": Extent(claimers=(1, 2, 4, 8, 16), rounds=5, tasks=25_000, seconds=1.8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one claimer had of a run. Times are readings of the monotonic clock, which processes share.

    Attributes:
        claims, empty: Claims that found something to try, and those of them that brought nothing.
        read, lost: Ids that were tried, and those another claimer was quicker with.
        settled: Tasks.
        first_read, first_lost: What of *read* and *lost* the first claim had, when nobody knew of others.
    """

    started: float
    ended: float
    claims: int
    empty: int
    read: int
    lost: int
    first_read: int
    first_lost: int
    settled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What all claimers of one run had; *conflicts* and *keys* are the server's counts."""

    shares: Sequence[Share]
    conflicts: int
    keys: int

    def sum(self, name: str) -> int:
        """Return the sum of one count of all shares."""
        return sum(getattr(share, name) for share in self.shares)

    @property
    def rate(self) -> float:
        """Tasks in a second."""
        return self.sum("settled") / (
            max(share.ended for share in self.shares) - min(share.started for share in self.shares)
        )


def measure(uri: str, scale: Scale) -> Section:
    """Measure how throughput and losses change with the number of claimers."""
    extent = EXTENTS[scale]
    with _claimers(extent.claimers) as pool, MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        runs: dict[int, list[Together]] = {number: [] for number in extent.claimers}

        def measured(number: int) -> float:
            runs[number].append(_run(pool, client, uri, number=number, extent=extent))
            return runs[number][-1].rate

        rates = in_turns(extent.rounds, {str(number): partial(measured, number) for number in extent.claimers})
    return _section({number: rates[str(number)] for number in extent.claimers}, runs)


def _section(rates: Mapping[int, Sequence[float]], runs: Mapping[int, Sequence[Together]]) -> Section:
    few, many = min(rates), max(rates)
    figures = [
        _throughput(number, rates, target=Target(at_least=1.0) if number == many else None)
        for number in rates
        if number != few
    ]
    for number in (few, many):
        figures += _losses(f"{number} claimers" if number > 1 else "1 claimer", runs[number])
    return Section(
        title="Contention: claimers on one queue, each claims 100 and settles them",
        figures=figures,
        series={"claimers": [_point(number, rates[number], runs[number]) for number in rates]},
    )


def _throughput(number: int, rates: Mapping[int, Sequence[float]], *, target: Target | None) -> Figure:
    alone, together = rates[min(rates)], rates[number]
    found = ratio(together, alone)
    return Figure(
        name=f"throughput of {number} claimers",
        value=found.median,
        unit="of that of one",
        absolute=f"{spread(together).median:,.0f} tasks/s; one {spread(alone).median:,.0f}",
        least=found.least,
        most=found.most,
        target=target,
    )


def _losses(who: str, runs: Sequence[Together]) -> list[Figure]:
    def total(name: str) -> int:
        return sum(run.sum(name) for run in runs)

    settled, read, lost = total("settled"), total("read"), total("lost")
    first = _percent(total("first_lost"), total("first_read"))
    conflicts, keys = sum(run.conflicts for run in runs), sum(run.keys for run in runs)
    return [
        Figure(
            name=f"{who}: claims that came back empty, of up to {1 + CONTENDED_EXTRA_LOOKS} tries",
            value=_percent(total("empty"), total("claims")),
            unit="%",
            absolute=f"{total('empty')} of {total('claims'):,}",
            target=Target(at_most=2),
        ),
        Figure(
            name=f"{who}: ids lost to another",
            value=_percent(lost, read),
            unit="%",
            absolute=f"{lost:,} of {read:,}; of the first claims, all in one moment, {first:.0f} %",
            target=Target(at_most=10),
        ),
        Figure(
            name=f"{who}: write conflicts",
            value=conflicts / settled,
            unit="a task",
            absolute=f"{conflicts:,} for {settled:,} tasks",
        ),
        Figure(
            name=f"{who}: keys examined, of all indexes",
            value=keys / settled,
            unit="keys a task",
            absolute=f"{keys:,} for {settled:,} tasks",
        ),
    ]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _point(number: int, rates: Sequence[float], runs: Sequence[Together]) -> dict[str, float]:
    found = spread(rates)
    return {
        "claimers": float(number),
        "tasks_per_sec": found.median,
        "least": found.least,
        "most": found.most,
        "lost_percent": _percent(sum(run.sum("lost") for run in runs), sum(run.sum("read") for run in runs)),
    }


def _run(pool: Pool, client: MongoClient[dict[str, Any]], uri: str, *, number: int, extent: Extent) -> Together:
    db = make(client)
    fill(db, extent.tasks)
    before = _counts(client)
    shares = pool.starmap(take_part, [(uri, db.name, number, extent.seconds) for _ in range(number)], chunksize=1)
    after = _counts(client)
    _check(db, shares)
    client.drop_database(db.name)
    return Together(shares=shares, conflicts=after[0] - before[0], keys=after[1] - before[1])


def fill(db: Database[Any], count: int) -> None:
    """Have the server make *count* due tasks, which is quicker than sending them."""
    due = this_second() - timedelta(seconds=5)
    one = document(due, payload=payload(0))
    numbered: list[dict[str, Any]] = [
        {"$set": {"n": {"$range": [0, count]}}},
        {"$unwind": "$n"},
        {"$set": {"payload.body.n": "$n"}},
        {"$unset": ["_id", "n"]},
    ]
    db.aggregate([{"$documents": [one]}, *numbered, {"$merge": {"into": "tasks"}}])


def _counts(client: MongoClient[dict[str, Any]]) -> tuple[int, int]:
    metrics = client.admin.command("serverStatus")["metrics"]
    return metrics["operation"]["writeConflicts"], metrics["queryExecutor"]["scanned"]


def _check(db: Database[Any], shares: Sequence[Share]) -> None:
    """See that no task was moved twice, nor forgotten.

    Raises:
        RuntimeError: One was.
    """
    done, settled = db["tasks"].count_documents({"status": "done"}), sum(share.settled for share in shares)
    if done != settled or db["tasks"].count_documents({"status": "done", "attempts": {"$ne": 1}}):
        raise RuntimeError(f"{settled} tasks were settled, and {done} are done; some were moved twice or not at all")


@contextmanager
def _claimers(numbers: Sequence[int]) -> Iterator[Pool]:
    """As many processes as the most that claim together; each has imported all it needs, and no client."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    together = {number: context.Barrier(number) for number in numbers}
    with context.Pool(max(numbers), initializer=_remember, initargs=(together,)) as pool:
        yield pool
        pool.close()
        pool.join()


_together: dict[int, Barrier] = {}


def _remember(together: Mapping[int, Barrier]) -> None:
    _together.update(together)


def take_part(uri: str, database: str, number: int, seconds: float) -> Share:
    """Claim and settle, as one of *number* claimers, for so many seconds or until nothing is left."""
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        part = Part(client[database])
        part.warm_up()
        _together[number].wait(timeout=PATIENCE_SEC)
        return part.play(seconds)


class Part:
    """One claimer at work, with what it settles counted."""

    def __init__(self, db: Database[Any]) -> None:
        self._tasks = open_tasks(db)
        self._clock = ServerClock(db)
        self._rng = random.Random()
        self._report = Report()
        self._claimer = self._made()
        self._backoff = ClaimBackoff()
        self._settled = self._claims = self._empty = 0
        self._first: tuple[int, int] | None = None

    def warm_up(self) -> None:
        """Connect, and ask for the time."""
        self._clock.now()

    def play(self, seconds: float) -> Share:
        """Work for so long and return what came of it."""
        started = time.monotonic()
        while time.monotonic() - started < seconds and self._step():
            pass
        first_read, first_lost = self._first or (0, 0)
        return Share(
            started=started,
            ended=time.monotonic(),
            claims=self._claims,
            empty=self._empty,
            read=self._read,
            lost=self._report["contended_ids"],
            first_read=first_read,
            first_lost=first_lost,
            settled=self._settled,
        )

    @property
    def _read(self) -> int:
        return self._report["claimed"] + self._report["contended_ids"]

    def _step(self) -> bool:
        """Claim once and settle; false where all is done."""
        claimed = self._claim(thorough=False)
        if not (claimed.tasks or claimed.contended or claimed.exhausted):
            claimed = self._claim(thorough=True)
        if claimed.tasks:
            self._settle(claimed.tasks)
        elif self._backoff.in_vain:  # as an executor does
            time.sleep(compute_pause(self._backoff.in_vain, timing=TIMING, draw=self._rng.random()))
        return not claimed.exhausted

    def _claim(self, *, thorough: bool) -> ClaimResult:
        free = BATCH if self._first else SLOTS  # an executor fills its slots, and then goes on by the batch
        claimed = self._claimer.claim(free=free, slots=BATCH, now=self._clock.now(), thorough=thorough)
        self._backoff = self._backoff.after(claimed)
        if claimed.tasks or claimed.contended:
            self._claims += 1
            self._empty += not claimed.tasks
        if self._first is None and self._read:
            self._first = self._read, self._report["contended_ids"]
        return claimed

    def _settle(self, held: Sequence[Task | Malformed]) -> None:
        now = self._clock.now()
        self._settled += len(settle.settle(self._tasks, done(held, now=now), now=now).settled)

    def _made(self) -> Claimer:
        owner = f"{self._rng.getrandbits(64):x}"
        runtime = Runtime(
            tasks=self._tasks,
            registry=Registry(),
            settings=Settings(),
            clock=self._clock,
            options=lambda _: QueueOptions(),
            rng=self._rng,
        )
        context = ExecutionContext(
            runtime=runtime,
            options=ExecutionOptions(owner=owner, remaining=LEASE, queues=[QUEUE]),
            lifetime=Worker(threading.Event(), lease=LEASE),
            report=self._report,
        )
        return Claimer(context, permits=RetryPermits(context), avoided=tuple)
