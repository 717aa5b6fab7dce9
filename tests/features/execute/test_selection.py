"""Which of the due tasks are claimed next, by each selection."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.builders import add, document, whole
from tests.claimers import a_claimer, numbers
from tests.features.conftest import BRISK, Bench
from tests.unit.make import eventually
from tidemill import Retry, Snooze
from tidemill.admin.queues import read_status
from tidemill.control.queues import change_queue
from tidemill.executor.claimer import Claimer
from tidemill.model import Malformed, QueueOptions, Selection, Task
from tidemill.store.connection import Tasks

SECOND = timedelta(seconds=1)


def backlog(tasks: Tasks, now: datetime, *, lane: str, size: int, **fields: Any) -> None:
    for start in range(0, size, 5_000):
        add(tasks, [document(now, lane=lane, **fields) for _ in range(min(5_000, size - start))])


def take(
    claimer: Claimer, now: datetime, *, free: int, slots: int = 16, in_hand: Sequence[Task | Malformed] = ()
) -> Sequence[Task | Malformed]:
    return claimer.claim(free=free, slots=slots, in_hand=whole(in_hand), now=now).tasks


def lanes(held: Sequence[Task | Malformed]) -> Counter[str]:
    return Counter(one.lane for one in held if isinstance(one, Task))


def test_retries_first_takes_all_due_retries_by_due_time_before_any_fresh_task(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, payload={"n": f"fresh {n}"}, due_at=now - timedelta(hours=1)) for n in range(3)])
    ages = [3, 1, 2, 0]
    add(
        tasks,
        [
            document(now, lane="retry", attempts=n, payload={"n": age}, due_at=now - age * SECOND)
            for n, age in enumerate(ages)
        ],
    )
    claimer = a_claimer(tasks, selection="retries_first")

    assert numbers(take(claimer, now, free=2)) == [3, 2]
    assert numbers(take(claimer, now, free=4)) == [1, 0, "fresh 0", "fresh 1"]


def test_a_retry_that_comes_due_between_two_claims_goes_before_the_fresh_backlog(tasks: Tasks, now: datetime) -> None:
    backlog(tasks, now, lane="fresh", size=500)
    seconds = [0.0]  # on which no look takes any time, however busy the machine is
    claimer = a_claimer(tasks, selection="retries_first", monotonic=lambda: seconds[0])
    taken = []

    for n in range(1, 20):
        seconds[0] = n
        at = now + n * SECOND
        add(tasks, [document(at, lane="retry", priority=n % 3, payload={"n": n})])
        taken += numbers(take(claimer, at, free=2))

    assert [n for n in taken if n is not None] == list(range(1, 20))
    assert taken == [n for pair in range(1, 20) for n in (pair, None)]


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_task_goes_first_on_its_first_second_and_third_retry(bench: Bench, failures: int) -> None:
    def flaky(_payload: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt <= failures:
            raise Retry("again", after=timedelta(0))

    bench.task("flaky")(flaky)
    now = bench.clock.now()
    add(bench.tasks, [document(now, name="flaky", payload={"n": "flaky"})])
    add(bench.tasks, [document(now, payload={"n": n}) for n in range(20)])

    bench.execute(selection="retries_first", concurrency=1)

    assert bench.ran == ["flaky"] * (failures + 1) + list(range(20))


def test_oldest_first_keeps_one_order_over_both_lanes(tasks: Tasks, now: datetime) -> None:
    order = [(9, "retry", 0), (9, "fresh", 1), (5, "fresh", 0), (0, "fresh", 0), (0, "retry", 2), (0, "fresh", 3)]
    documents = [
        document(now, lane=lane, priority=priority, payload={"n": n}, due_at=now - timedelta(hours=1) + late * SECOND)
        for n, (priority, lane, late) in enumerate(order)
    ]
    random.Random(3).shuffle(documents)
    add(tasks, documents)
    claimer = a_claimer(tasks, selection="oldest_first")

    assert [numbers(take(claimer, now, free=2)) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], []]


def test_a_retried_task_of_high_priority_goes_before_lower_ones_once_it_is_due(bench: Bench) -> None:
    def flaky(_payload: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == 1:
            raise Retry("again", after=3 * SECOND)

    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        settled = {"name": "flaky", "status": {"$ne": "processing"}}
        assert eventually(lambda: bench.tasks.count_documents(settled) == 1, within=30)
        bench.clock.move(SECOND)

    bench.task("flaky")(flaky)
    bench.task("slow")(slow)
    now = bench.clock.now()
    add(bench.tasks, [document(now, name="flaky", priority=9, payload={"n": "urgent"})])
    add(bench.tasks, [document(now, name="slow", payload={"n": n}) for n in range(8)])

    # Only the tasks take time: a claim that takes as long as they do would be made further ahead.
    bench.execute(selection="oldest_first", concurrency=1, monotonic=lambda: bench.clock.now().timestamp())

    assert bench.ran == ["urgent", 0, 1, 2, "urgent", 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("selection", "again"), [("oldest_first", Retry("again", after=SECOND)), ("weighted", Snooze(SECOND))]
)
def test_what_returns_before_the_position_is_looked_for_at_once(
    bench: Bench, selection: Selection, again: Exception
) -> None:
    """Another slot is busy, and no look from the head is due for a second."""
    at = [1000.0]

    def flaky(_payload: dict[str, Any], _ctx: Any) -> None:
        if bench.ran.count("urgent") == 1:
            raise again

    def slow(_payload: dict[str, Any], _ctx: Any) -> None:
        bench.clock.move(SECOND)
        at[0] += bench.timing.flush_sec + 0.01

    bench.prefetch = 0
    bench.task("long")(lambda _payload, _ctx: eventually(lambda: 3 in bench.ran))
    bench.task("flaky")(flaky)
    bench.task("slow")(slow)
    now = bench.clock.now()
    add(bench.tasks, [document(now, name="long", priority=9, payload={"n": "long"})])
    add(bench.tasks, [document(now, name="flaky", priority=8, payload={"n": "urgent"})])
    add(bench.tasks, [document(now, name="slow", payload={"n": n}) for n in range(4)])

    bench.execute(selection=selection, queues=["default"], concurrency=2, batch_size=1, monotonic=lambda: at[0])

    together, after = bench.ran[:2], bench.ran[2:]  # two threads: either may be the first to begin
    assert (set(together), after) == ({"long", "urgent"}, [0, "urgent", 1, 2, 3])


def test_a_backlog_of_retries_leaves_fresh_work_its_part(tasks: Tasks, now: datetime) -> None:
    backlog(tasks, now, lane="retry", size=10_000, due_at=now - timedelta(hours=1))
    backlog(tasks, now, lane="fresh", size=200)
    claimer = a_claimer(tasks, selection="weighted", retry_share=0.2)

    held = [one for _ in range(10) for one in take(claimer, now, free=20, slots=20)]

    assert lanes(held) == {"fresh": 160, "retry": 40}


def test_over_a_thousand_claims_retries_hold_their_share_of_the_slots(tasks: Tasks, now: datetime) -> None:
    slots, share = 16, 0.2
    backlog(tasks, now, lane="retry", size=1_500)
    backlog(tasks, now, lane="fresh", size=1_500)
    claimer = a_claimer(tasks, selection="weighted", retry_share=share)
    rng = random.Random(11)
    held: list[Task | Malformed] = []
    shares = []

    for _ in range(1_000):
        held += take(claimer, now, free=slots - len(held), slots=slots, in_hand=held)
        assert len(held) == slots
        shares.append(lanes(held)["retry"])
        held.pop(rng.randrange(slots))  # slots free up one by one

    assert all(abs(count - share * slots) <= 1 for count in shares)


def test_what_one_lane_cannot_use_goes_to_the_other(tasks: Tasks, now: datetime) -> None:
    backlog(tasks, now, lane="retry", size=30)
    backlog(tasks, now, lane="fresh", size=3)

    held = take(a_claimer(tasks, retry_share=0.2), now, free=16)

    assert lanes(held) == {"fresh": 3, "retry": 13}


def test_a_lane_has_an_executor_of_its_own_with_its_own_batch_size(bench: Bench) -> None:
    now = bench.clock.now()
    backlog(bench.tasks, now, lane="retry", size=7, attempts=1)
    backlog(bench.tasks, now, lane="fresh", size=5)

    retries = bench.execute(lanes=("retry",), batch_size=2, concurrency=2)
    left = Counter(one["lane"] for one in bench.tasks.find({"status": "pending"}))
    fresh = bench.execute(lanes=("fresh",))

    assert (retries["done"], fresh["done"]) == (7, 5)
    assert left == {"fresh": 5}


def test_the_event_beats_the_queue_and_the_queue_the_deployment(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(selection="retries_first"), now=now)
    documents = [
        document(now, payload={"n": "fresh"}, due_at=now - SECOND),
        document(now, lane="retry", attempts=1, payload={"n": "retry"}),
    ]
    add(bench.tasks, documents)

    bench.execute(concurrency=1)
    bench.tasks.update_many({}, {"$set": {"status": "pending", "attempts": 1}})
    bench.execute(concurrency=1, selection="oldest_first")

    assert bench.ran == ["retry", "fresh", "fresh", "retry"]


def test_a_paused_queue_starts_nothing_and_goes_on_when_it_is_resumed(bench: Bench) -> None:
    now = bench.clock.now()
    change_queue(bench.db, "default", QueueOptions(paused=True), now=now)
    add(bench.tasks, [document(now), document(now, crashes=1), document(now, queue="eu")])

    paused = bench.execute()
    change_queue(bench.db, "default", QueueOptions(), now=now)
    resumed = bench.execute()

    assert (paused["claimed"], resumed["done"]) == (1, 2)


def test_failing_tasks_of_high_priority_do_not_keep_good_ones_waiting(bench: Bench) -> None:  # F24
    def fails(_payload: dict[str, Any], _ctx: Any) -> None:
        raise ValueError

    bench.task("fails")(fails)
    now = bench.clock.now()
    waits = {"strategy": "fixed", "base_sec": 150.0, "max_sec": 150.0, "jitter": "none"}
    failing = document(now, name="fails", priority=9, max_retries=50, backoff_policy=waits, payload={"n": "failing"})
    add(bench.tasks, [failing | {"_id": ObjectId()} for _ in range(3)])
    add(bench.tasks, [document(now) for _ in range(30)])

    for _ in range(12):
        bench.execute(batch_size=3, concurrency=3)
        bench.clock.move(timedelta(minutes=1))

    assert bench.tasks.count_documents({"status": "done"}) == 30
    assert bench.ran.count("failing") == 3 * 4  # at 0, 3, 6 and 9 minutes


def test_priority_is_strict_and_the_status_shows_who_waits(bench: Bench) -> None:  # F26
    now = bench.clock.now()
    add(bench.tasks, [document(now, payload={"n": "low"})])
    claimer = a_claimer(bench.tasks)

    for _ in range(100):
        add(bench.tasks, [document(now, priority=9) for _ in range(20)])
        assert "low" not in numbers(take(claimer, now, free=20, slots=20))
        now = bench.clock.move(timedelta(minutes=1))

    assert read_status(bench.db, "default", now=now).oldest_due_age_sec == 6_000


def test_the_share_of_a_queue_beats_that_of_the_deployment(bench: Bench) -> None:
    now = bench.clock.now()
    bench.settings = replace(BRISK, retry_share=0.0)
    change_queue(bench.db, "default", QueueOptions(retry_share=1.0), now=now)
    add(bench.tasks, [document(now, payload={"n": "fresh"})])
    add(bench.tasks, [document(now, lane="retry", attempts=1, payload={"n": "retry"})])

    bench.execute(concurrency=1)

    assert bench.ran == ["retry", "fresh"]


@pytest.mark.parametrize(
    ("selection", "order"), [("retries_first", ["retry", "fresh"]), ("oldest_first", ["fresh", "retry"])]
)
def test_the_deployment_chooses_where_nobody_else_does(bench: Bench, selection: Selection, order: list[str]) -> None:
    now = bench.clock.now()
    bench.settings = replace(BRISK, selection=selection)
    add(bench.tasks, [document(now, payload={"n": "fresh"}, due_at=now - SECOND)])
    add(bench.tasks, [document(now, lane="retry", attempts=1, payload={"n": "retry"})])

    bench.execute(concurrency=1)

    assert bench.ran == order


def test_retries_go_first_also_where_a_full_look_costs_much(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(20)])
    reading = [0.0, 0.0001]

    def slower_and_slower() -> float:
        reading[0] += reading[1]
        return reading[0]

    claimer = a_claimer(tasks, selection="retries_first", monotonic=slower_and_slower)
    for _ in range(12):
        take(claimer, now, free=1)
        reading[1] = 1.0

    add(tasks, [document(now, lane="retry", payload={"n": "retry"})])

    assert numbers(take(claimer, now, free=1)) == ["retry"]


def test_one_draw_holds_for_a_second(tasks: Tasks, now: datetime) -> None:
    for lane in ("fresh", "retry"):
        backlog(tasks, now, lane=lane, size=100)
    at = [100.0]
    claimer = a_claimer(tasks, monotonic=lambda: at[0], retry_share=0.5)
    kinds = []

    for _ in range(100):  # half a slot is for retries: a draw decides whether the only slot is
        [task] = take(claimer, now, free=1, slots=1)
        kinds.append(lanes([task])["retry"])
        at[0] += 0.125

    seconds = [set(kinds[second : second + 8]) for second in range(0, 96, 8)]
    assert all(len(kinds_of_second) == 1 for kinds_of_second in seconds)
    assert {0, 1} == set(kinds)


def test_retries_of_one_queue_take_nothing_of_the_share_of_another(bench: Bench, now: datetime) -> None:
    order: list[str] = []

    @bench.task("runs")
    def runs(payload: dict[str, Any], _ctx: Any) -> None:
        order.append(payload["n"])
        time.sleep(payload["sec"])

    slow, quick = {"n": "slow", "sec": 0.2}, {"sec": 0.02}
    add(bench.tasks, [document(now, name="runs", queue="a", lane="retry", attempts=1, payload=slow) for _ in range(60)])
    for lane, size in (("fresh", 150), ("retry", 40)):
        payload = {"n": lane, **quick}
        add(bench.tasks, [document(now, name="runs", queue="b", lane=lane, payload=payload) for _ in range(size)])

    bench.execute(concurrency=16)

    of_b = [one for one in order if one != "slow"]
    assert of_b[:100].count("retry") >= 10
