from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import make
from tidemill.runner.thread_pool import ThreadPool
from tidemill.runner.worker_thread import FinishedRun
from tidemill.testing import Mongod
from tools.bench import bare, counts, drains
from tools.bench.counts import PARTS, Sent
from tools.bench.drains import BATCH

CYCLES = 5
IN_ITS_CYCLES = {"look for ids": 2 * CYCLES, "stamp": CYCLES, "read back": CYCLES, "settle": CYCLES}
"""With nothing in hand an executor looks at both lanes."""

BESIDE = {"hello": 1, "aggregate tasks": 2, "find queues": 1, "find tasks": CYCLES, "update queue_stats": 1}
"""And asks first whether anything is due, unless the look at the queues saw that; the rest once in less than a
second, or as it comes and as it leaves."""


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def fresh(mongod: Mongod, sent: Sent) -> Iterator[Database[dict[str, Any]]]:
    """A database that nobody had before, through a client whose commands are *sent*."""
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[sent]) as client:
        yield make(client)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All functions that run end before any of them is looked at."""
    ended = ThreadPool.collect

    def all_ended(slots: ThreadPool, *, wait: float) -> list[FinishedRun]:
        found = ended(slots, wait=wait)
        while slots.running:
            found += ended(slots, wait=1.0)
        return found

    monkeypatch.setattr(ThreadPool, "collect", all_ended)


def test_a_cycle_of_a_hundred_is_four_round_trips(fresh: Database[Any], sent: Sent) -> None:
    assert counts.cycle(fresh, sent) == dict.fromkeys(PARTS, 1)


@pytest.mark.usefixtures("together")
def test_an_executor_asks_six_times_for_a_hundred_tasks_and_five_times_beside(fresh: Database[Any], sent: Sent) -> None:
    found = counts.drained(fresh, sent, CYCLES * BATCH, at_once=BATCH, monotonic=lambda: 0.0)

    assert found.kinds == IN_ITS_CYCLES | BESIDE
    assert found.beside == BESIDE
    assert found.a_task * found.tasks == 6 * CYCLES + 5


def test_a_cycle_examines_three_keys_a_task_to_claim_and_one_to_settle_as_the_bare_driver_does(
    client: MongoClient[dict[str, Any]],
) -> None:
    now = drains.this_second()
    ours, floor = make(client), make(client)

    claimed, settled = counts.keys_examined(ours, drains.Mover(ours, now=now))
    bare_claimed, _ = counts.keys_examined(floor, bare.Mover(bare.open_plain(floor), now=now))

    assert claimed == bare_claimed <= 3 * BATCH + 2
    assert settled <= BATCH + 1


@pytest.mark.parametrize(("retried", "writes"), [(False, 3), (True, 5)])
def test_a_task_is_written_three_times_and_twice_more_for_a_retry(
    client: MongoClient[dict[str, Any]], *, retried: bool, writes: int
) -> None:
    found = counts.written(make(client), BATCH, retried=retried)

    assert found["tasks"] == writes * BATCH
    assert set(found) == {"tasks", "queue_stats"}


def test_at_toy_size_every_count_is_held_against_its_target(mongod: Mongod) -> None:
    section = counts.measure(mongod.uri, "toy")

    by_name = {one.name: one for one in section.figures}
    assert by_name["documents written: enqueue, claim, settle"].value == 3
    assert by_name["the same with one retry"].value == 5
    assert by_name["round trips: claiming and settling 100"].value == 4
    assert all(one.absolute for one in section.figures)
