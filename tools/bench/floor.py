"""Against the floor: what claiming, settling and a whole executor cost beside the bare driver, in turns, in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import make
from tidemill.settings import Settings
from tools.bench import bare, drains
from tools.bench.drains import BATCH, Moves
from tools.bench.figures import Figure, Scale, Section, Target
from tools.bench.measuring import in_turns, ratio, seconds, spread

STORE: Final = Target(at_least=0.7)
EXECUTOR: Final = Target(at_least=0.5)
OTHERS: Final = Target(at_least=8)

DEFAULT: Final = Settings().concurrency
_MS: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is moved: in each round so many batches, so many tasks by executors, and so many one by one."""

    rounds: int
    batches: int
    tasks: int
    one_by_one: int


SIZES: Final[Mapping[Scale, Size]] = {
    "toy": Size(rounds=1, batches=2, tasks=200, one_by_one=20),
    "quick": Size(rounds=5, batches=5, tasks=800, one_by_one=80),
    "full": Size(rounds=7, batches=10, tasks=4000, one_by_one=400),
}


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures, for which some databases are filled on the server."""
    size = SIZES[scale]
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        figures = [*_batches(client, size), *_drains(client, size)]
    return Section(title="The floor: beside the bare driver", figures=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycles:
    """Claims and settles *batches* at a time; keeps the seconds of each half, by round."""

    mover: Moves
    batches: int
    claims: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)

    def round(self) -> float:
        """Return the seconds of one round."""
        self.claims.append(0.0)
        self.settles.append(0.0)
        for _ in range(self.batches):
            claimed: list[Any] = []
            self.claims[-1] += seconds(lambda: claimed.extend(self.mover.claim(BATCH)))  # noqa: B023 - called at once
            if len(claimed) != BATCH:
                raise RuntimeError(f"a claim of {BATCH} brought {len(claimed)}")
            self.settles[-1] += seconds(lambda: self.mover.settle(claimed))  # noqa: B023
        return self.claims[-1] + self.settles[-1]


def _batches(client: MongoClient[dict[str, Any]], size: Size) -> list[Figure]:
    db, other = make(client), make(client)
    now = drains.this_second()
    for one in (db, other):
        drains.fill(one, (size.rounds + 1) * size.batches * BATCH)
    ours = _Cycles(mover=drains.Mover(db, now=now), batches=size.batches)
    plain = _Cycles(mover=bare.Mover(bare.open_plain(other), now=now), batches=size.batches)
    whole = in_turns(size.rounds, {"ours": ours.round, "bare": plain.round})

    def figure(name: str, values: Sequence[float], floor: Sequence[float]) -> Figure:
        return _of_the_floor(f"{name} of {BATCH}", values, floor, per=size.batches)

    return [
        figure("claim", ours.claims, plain.claims),
        figure("settle", ours.settles, plain.settles),
        figure("claim and settle", whole["ours"], whole["bare"]),
    ]


def _of_the_floor(name: str, values: Sequence[float], floor: Sequence[float], *, per: int) -> Figure:
    found = ratio(floor, values)
    ours, plain = (spread(times).median / per * _MS for times in (values, floor))
    return Figure(
        name=name,
        value=found.median,
        unit="of the floor",
        absolute=f"{ours:.1f} ms; bare {plain:.1f} ms",
        least=found.least,
        most=found.most,
        target=STORE,
    )


def _drains(client: MongoClient[dict[str, Any]], size: Size) -> list[Figure]:
    now = drains.this_second

    def work(drain: Callable[[Database[Any]], int], count: int) -> Callable[[], float]:
        """Return what fills a new database with *count* tasks, and drains so many a second."""

        def rate() -> float:
            db = make(client)
            drains.fill(db, count)
            drained: list[int] = []
            took = seconds(lambda: drained.append(drain(db)))
            if drained != [count]:
                raise RuntimeError(f"of {count} tasks, {drained[0]} were drained")
            return count / took

        return rate

    rates = in_turns(
        size.rounds,
        {
            "default": work(lambda db: drains.run(drains.runtime(db))["done"], size.tasks),
            "wide": work(lambda db: drains.run(drains.runtime(db), concurrency=BATCH)["done"], size.tasks),
            "loop": work(lambda db: drains.drain(drains.Mover(db, now=now()), BATCH), size.tasks),
            "bare": work(lambda db: drains.drain(bare.Mover(bare.open_plain(db), now=now()), BATCH), size.tasks),
            "others": work(
                lambda db: bare.drain_one_by_one(bare.open_plain(db), now=now(), most=size.one_by_one), size.one_by_one
            ),
        },
    )
    whole = (("default", f"executor, {DEFAULT} tasks at a time"), ("wide", f"executor, {BATCH} tasks at a time"))
    loop = ("loop", "claim and settle")
    floor = [
        _rate(name, rates[key], (rates["bare"], "bare"), unit="of the floor", target=EXECUTOR) for key, name in whole
    ]
    others = [
        _rate(
            f"{name}, beside findAndModify", rates[key], (rates["others"], "findAndModify"), unit="times", target=OTHERS
        )
        for key, name in (*whole, loop)
    ]
    return [*floor, *others]


def _rate(
    name: str, rates: Sequence[float], beside: tuple[Sequence[float], str], *, unit: str, target: Target
) -> Figure:
    others, what = beside
    found = ratio(rates, others)
    return Figure(
        name=name,
        value=found.median,
        unit=unit,
        absolute=f"{spread(rates).median:,.0f} tasks/s; {what} {spread(others).median:,.0f}",
        least=found.least,
        most=found.most,
        target=target,
    )
