"""How many tasks an execution holds beside those that run."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any

import pytest
from pymongo import MongoClient, monitoring

from tests.builders import add, document
from tests.commands import Commands
from tests.use_cases.conftest import Bench
from tidemill.store import open_tasks
from tidemill.testing import Mongod

SLOTS = 4


def test_slow_tasks_are_claimed_for_free_slots_only(bench: Bench, now: datetime) -> None:
    leased: list[int] = []

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        time.sleep(0.1)
        leased.append(bench.tasks.count_documents({"status": "processing"}))

    add(bench.tasks, [document(now, name="slow") for _ in range(20)])
    assert bench.execute(concurrency=SLOTS)["done"] == 20

    # Those that have just ended are leased until they are settled: at most what ends in 200 ms.
    assert max(leased) <= SLOTS * 3


def test_quick_tasks_are_claimed_ahead_and_none_is_left_behind(bench: Bench, now: datetime) -> None:
    at_once: list[int] = []
    lock = threading.Lock()
    running = 0

    @bench.task("quick")
    def quick(_payload: dict[str, Any], _ctx: Any) -> None:
        nonlocal running
        with lock:
            running += 1
            at_once.append(running)
        with lock:
            running -= 1

    add(bench.tasks, [document(now, name="quick") for _ in range(500)])
    report = bench.execute(concurrency=SLOTS)

    assert (report["done"], report["released"]) == (500, 0)
    assert max(at_once) <= SLOTS
    assert bench.tasks.count_documents({"status": "processing"}) == 0


class Stamps(Commands):
    """Keeps of how many tasks each stamp was."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        for update in event.command.get("updates", []) if event.command_name == "update" else []:
            self.sizes.append(len(update["q"].get("_id", {}).get("$in", [])))


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_batch_size_bounds_every_claim(mongod: Mongod, bench: Bench, now: datetime, batch_size: int) -> None:
    stamps = Stamps()
    add(bench.tasks, [document(now) for _ in range(30)])

    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[stamps]) as client:
        report = bench.execute(tasks=open_tasks(client[bench.db.name]), batch_size=batch_size)

    assert report["done"] == 30
    assert max(stamps.sizes) == batch_size
