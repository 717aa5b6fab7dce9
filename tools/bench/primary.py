"""What a task costs the primary, whoever asks: its processor, its oplog, its memory for indexes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psutil
from bson import Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import make
from tools.bench import drains
from tools.bench.drains import BATCH
from tools.bench.figures import Figure, Scale, Section
from tools.bench.measuring import Spread, in_turns, spread

STEPS: Final = ("enqueue", "claim", "settle")
_MS: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """In each round so many tasks go from enqueue to done."""

    rounds: int
    tasks: int


SIZES: Final[Mapping[Scale, Size]] = {
    "toy": Size(rounds=1, tasks=200),
    "quick": Size(rounds=5, tasks=1000),
    "full": Size(rounds=5, tasks=5000),
}


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures, for which some databases are filled on the server."""
    size = SIZES[scale]
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        primary = _Primary(client)
        lives = in_turns(size.rounds, {"life": lambda: primary.life(size.tasks)})["life"]
        steps = {step: spread([one[step] for one in primary.spent]) for step in STEPS}
        figures = [
            *(_processor(f"processor, to {step}", steps[step]) for step in STEPS),
            _processor("processor, in all", spread(lives)),
            Figure(
                name="carried by a core of the primary",
                value=_MS / spread(lives).median,
                unit="tasks/s",
                absolute="enqueued a thousand at a time, claimed and settled a hundred at a time",
                least=_MS / max(lives),
                most=_MS / min(lives),
            ),
            Figure(name="oplog, from enqueue to done", value=primary.oplog, unit="bytes a task"),
            Figure(name="indexes of a pending task", value=primary.indexes, unit="bytes a task"),
        ]
    return Section(title="What a task costs the primary", figures=figures)


def _processor(name: str, found: Spread) -> Figure:
    return Figure(name=name, value=found.median, unit="ms a task", least=found.least, most=found.most)


class _Primary:
    """Takes tasks through their life, and keeps what that took of the server: of the last one, but for ``spent``."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self._client = client
        self._process = psutil.Process(client.admin.command("serverStatus")["pid"])
        self.spent: list[dict[str, float]] = []
        self.oplog = 0.0
        self.indexes = 0.0

    def life(self, count: int) -> float:
        """Return the milliseconds of processor that a task takes from enqueue to done, one of *count*."""
        db = make(self._client)
        mover = drains.Mover(db, now=drains.this_second() + timedelta(hours=1))
        claimed: list[Any] = []
        began = self._last_entry()

        def claim() -> None:
            while some := mover.claim(BATCH):
                claimed.append(some)

        def settle() -> None:
            for some in claimed:
                mover.settle(some)

        spent = {"enqueue": self._spent(lambda: drains.enqueue(db, count)) / count}
        self.indexes = self._index_bytes(db) / count
        spent["claim"] = self._spent(claim) / count
        spent["settle"] = self._spent(settle) / count
        self.oplog = self._oplog_since(began, db) / count
        self.spent.append(spent)
        return sum(spent.values())

    def _spent(self, work: Callable[[], object]) -> float:
        before = self._process.cpu_times()
        work()
        after = self._process.cpu_times()
        return (after.user - before.user + after.system - before.system) * _MS

    def _index_bytes(self, db: Database[Any]) -> float:
        self._client.admin.command("fsync")  # sizes are those of the last checkpoint
        sizes: dict[str, int] = db.command("collStats", "tasks")["indexSizes"]
        return float(sum(sizes.values()))

    def _last_entry(self) -> Timestamp:
        [last] = self._client.local["oplog.rs"].find().sort("$natural", -1).limit(1)
        at: Timestamp = last["ts"]
        return at

    def _oplog_since(self, began: Timestamp, db: Database[Any]) -> float:
        own: dict[str, Any] = {"$or": [{"ns": f"{db.name}.tasks"}, {"o.applyOps.ns": f"{db.name}.tasks"}]}
        size: dict[str, Any] = {"$group": {"_id": None, "n": {"$sum": {"$bsonSize": "$$ROOT"}}}}
        stages: list[dict[str, Any]] = [{"$match": {"ts": {"$gt": began}} | own}, size]
        [found] = self._client.local["oplog.rs"].aggregate(stages)
        return float(found["n"])
