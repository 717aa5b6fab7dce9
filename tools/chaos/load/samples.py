"""What is looked at again and again while the load lasts: the server, and what Tidemill keeps in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psutil
from pymongo.database import Database

from tidemill.clock import Clock
from tidemill.documents import CONTROL, DEAD_LETTERS, OCCURRENCES, QUEUE_STATS, TASK_TYPES
from tidemill.documents import QUEUES as QUEUE_OPTIONS
from tidemill.store import counts
from tidemill.store.connection import open_tasks
from tools.chaos.load.work import PAUSED, QUEUES

KEPT: Final = (CONTROL, QUEUE_OPTIONS, TASK_TYPES, QUEUE_STATS, OCCURRENCES)
"""Collections whose size depends on what there is, not on what has been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much there is of something."""

    count: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look, *at* so many seconds of the load.

    Attributes:
        connections: Open ones, of everybody.
        due: Tasks that are due, those of the paused queue aside.
        oldest_sec: Since when the first of them is; ``paused_sec`` is the same of the queue that is paused at times.
        tasks, letters: How many are stored, whatever their status.
        kept: The extents of `KEPT`.
        server: Bytes of mongod's memory.
    """

    at: float
    connections: int
    due: int
    oldest_sec: float
    paused_sec: float
    tasks: int
    letters: int
    kept: Mapping[str, Extent]
    server: int


class Look:
    """Takes samples of one database."""

    def __init__(self, db: Database[Any], clock: Clock) -> None:
        self._db = db
        self._tasks = open_tasks(db)
        self._clock = clock
        self._server = psutil.Process(db.client.admin.command("serverStatus")["pid"])

    def sample(self, *, at: float) -> Sample:
        """Look now, *at* that moment of the load."""
        now = self._clock.now()
        sizes = counts.measure_queues(self._tasks, QUEUES, now=now)
        ages = {
            queue: 0.0 if one.oldest_due is None else (now - one.oldest_due).total_seconds()
            for queue, one in sizes.items()
        }
        return Sample(
            at=at,
            connections=self._db.client.admin.command("serverStatus")["connections"]["current"],
            due=sum(counts.count_due(self._tasks, queue, now=now) for queue in QUEUES if queue != PAUSED),
            oldest_sec=max(age for queue, age in ages.items() if queue != PAUSED),
            paused_sec=ages[PAUSED],
            tasks=self._tasks.estimated_document_count(),
            letters=self._db[DEAD_LETTERS].estimated_document_count(),
            kept={name: self._extent(name) for name in KEPT},
            server=self._server.memory_info().rss,
        )

    def _extent(self, name: str) -> Extent:
        size: dict[str, Any] = {"_id": None, "count": {"$sum": 1}, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}
        [found] = list(self._db[name].aggregate([{"$group": size}])) or [{"count": 0, "size": 0}]
        return Extent(count=found["count"], size=found["size"])
