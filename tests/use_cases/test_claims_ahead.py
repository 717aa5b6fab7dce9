"""How many tasks an execution holds beside those that run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from pymongo import MongoClient, monitoring

from tests.builders import add, document, stored
from tests.commands import Commands
from tests.use_cases.conftest import BRISK, Bench
from tidemill.executor import starting
from tidemill.executor.pace import Pace
from tidemill.store import lookups, open_tasks
from tidemill.testing import Mongod

SLOTS = 4


def test_slow_tasks_are_claimed_for_free_slots_only(bench: Bench, now: datetime) -> None:
    held: list[int] = []
    ended: list[int] = []

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        time.sleep(0.1)
        group = bench.tasks.aggregate([{"$group": {"_id": "$status", "n": {"$sum": 1}}}])
        found = {one["_id"]: one["n"] for one in group}
        unsettled = len(ended) - found.get("done", 0)
        held.append(found["processing"] - SLOTS - unsettled)
        ended.append(1)

    add(bench.tasks, [document(now, name="slow") for _ in range(20)])
    assert bench.execute(concurrency=SLOTS)["done"] == 20

    assert max(held) <= 1, "beside those that run, and those that have ended and are not settled"


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


def test_what_is_held_ahead_has_its_share_of_retries_too(bench: Bench, now: datetime) -> None:
    lanes: list[str] = []

    @bench.task("short")
    def short(payload: dict[str, Any], _ctx: Any) -> None:
        lanes.append(payload["lane"])
        time.sleep(0.004)

    bench.settings = replace(BRISK, retry_share=0.5)
    for lane in ("fresh", "retry"):
        add(bench.tasks, [document(now, name="short", lane=lane, payload={"lane": lane}) for _ in range(600)])

    assert bench.execute(concurrency=16)["done"] == 1200

    assert 0.43 < lanes[:800].count("retry") / 800 < 0.57


def test_what_waits_behind_slow_functions_is_given_back_to_others(bench: Bench, now: datetime) -> None:
    let_go = threading.Event()
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    documents = [document(now) for _ in range(600)]
    documents += [document(now, name="slow") for _ in range(SLOTS)]
    quick = [document(now, payload={"n": "behind"}) for _ in range(SLOTS)]
    add(bench.tasks, documents + quick)

    with ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, concurrency=SLOTS)
        eventually(lambda: bench.tasks.count_documents({"status": "done"}) == 600)
        eventually(lambda: bench.tasks.count_documents({"status": "processing"}) == SLOTS)
        bench.execute(owner="B", concurrency=SLOTS)
        done = bench.tasks.count_documents({"status": "done"})
        let_go.set()
        report = held.result()

    assert done == 600 + SLOTS
    assert report["done"] >= SLOTS


@pytest.mark.parametrize("slots", [1, 2])
def test_what_was_left_to_others_and_nobody_took_is_run_before_it_leaves(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    def are_done(count: int) -> Callable[[], bool]:
        return lambda: bench.tasks.count_documents({"status": "done"}) >= count

    monkeypatch.setattr(Pace, "ahead", lambda *_, **__: 1)
    let_go = [threading.Event() for _ in range(slots)]
    bench.task("slow")(lambda payload, _ctx: let_go[payload["n"]].wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1, payload={"n": n}) for n in range(slots)])
    [behind] = add(bench.tasks, [document(now, payload={"n": "behind"})])

    with ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, concurrency=slots)
        eventually(lambda: stored(bench.tasks, behind)["status"] == "processing")
        eventually(lambda: stored(bench.tasks, behind)["status"] == "pending")
        for count, event in enumerate(let_go, 1):
            event.set()
            eventually(are_done(count))
        report = held.result()

    assert (report["done"], report["released"]) == (slots + 1, 1)


def test_what_is_cancelled_while_it_waits_is_not_run(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "HOLD_SEC", 60.0)
    monkeypatch.setattr(Pace, "ahead", lambda *_, **__: 4)
    let_go = threading.Event()
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1)])
    [waiting] = add(bench.tasks, [document(now, payload={"n": "waiting"})])

    with ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, concurrency=1)
        eventually(lambda: stored(bench.tasks, waiting)["status"] == "processing")
        lookups.cancel(bench.tasks, waiting, now=now)
        eventually(lambda: stored(bench.tasks, waiting)["status"] == "cancelled")
        let_go.set()
        report = held.result()

    assert (report["done"], report["cancelled"]) == (1, 1)
    assert bench.ran == [None]
    assert stored(bench.tasks, waiting)["attempts"] == 0


def test_without_a_thread_it_is_given_back_and_the_process_is_spent(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    slots: list[str] = []

    def refused(thread: threading.Thread) -> None:
        if thread.name == "tidemill-slot":
            slots.append(thread.name)
            if len(slots) > 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    bench.task("short")(lambda _payload, _ctx: time.sleep(0.1))
    ids = add(bench.tasks, [document(now, name="short") for _ in range(10)])
    monkeypatch.setattr(threading.Thread, "start", refused)

    report = bench.execute(concurrency=4)

    states = Counter((stored(bench.tasks, one)["status"], stored(bench.tasks, one)["attempts"]) for one in ids)
    assert states == {("done", 1): report["done"], ("pending", 0): 10 - report["done"]}
    assert report["done"] >= 2
    assert (report.spent, report["leftovers"]) == (True, 0)


def eventually(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)
