"""How many tasks an execution holds beside those that run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient, monitoring

from tests.builders import add, document, stored
from tests.commands import Commands
from tests.features.conftest import BRISK, Bench, FixedPrefetch
from tidemill.control.queues import change_queue
from tidemill.executor.lifetime import Timing
from tidemill.model import QueueOptions, Selection
from tidemill.store import tasks
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
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
            if update["q"].get("status") == "pending":
                self.sizes.append(len(update["q"]["_id"]["$in"]))


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_batch_size_bounds_every_claim(mongod: Mongod, bench: Bench, now: datetime, batch_size: int) -> None:
    stamps = Stamps()
    add(bench.tasks, [document(now) for _ in range(30)])

    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[stamps]) as client:
        report = bench.execute(tasks=open_tasks(client[bench.db.name]), batch_size=batch_size)

    assert report["done"] == 30
    assert max(stamps.sizes) == batch_size


def test_a_claim_tops_up_what_waits_and_only_once_little_of_it_is_left(
    mongod: Mongod, bench: Bench, now: datetime
) -> None:
    stamps, started, may_end = Stamps(), threading.Semaphore(0), threading.Semaphore(0)

    @bench.task("slow")
    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        started.release()
        assert may_end.acquire(timeout=20)

    add(bench.tasks, [document(now, name="slow") for _ in range(40)])
    bench.prefetch, bench.timing = SLOTS, Timing(slot_wait_sec=60.0)

    with (
        MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[stamps]) as client,
        ThreadPoolExecutor() as pool,
    ):
        tasks_of_client = open_tasks(client[bench.db.name])
        execution = pool.submit(bench.execute, tasks=tasks_of_client, concurrency=SLOTS)
        for _ in range(SLOTS):
            assert started.acquire(timeout=20)
        for number in range(1, 13):
            may_end.release()
            assert started.acquire(timeout=20)
            eventually(lambda number=number: len(stamps.sizes) == 1 + number // 3)  # type: ignore[misc]
        sizes = list(stamps.sizes)
        may_end.release(40)
        assert execution.result()["done"] == 40

    assert sizes == [2 * SLOTS, 3, 3, 3, 3]


@pytest.mark.parametrize(("selection", "most"), [("weighted", SLOTS + 12), ("retries_first", SLOTS + 1)])
def test_where_retries_go_first_little_is_claimed_ahead_of_them(
    mongod: Mongod, bench: Bench, monkeypatch: pytest.MonkeyPatch, selection: Selection, most: int
) -> None:
    now = bench.clock.now()

    class Quick(FixedPrefetch):
        def size(self, **_: Any) -> int:
            return 12

    monkeypatch.setattr(bench, "make_prefetch", lambda timing: Quick(1, timing))
    stamps = Stamps()
    change_queue(bench.db, "default", QueueOptions(selection=selection), now=now)
    add(bench.tasks, [document(now) for _ in range(100)])

    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[stamps]) as client:
        report = bench.execute(tasks=open_tasks(client[bench.db.name]), concurrency=SLOTS)

    assert report["done"] == 100
    first, *others = stamps.sizes  # what comes first is not known before the first claim
    assert first == SLOTS + 12
    assert max(others) <= most


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


@pytest.mark.parametrize("queues", [[], ["default"]])
@pytest.mark.parametrize("slots", [1, 2])
def test_what_was_left_to_others_and_nobody_took_is_run_before_it_leaves(
    bench: Bench, mongod: Mongod, now: datetime, slots: int, queues: list[str]
) -> None:
    """With two slots the last claim finds nothing else, and its looks are from the head if the queues are given."""

    def are_done(count: int) -> Callable[[], bool]:
        return lambda: bench.tasks.count_documents({"status": "done"}) >= count

    bench.prefetch = 1
    let_go = [threading.Event() for _ in range(slots)]
    bench.task("slow")(lambda payload, _ctx: let_go[payload["n"]].wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1, payload={"n": n}) for n in range(slots)])
    [behind] = add(bench.tasks, [document(now, payload={"n": "behind"})])

    commands = Commands()
    with (
        MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client,
        ThreadPoolExecutor() as pool,
    ):
        held = pool.submit(bench.execute, tasks=open_tasks(client[bench.db.name]), concurrency=slots, queues=queues)
        eventually(lambda: stored(bench.tasks, behind)["status"] == "processing")
        eventually(lambda: stored(bench.tasks, behind)["status"] == "pending")
        sent = len(commands.names)
        let_go[0].set()
        eventually(are_done(1))
        if slots == 2:
            eventually(lambda: commands.names[sent:].count("find") >= 2)  # one for each lane
        let_go[-1].set()
        report = held.result()

    assert (report["done"], report["released"]) == (slots + 1, 1)


def test_what_is_cancelled_while_it_waits_is_not_run(bench: Bench, now: datetime) -> None:
    bench.prefetch, bench.timing = 4, Timing(slot_wait_sec=60.0)
    let_go = threading.Event()
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    add(bench.tasks, [document(now, name="slow", priority=1)])
    [waiting] = add(bench.tasks, [document(now, payload={"n": "waiting"})])

    with ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, concurrency=1)
        eventually(lambda: stored(bench.tasks, waiting)["status"] == "processing")
        tasks.cancel(bench.tasks, waiting, now=now)
        eventually(lambda: stored(bench.tasks, waiting)["status"] == "cancelled")
        let_go.set()
        report = held.result()

    assert (report["done"], report["cancelled"]) == (1, 1)
    assert bench.ran == [None]
    assert stored(bench.tasks, waiting)["attempts"] == 0


@pytest.mark.parametrize(("cancelled", "other"), [(True, 1), (0, False), (float("nan"), 1.5), ({"a": 1}, {"a": True})])
def test_a_cancellation_is_for_the_task_of_that_id_alone(
    bench: Bench, now: datetime, cancelled: Any, other: Any
) -> None:
    """Python takes some of these ids for one another, and one does not equal itself. Two tasks run, and two wait."""
    bench.prefetch, bench.timing = 4, Timing(slot_wait_sec=60.0)
    let_go = threading.Event()
    asked: list[Any] = []

    @bench.task("slow")
    def slow(payload: dict[str, Any], ctx: Any) -> None:
        while not let_go.wait(0.01):
            if ctx.cancelled():
                asked.append(payload["n"])
                let_go.wait(20)
                raise RuntimeError("asked to stop")

    running = {"cancelled": cancelled, "other": other}
    waiting = {"cancelled": {"id": cancelled}, "other": {"id": other}}
    for ids, fields in ((running, {"name": "slow", "priority": 1}), (waiting, {})):
        for name, task_id in ids.items():  # each with a due time of its own
            add(bench.tasks, [document(now := now - SECOND, _id=task_id, payload={"n": name}, **fields)])

    with ThreadPoolExecutor() as pool:
        held = pool.submit(bench.execute, concurrency=2)
        eventually(lambda: len(bench.ran) == 2 and bench.tasks.count_documents({"status": "processing"}) == 4)
        for ids in (running, waiting):
            tasks.cancel(bench.tasks, ids["cancelled"], now=now)
        eventually(lambda: asked and bench.tasks.count_documents({"status": "cancelled"}) == 1)
        let_go.set()
        report = held.result()

    assert asked == ["cancelled"]
    assert (report["done"], report["cancelled"]) == (2, 2)
    assert {stored(bench.tasks, ids["other"])["status"] for ids in (running, waiting)} == {"done"}


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


def eventually(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)
