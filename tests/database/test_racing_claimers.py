"""Many processes claim from one queue: each task goes to one of them."""

from __future__ import annotations

import multiprocessing
import random
from datetime import datetime
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document, lease, stored
from tidemill.store import claims
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.scan import Scan
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

PROCESSES = 16
TASKS = 500


def test_sixteen_processes_claim_500_tasks_once_each(
    mongod: Mongod, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    ids = add(tasks, [document(now) for _ in range(TASKS)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # or each of them would import it all
    together = context.Barrier(PROCESSES)

    with context.Pool(PROCESSES, initializer=_remember, initargs=(together,)) as pool:
        taken = pool.starmap(claim_all, [(mongod.uri, db.name, now, seed) for seed in range(PROCESSES)], chunksize=1)

    claimed = [task_id for one in taken for task_id in one]
    assert sorted(claimed) == sorted(ids)
    assert {stored(tasks, task_id)["attempts"] for task_id in ids} == {1}


_together: list[Barrier] = []


def _remember(together: Barrier) -> None:
    _together.append(together)


def claim_all(uri: str, database: str, now: datetime, seed: int) -> list[Any]:
    """Claim in small batches until the queue is empty; return the ids."""
    rng = random.Random(seed)
    claimed: list[Any] = []
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        tasks = open_tasks(client[database])
        scan = Scan(queue="default", lanes=("fresh",))
        tasks.database.command("ping")
        _together[0].wait(timeout=60)
        while True:
            taken = claims.claim(tasks, scan, limit=10, lease=lease(now, owner=str(seed)), now=now, rng=rng)
            claimed += [task.id for task in taken.tasks]
            if taken.dry and not taken.scanned and scan.after is None:
                return claimed
            scan = taken.scan if not taken.dry else taken.scan.from_head()
