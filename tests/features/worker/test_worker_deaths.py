"""Executors that really die: real processes, killed by what they run. The others lose seconds, not attempts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tests.fixtures import ManualClock
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Runtime
from tidemill.executor.execution import execute
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

INNOCENTS = 30


def test_a_task_that_kills_its_process_ends_as_a_dead_letter_and_harms_no_other(
    mongod: Mongod, bench: Bench, now: datetime
) -> None:  # F16, F18
    [killer] = add(bench.tasks, [document(now, name="kill", priority=1, max_retries=1)])
    innocents = add(bench.tasks, [document(now, name="innocent", max_retries=0) for _ in range(INNOCENTS)])

    deaths = 0
    for _ in range(6):
        owner = uuid.uuid4().hex
        if run_in_a_process(mongod.uri, bench.db.name, owner, bench.clock.at) != 0:
            deaths += 1
            bench.reclaim(dead_owner=owner)
        bench.clock.move(timedelta(hours=1))

    found = stored(bench.tasks, killer)
    runs = {one["_id"]: one["runs"] for one in bench.db["runs"].find()}
    assert (found["status"], found["reason"], found["crashes"]) == ("failed", "worker_lost", 3)
    assert (deaths, runs[killer]) == (3, 3)
    assert {stored(bench.tasks, one)["status"] for one in innocents} == {"done"}
    assert {stored(bench.tasks, one)["attempts"] for one in innocents} == {1}
    # At least once: what was running beside the killer in its first run was run again.
    assert all(1 <= runs[one] <= 2 for one in innocents)


def run_in_a_process(uri: str, database: str, owner: str, now: datetime) -> int | None:
    """Run one invocation in a process of its own; return its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # or each of them would import it all
    process = context.Process(target=invoke, args=(uri, database, owner, now))
    process.start()
    process.join(60)
    return process.exitcode


def invoke(uri: str, database: str, owner: str, now: datetime) -> None:
    """One invocation of an executor; each function leaves a durable trace of its run."""
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        db = client[database]
        runtime = Runtime(
            tasks=open_tasks(db),
            registry=_functions(db),
            settings=Settings(concurrency=8, linger=timedelta(0)),
            clock=ManualClock(now),
            options=OptionsReader(db).options,
        )
        execute(runtime, ExecutionOptions(owner=owner, remaining=timedelta(seconds=120)))


def _functions(db: Database[dict[str, Any]]) -> Registry:
    registry = Registry()

    def trace(task_id: Any) -> None:
        db["runs"].update_one({"_id": task_id}, {"$inc": {"runs": 1}}, upsert=True)

    @registry.task("innocent")
    def innocent(_payload: dict[str, Any], ctx: Any) -> None:
        trace(ctx.task_id)

    @registry.task("kill")
    def kill(_payload: dict[str, Any], ctx: Any) -> None:
        trace(ctx.task_id)
        os.kill(os.getpid(), signal.SIGKILL)

    return registry
