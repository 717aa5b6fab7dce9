"""Resources of a worker: one for each slot and one for the process, closed at its end within a bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.features.worker.test_faulty_packages import CORE
from tests.features.worker.workers import Yard
from tidemill.clock import ServerClock
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

MODULE = """
import asyncio
import time
from tidemill import resource, task

@resource
def pool():
    yield "pool"
    print("pool closed")

@resource
def hung():
    yield "hung"
    time.sleep(3600)

@resource
async def client():
    yield asyncio.get_running_loop()
    print("client closed")

@task("use")
async def use(payload):
    pool()
    assert await client() is asyncio.get_running_loop()
    await asyncio.sleep(0.05)

@task("hang")
def hang(payload):
    hung()
"""


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    package = tmp_path / "jobs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "uses.py").write_text(MODULE)
    with closing(Yard(uri=mongod.uri, db=db, folder=tmp_path)) as yard:
        yield yard


def add_tasks(yard: Yard, *names: str) -> None:
    now = ServerClock(yard.db).now()
    add(open_tasks(yard.db), [document(now, name=name) for name in names])


def test_a_worker_closes_what_its_slots_and_its_process_have_open(yard: Yard, tmp_path: Path) -> None:
    add_tasks(yard, *["use"] * 8)
    worker = yard.worker("--tasks", "jobs", "--concurrency", "4", PYTHONPATH=f"{tmp_path}:{CORE}")
    assert yard.becomes(done=8)

    ended = worker.stopped()

    assert ended.status == 0
    assert ended.out[1:] == ["client closed"] * 4 + ["pool closed", "stopped: 8 claimed, 8 done"]


def test_a_resource_that_does_not_close_keeps_no_worker(yard: Yard, tmp_path: Path) -> None:
    add_tasks(yard, "hang", "use")
    worker = yard.worker("--tasks", "jobs", PYTHONPATH=f"{tmp_path}:{CORE}")
    assert yard.becomes(done=2)

    ended = worker.stopped()

    assert ended.status == 0
    assert ended.out[-1] == "stopped: 2 claimed, 2 done"
    assert "resources are not closed within 2 s; the process continues without them" in ended.err
