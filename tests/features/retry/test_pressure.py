"""Waits that grow with the load of a queue, through the executor and through reclaim."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tidemill import Retry, UnavailableError
from tidemill.control.queues import PressureMonitor, change_queue
from tidemill.documents import decode
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions
from tidemill.policy.retry import NO_LOAD, Load
from tidemill.store.connection import Tasks

SECOND = timedelta(seconds=1)
FIXED = {"strategy": "fixed", "base_sec": 5.0, "max_sec": 1800.0, "jitter": "none"}


@pytest.fixture(autouse=True)
def failing(bench: Bench) -> None:
    @bench.task("fails")
    def fails(_payload: dict[str, Any], _ctx: Any) -> None:
        raise ValueError


def press(bench: Bench, **pressure: Any) -> None:
    change_queue(bench.db, "default", QueueOptions(pressure=Pressure(**pressure)), now=bench.clock.now())


def waits(bench: Bench, now: datetime) -> list[float]:
    found = [decode(raw) for raw in bench.tasks.find({"name": {"$in": ["fails", "asks"]}})]
    return sorted((one["next_retry_at"] - now).total_seconds() for one in found)


def failing_task(now: datetime, **fields: Any) -> dict[str, Any]:
    return document(now, name="fails", backoff_policy=FIXED, **fields)


def test_without_pressure_a_full_queue_changes_no_wait(bench: Bench) -> None:
    now = bench.clock.now()
    add(bench.tasks, [failing_task(now)])
    add(bench.tasks, [document(now, priority=-1) for _ in range(40)])

    bench.execute()

    assert waits(bench, now) == [5.0]


@pytest.mark.parametrize(("ready", "wait"), [(0, 5.0), (10, 10.0), (40, 25.0), (110, 60.0), (500, 60.0)])
def test_a_full_queue_stretches_the_wait_up_to_the_cap_of_its_pressure(bench: Bench, ready: int, wait: float) -> None:
    now = bench.clock.now()
    press(bench, adaptive=Adaptive())
    add(bench.tasks, [failing_task(now, priority=9)])
    if ready:
        add(bench.tasks, [document(now, lane="retry" if n % 2 else "fresh") for n in range(ready)])

    bench.execute(concurrency=1, selection="oldest_first")

    assert waits(bench, now) == [wait]


def test_a_long_wait_is_never_shortened(bench: Bench) -> None:
    now = bench.clock.now()
    press(bench, adaptive=Adaptive(), budget=Budget())
    add(bench.tasks, [document(now, name="fails", backoff_policy=FIXED | {"base_sec": 600.0})])

    bench.execute()

    assert waits(bench, now) == [600.0]


def test_a_wait_that_a_function_asked_for_is_left_as_it_is(bench: Bench) -> None:
    @bench.task("asks")
    def asks(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Retry("busy", after=7 * SECOND)

    now = bench.clock.now()
    press(bench, budget=Budget(per_minute=1))
    add(bench.tasks, [document(now, name="asks", due_at=now - n * SECOND) for n in range(3)])

    bench.execute()

    assert waits(bench, now) == [7.0, 7.0, 7.0]


def test_what_exceeds_the_budget_of_a_minute_waits_longer_also_in_one_instant(bench: Bench) -> None:
    now = bench.clock.now()
    press(bench, budget=Budget(per_minute=3, factor=2.0))
    add(bench.tasks, [failing_task(now) for _ in range(5)])

    bench.execute()

    assert waits(bench, now) == [5.0, 5.0, 5.0, 10.0, 10.0]


def test_executors_share_a_budget_and_every_minute_has_its_own(bench: Bench) -> None:
    now = bench.clock.now()
    press(bench, budget=Budget(per_minute=3, factor=2.0))
    add(bench.tasks, [failing_task(now) for _ in range(3)])
    bench.execute(owner="A")
    bench.tasks.delete_many({})

    add(bench.tasks, [failing_task(now)])
    bench.execute(owner="B")
    spent = waits(bench, now)
    bench.tasks.delete_many({})
    now = bench.clock.move(timedelta(minutes=1))
    add(bench.tasks, [failing_task(now)])
    bench.execute(owner="B")

    assert (spent, waits(bench, now)) == ([10.0], [5.0])


def test_reclaim_presses_alike(bench: Bench) -> None:
    now = bench.clock.now()
    press(bench, adaptive=Adaptive())
    lease = {"token": "t", "owner": "dead", "expires_at": now - SECOND}
    lost = failing_task(now, status="processing", lease=lease, attempts=1, crashes=1)
    [task_id] = add(bench.tasks, [lost])
    add(bench.tasks, [document(now) for _ in range(20)])

    bench.reclaim()

    assert stored(bench.tasks, task_id)["next_retry_at"] == now + 15 * SECOND


def test_a_counter_edited_into_nonsense_is_no_reason_not_to_settle(bench: Bench) -> None:
    now = bench.clock.now()
    press(bench, budget=Budget(per_minute=1))
    bench.db["queue_stats"].insert_one(
        {"_id": {"queue": "default", "minute": now, "name": "odd"}, "minute": now, "retried": "many"}
    )
    add(bench.tasks, [failing_task(now)])

    report = bench.execute()

    assert report["retried"] == 1
    assert waits(bench, now) == [5.0]


def test_a_load_that_cannot_be_measured_is_the_last_one_known(tasks: Tasks, now: datetime) -> None:
    at = [100.0]
    answers: list[QueueOptions | None] = [None, QueueOptions(pressure=Pressure(adaptive=Adaptive())), None]

    def options(_: str) -> QueueOptions:
        answer = answers.pop(0)
        if answer is None:
            raise UnavailableError("MongoDB did not answer in time")
        return answer

    loads = PressureMonitor(tasks, options, monotonic=lambda: at[0])
    measured = []
    for _ in range(3):
        measured.append(loads.current_load("default", now=now))
        loads.current_load("default", now=now)  # within the same second nothing is asked
        at[0] += 1

    at[0] -= 1
    answers.append(QueueOptions())
    assert loads.current_load("default", now=now) == measured[-1]
    assert loads.current_load("default", now=now + timedelta(minutes=1)) == NO_LOAD  # another minute is another budget
    assert measured == [
        NO_LOAD,
        Load(pressure=Pressure(adaptive=Adaptive())),
        Load(pressure=Pressure(adaptive=Adaptive())),
    ]


def test_a_budget_forgets_nothing_that_is_not_written_yet(tasks: Tasks, now: datetime) -> None:
    at = [100.0]
    pressed = QueueOptions(pressure=Pressure(budget=Budget(per_minute=10)))
    loads = PressureMonitor(tasks, lambda _: pressed, monotonic=lambda: at[0])
    seen = []

    for _ in range(25):
        seen.append(loads.current_load("default", now=now).retries)
        loads.count_retry("default")
        at[0] += 0.1

    assert seen == list(range(25))


def test_a_minute_that_cannot_be_measured_starts_with_nothing_spent(tasks: Tasks, now: datetime) -> None:
    answers = [QueueOptions(pressure=Pressure(budget=Budget(per_minute=1)))]

    def options(_: str) -> QueueOptions:
        if not answers:
            raise UnavailableError("MongoDB did not answer in time")
        return answers.pop()

    loads = PressureMonitor(tasks, options)
    loads.current_load("default", now=now)
    loads.count_retry("default")

    assert loads.current_load("default", now=now).retries == 1
    assert loads.current_load("default", now=now + timedelta(minutes=1)).retries == 0
