"""Tasks with ``isolate=True`` share the cores of a worker, and keep neither slots nor leases that others can use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.features.worker.test_worker import yard_at
from tests.features.worker.workers import PATIENCE, Yard
from tests.unit.make import eventually
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

MANY = 40
"""More tasks than a worker has slots."""


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    with yard_at(mongod.uri, db, tmp_path) as made:
        yield made


def most_at_once(trace: list[int]) -> int:
    return max(accumulate(1 if number > 0 else -1 for number in trace))


def test_they_run_one_after_the_other_on_one_core_and_none_times_out_while_it_waits(yard: Yard) -> None:
    yard.add("burn", 6, max_retries=0)  # together they take longer than the timeout of each

    ended = yard.process("--until-empty", "--isolated-concurrency", "1", LINGER_SEC="0").ended()

    assert yard.status(attempts=1) == {"done": 6}, ended
    assert most_at_once(yard.began) == 1
    starts = [number for number in yard.began if number > 0]
    assert starts == sorted(starts), "the first comes first, released or not"


def test_the_setting_says_how_many_run_at_once(yard: Yard) -> None:
    yard.add("burn", 4, max_retries=0)

    yard.process("--until-empty", LINGER_SEC="0", ISOLATED_CONCURRENCY="3").ended()

    assert yard.status(attempts=1) == {"done": 4}
    assert most_at_once(yard.began) == 3


def test_quick_tasks_run_beside_those_that_wait_for_a_core(yard: Yard) -> None:
    yard.add("occupy", MANY)
    behind = yard.add("note", 1)
    yard.worker("--isolated-concurrency", "1")
    assert yard.begins(2)

    beside = yard.add("note", 30)

    assert eventually(lambda: yard.status(_id={"$in": behind + beside}) == {"done": 31}, within=PATIENCE)
    assert yard.status(name="watched.occupy", attempts=1)["processing"] <= 17
    yard.go()
    assert yard.becomes(done=31 + MANY)


def test_another_worker_gets_those_that_wait_for_a_core(yard: Yard) -> None:
    yard.add("occupy", 4)
    first = yard.worker("--isolated-concurrency", "1")
    assert yard.begins(1)

    second = yard.worker("--isolated-concurrency", "3")

    assert yard.begins(4)
    yard.go()
    assert yard.becomes(done=4)
    assert "1 done" in first.stopped().out[1]
    assert "3 done" in second.stopped().out[1]


def test_a_task_that_is_isolated_after_a_crash_waits_for_no_core(yard: Yard) -> None:
    yard.add("occupy", 2)
    yard.worker("--isolated-concurrency", "1")
    assert yard.begins(1)

    yard.add("wait", 3, crashes=1)

    assert yard.begins(4)
    yard.go()
    assert yard.becomes(done=5)


def test_those_that_wait_for_a_core_are_released_at_a_stop(yard: Yard) -> None:
    yard.add("occupy", 5)
    worker = yard.worker("--isolated-concurrency", "1")
    assert yard.begins(1)

    worker.send(signal.SIGTERM)
    assert worker.says("stopping: 1 task still runs")
    yard.go()

    assert worker.ended().status == 0
    assert yard.status(attempts=0) == {"pending": 4}
