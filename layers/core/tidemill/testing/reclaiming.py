"""Taking back what dead executors hold, without waiting for their leases."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime

from tidemill.control import OptionsReader
from tidemill.model import Task
from tidemill.policies import RetryPolicy
from tidemill.reclaim import NAMES, Keeper, reclaim
from tidemill.registry import REGISTRY, Registry
from tidemill.retry import DEFAULT, resolved
from tidemill.store import Tasks, open_tasks, translated
from tidemill.testing.chance import Shortest
from tidemill.testing.clock import ManualClock
from tidemill.testing.target import Where, clock_of, database_of

LONGEST_SEC = 60.0


def reclaim_now(queue: Where, *, now: datetime | None = None, registry: Registry = REGISTRY) -> dict[str, int]:
    """Take back every task that is under a lease, as if all executors had died; return the counts of reclaim.

    It is what ``reclaim`` does once the platform has reported a death: the first loss of a task is not counted as an
    attempt, any later one is a failure like others. The wait that follows is the shortest that jitter allows, for a
    first loss none at all.

    Args:
        queue: The queue, or the database it is in. For a test alone: no lease is respected.
        now: The time at which it happens. Without it, the time of the queue.
        registry: Where the functions are registered, whose policies hold.

    Raises:
        TidemillError: MongoDB failed.
    """
    tasks = open_tasks(database_of(queue))
    keeper = Keeper(
        tasks=tasks,
        clock=ManualClock(clock_of(queue).now() if now is None else now),
        policy=lambda task: _policy(task, registry),
        options=OptionsReader(tasks.database).options,
        rng=Shortest(),
    )
    report = Counter[str]()
    for owner in (*_owners(tasks), None):
        report.update(reclaim(keeper, until=time.monotonic() + LONGEST_SEC, dead_owner=owner))
    return {name: report[name] for name in NAMES}


def _policy(task: Task, registry: Registry) -> RetryPolicy:
    task_type = registry.get(task.name)
    return resolved(task, registered=None if task_type is None else task_type.retry, deployment=DEFAULT)


def _owners(tasks: Tasks) -> list[str]:
    with translated():
        found = tasks.distinct("lease.owner", {"status": "processing"})
    return [owner for owner in found if isinstance(owner, str)]
