"""A database with all that works on it, run by hand: where use cases crash, and where the ticks go on afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pymongo import WriteConcern
from pymongo.database import Database

from tests.databases import ALL_BUT_THE_MARK
from tests.fixtures import T0, ManualClock
from tidemill.admin.context import AdminContext
from tidemill.aws.s3 import Bucket
from tidemill.client import Queue
from tidemill.clock import Clock
from tidemill.control.fleet import ExecutorSlots
from tidemill.control.queues import OptionsReader
from tidemill.dead_letters import archive as dead_letters_archive
from tidemill.dead_letters.archive import ArchiveContext
from tidemill.documents import CONTROL, DEAD_LETTERS, OCCURRENCES, QUEUE_STATS, QUEUES, TASK_TYPES, TASKS
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.invocation import run_invocation
from tidemill.executor.lifetime import LEASE_GRACE
from tidemill.policy.retry import PRESETS, resolve_policy
from tidemill.reclaim import ReclaimContext, reclaim
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks
from tools.chaos.crash_points import functions
from tools.chaos.crash_points.cloud import BUCKET, Cloud, a_cloud
from tools.chaos.crash_points.deployment import Deployment
from tools.chaos.crash_points.functions import RUNS, Runs

DEAD: Final = "A"
"""Who works when the crash comes."""

BARRED: Final = "barred"
"""A task of this name cannot become a dead letter: the database forbids it."""

LIFE: Final = timedelta(seconds=120)
SNOOZED_UNTIL: Final = T0 + timedelta(hours=6)
SEATS: Final = 3
_COLLECTIONS: Final = (TASKS, DEAD_LETTERS, QUEUES, CONTROL, TASK_TYPES, QUEUE_STATS, OCCURRENCES, "orders")
_AT_ONCE: Final = WriteConcern(w=1, j=False)
_LONG_SEC: Final = 60.0


@dataclass(kw_only=True)
class World:
    """The database and the cloud, the time, and the functions of tasks, whose ``runs`` are counted."""

    db: Database[Any]
    cloud: Cloud
    clock: ManualClock = field(default_factory=ManualClock)
    settings: Settings = field(
        default_factory=lambda: Settings(linger=timedelta(0), retry=PRESETS["standard"], max_executors=SEATS)
    )
    runs: Runs = RUNS
    deployment: Deployment = field(init=False)
    has_bucket: bool = True
    expires_unexported: bool = False
    uses_bare: bool = False
    skipped_sec: float = 0.0

    def __post_init__(self) -> None:
        self.deployment = Deployment(self.db)
        self.registry: Registry = functions.registry(self.runs, self.clock, snoozed_until=SNOOZED_UNTIL)

    def clear(self) -> None:
        """Begin anew: no document, no object, and the time is T0."""
        for name in _COLLECTIONS:
            self.db.get_collection(name, write_concern=_AT_ONCE).delete_many(ALL_BUT_THE_MARK)
        self.deployment.end()
        self.cloud.clear()
        self.runs.clear()
        self.clock.at = T0
        self.has_bucket, self.expires_unexported, self.uses_bare = True, False, False
        self.skipped_sec = 0.0

    def skip(self, seconds: float) -> None:
        """Let time pass for executors."""
        self.skipped_sec += seconds

    def monotonic(self) -> float:
        """Return the seconds that executors see."""
        return time.monotonic() + self.skipped_sec

    @property
    def bare(self) -> Database[Any]:
        """Another database, which may be without indexes."""
        return self.db.client[f"{self.db.name}_bare"]

    @property
    def tasks(self) -> Tasks:
        """The living tasks."""
        return open_tasks(self.db)

    @property
    def dead(self) -> Tasks:
        """The dead letters."""
        return open_tasks(self.db, DEAD_LETTERS)

    @property
    def queue(self) -> Queue:
        """The queue of an application that has just been started."""
        return Queue(self.db, clock=self.clock)

    @property
    def context(self) -> AdminContext:
        """What an operator works with."""
        put = Bucket(BUCKET).put
        return AdminContext(db=self.db, clock=self.clock, retry=self.settings.retry, is_deployed=True, put=put)

    @property
    def executor_slots(self) -> ExecutorSlots:
        """The executor_slots of executors."""
        return ExecutorSlots(self.db, limit=SEATS)

    def runtime(self, *, clock: Clock | None = None, monotonic: Callable[[], float] | None = None) -> Runtime:
        """Return what one executor works with."""
        seconds = monotonic or self.monotonic
        return Runtime(
            tasks=self.tasks,
            registry=self.registry,
            settings=self.settings,
            clock=clock or self.clock,
            options=OptionsReader(self.db, monotonic=seconds).options,
            rng=random.Random(7),
            monotonic=seconds,
        )

    def execute(self, *, owner: str = DEAD, clock: Clock | None = None, **order: Any) -> Report:
        """Run one invocation, on a seat of its own."""
        wanted = ExecutionOptions(owner=owner, remaining=LIFE, concurrency=order.pop("concurrency", 8), **order)
        return run_invocation(
            self.runtime(clock=clock), wanted, executor_slots=self.executor_slots, launcher=self.cloud.launcher()
        )

    def reclaim(self, *, dead_owner: str | None = None) -> dict[str, int]:
        """Run reclaim once."""
        reclaim_context = ReclaimContext(
            tasks=self.tasks,
            clock=self.clock,
            policy=lambda task: resolve_policy(task, registered=None, deployment=self.settings.retry),
            options=OptionsReader(self.db).options,
            adopt_as="ends",
            rng=random.Random(7),
        )
        return reclaim(reclaim_context, until=reclaim_context.monotonic() + _LONG_SEC, dead_owner=dead_owner)

    def archive(self) -> dead_letters_archive.Report:
        """Run the archive once."""
        archives = ArchiveContext(
            tasks=self.tasks,
            dead=self.dead,
            clock=self.clock,
            task_retention=timedelta(days=7),
            put=Bucket(BUCKET).put if self.has_bucket else None,
            expire_unexported=self.expires_unexported,
        )
        return dead_letters_archive.archive(archives, until=time.monotonic() + _LONG_SEC)

    def outlive(self) -> None:
        """Let pass what a lease of the dead lasts at the most."""
        self.clock.move(LIFE + LEASE_GRACE + timedelta(seconds=1))


@contextmanager
def a_world(db: Database[Any]) -> Iterator[World]:
    """Open the world of a database."""
    db.command("collMod", DEAD_LETTERS, validator={"name": {"$ne": BARRED}})
    with a_cloud() as cloud:
        world = World(db=db, cloud=cloud)
        try:
            yield world
        finally:
            world.deployment.end()
