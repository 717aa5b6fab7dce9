"""Functions that get a process of their own: who does, what is asked for, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import T0
from tests.ids import shown
from tests.unit.make import Moved, a_claimed_task, eventually
from tidemill.conclusions import Conclusion, Crashed, NotStarted, Overran, Returned
from tidemill.errors import IsolationError
from tidemill.isolation import IsolatedRun
from tidemill.registry import TaskType
from tidemill.slots import ISOLATION_ALLOWANCE, Running, Slots

SECOND = timedelta(seconds=1)
HERE = TaskType(name="noop", function=lambda *_: "here")
APART = TaskType(name="noop", function=lambda *_: "here", isolate=True)


class Elsewhere:
    """Stands for processes: concludes every order as told to, once it is let."""

    def __init__(self, conclusion: Conclusion | None = None) -> None:
        self.conclusion = conclusion
        self.orders: list[tuple[IsolatedRun, threading.Event]] = []
        self.returned = 0
        self.go = threading.Event()
        self.go.set()

    def run(self, order: IsolatedRun, *, cancelled: threading.Event) -> Conclusion:
        self.orders.append((order, cancelled))
        self.go.wait(5)
        self.returned += 1
        if self.conclusion is None:
            raise IsolationError("no process can be had")
        return self.conclusion

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere(Returned("elsewhere"))


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
def slots(clock: Moved, elsewhere: Elsewhere) -> Iterator[Slots]:
    made = Slots(2, monotonic=clock, isolation=elsewhere)
    yield made
    made.close()


def start(slots: Slots, task_type: TaskType = APART, *, is_last_attempt: bool = False, **fields: Any) -> Running:
    task = a_claimed_task(**fields)
    slots.start(task, task_type, timeout=SECOND, is_last_attempt=is_last_attempt, now=T0)
    return slots.running[-1]


def conclusion(slots: Slots, task_type: TaskType = APART, **fields: Any) -> Conclusion:
    start(slots, task_type, **fields)
    [ended] = slots.ended(wait=5)
    return ended.conclusion


@pytest.mark.parametrize(
    ("task_type", "crashes", "where"),
    [(HERE, 0, "here"), (HERE, 1, "elsewhere"), (APART, 0, "elsewhere"), (APART, 3, "elsewhere")],
)
def test_what_asks_for_it_and_what_is_suspected_of_a_crash_is_isolated(
    slots: Slots, task_type: TaskType, crashes: int, where: str
) -> None:
    assert conclusion(slots, task_type, crashes=crashes) == Returned(where)


def test_without_an_isolation_all_is_run_here() -> None:
    slots = Slots(1)

    assert conclusion(slots, APART, crashes=1) == Returned("here")
    slots.close()


def test_it_is_told_of_the_task_and_of_its_cancellation(slots: Slots, elsewhere: Elsewhere) -> None:
    elsewhere.go.clear()
    trace = {"correlation_id": "c", "traceparent": "t"}
    running = start(slots, payload={"a": 1}, attempts=3, is_last_attempt=True, trace=trace)

    assert eventually(lambda: len(elsewhere.orders) == 1)
    [(order, cancelled)] = elsewhere.orders
    assert order == IsolatedRun(
        name="noop",
        payload={"a": 1},
        task_id=running.task.id,
        attempt=3,
        is_last_attempt=True,
        timeout=SECOND,
        correlation_id="c",
        traceparent="t",
    )
    assert (running.ctx.correlation_id, running.ctx.traceparent) == ("c", "t")
    running.cancel.set()
    assert cancelled.is_set()
    elsewhere.go.set()


@pytest.mark.parametrize("concluded", [Crashed("its process was killed by SIGSEGV"), Overran()], ids=shown)
def test_its_end_is_told_as_it_is(slots: Slots, elsewhere: Elsewhere, concluded: Conclusion) -> None:
    elsewhere.conclusion = concluded

    assert conclusion(slots) == concluded
    assert slots.free == 2


def test_without_a_process_it_has_not_started(slots: Slots, elsewhere: Elsewhere) -> None:
    elsewhere.conclusion = None

    assert conclusion(slots) == NotStarted(str(IsolationError("no process can be had")))
    assert slots.free == 2


def test_the_timeout_is_the_isolations_affair_and_only_its_silence_the_slots(
    slots: Slots, clock: Moved, elsewhere: Elsewhere
) -> None:
    elsewhere.go.clear()
    running = start(slots)
    assert slots.next_deadline() == clock.now + 1 + ISOLATION_ALLOWANCE.total_seconds()

    clock.now += 1 + ISOLATION_ALLOWANCE.total_seconds() - 0.001
    assert slots.overdue() == []
    clock.now += 0.001
    assert slots.overdue() == [running]

    assert (slots.free, slots.leftovers()) == (2, 1)
    assert running.task.id in slots.zombies()
    elsewhere.go.set()
    assert eventually(lambda: slots.leftovers() == 0)
    assert slots.ended(wait=0) == []


def test_an_isolation_is_never_interrupted(slots: Slots, clock: Moved, elsewhere: Elsewhere) -> None:
    elsewhere.go.clear()
    start(slots)
    assert eventually(lambda: len(elsewhere.orders) == 1)
    clock.now += 1 + ISOLATION_ALLOWANCE.total_seconds()
    slots.overdue()
    clock.now += 10
    slots.overdue()

    assert slots.leftovers(wait=0.05) == 1  # it waits, and so has time to put its house in order
    elsewhere.go.set()
    assert slots.leftovers(wait=5) == 0
    assert elsewhere.returned == 1
