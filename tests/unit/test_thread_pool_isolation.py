"""Functions that get a process of their own: who does, what is asked for, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.fixtures import T0
from tests.ids import shown
from tests.unit.make import Moved, a_claimed_task, eventually
from tidemill.errors import IsolationError
from tidemill.registry import TaskType
from tidemill.runner.process_protocol import RunSpec
from tidemill.runner.results import Crashed, NotStarted, Returned, RunResult, TimedOut
from tidemill.runner.thread_pool import ThreadPool
from tidemill.runner.worker_thread import MAX_ISOLATION_OVERHEAD, RunningTask

SECOND = timedelta(seconds=1)
HERE = TaskType(name="noop", function=lambda *_: "here")
APART = TaskType(name="noop", function=lambda *_: "here", isolate=True)


class Elsewhere:
    """Stands for processes: concludes every run as told to, once it is let."""

    def __init__(self, result: RunResult | None = None) -> None:
        self.result = result
        self.specs: list[tuple[RunSpec, threading.Event]] = []
        self.returned = 0
        self.go = threading.Event()
        self.go.set()

    def run(
        self,
        spec: RunSpec,
        *,
        cancelled: threading.Event,
        take_note: Callable[[str], object],  # noqa: ARG002 - it takes none
    ) -> RunResult:
        self.specs.append((spec, cancelled))
        self.go.wait(5)
        self.returned += 1
        if self.result is None:
            raise IsolationError("no process can be had")
        return self.result

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere(Returned("elsewhere"))


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
def slots(clock: Moved, elsewhere: Elsewhere) -> Iterator[ThreadPool]:
    made = ThreadPool(2, monotonic=clock, isolation=elsewhere)
    yield made
    made.close()


def start(
    slots: ThreadPool, task_type: TaskType = APART, *, is_last_attempt: bool = False, **fields: Any
) -> RunningTask:
    task = a_claimed_task(**fields)
    slots.start(task, task_type, timeout=SECOND, is_last_attempt=is_last_attempt, now=T0)
    return slots.running[-1]


def result(slots: ThreadPool, task_type: TaskType = APART, **fields: Any) -> RunResult:
    start(slots, task_type, **fields)
    [ended] = slots.collect(wait=5)
    return ended.result


@pytest.mark.parametrize(
    ("task_type", "crashes", "where"),
    [(HERE, 0, "here"), (HERE, 1, "elsewhere"), (APART, 0, "elsewhere"), (APART, 3, "elsewhere")],
)
def test_what_asks_for_it_and_what_is_suspected_of_a_crash_is_isolated(
    slots: ThreadPool, task_type: TaskType, crashes: int, where: str
) -> None:
    assert result(slots, task_type, crashes=crashes) == Returned(where)


def test_without_an_isolation_all_is_run_here() -> None:
    slots = ThreadPool(1)

    assert result(slots, APART, crashes=1) == Returned("here")
    slots.close()


def test_it_is_told_of_the_task_and_of_its_cancellation(slots: ThreadPool, elsewhere: Elsewhere) -> None:
    elsewhere.go.clear()
    trace = {"correlation_id": "c", "traceparent": "t"}
    running = start(slots, payload={"a": 1}, attempts=3, is_last_attempt=True, trace=trace)

    assert eventually(lambda: len(elsewhere.specs) == 1)
    [(spec, cancelled)] = elsewhere.specs
    assert spec == RunSpec(
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


@pytest.mark.parametrize("concluded", [Crashed("its process was killed by SIGSEGV"), TimedOut()], ids=shown)
def test_its_end_is_told_as_it_is(slots: ThreadPool, elsewhere: Elsewhere, concluded: RunResult) -> None:
    elsewhere.result = concluded

    assert result(slots) == concluded
    assert slots.free == 2


def test_without_a_process_it_has_not_started(slots: ThreadPool, elsewhere: Elsewhere) -> None:
    elsewhere.result = None

    assert result(slots) == NotStarted(str(IsolationError("no process can be had")))
    assert slots.free == 2


def test_the_timeout_is_the_isolations_affair_and_only_its_silence_the_slots(
    slots: ThreadPool, clock: Moved, elsewhere: Elsewhere
) -> None:
    elsewhere.go.clear()
    running = start(slots)
    assert slots.next_deadline() == clock.now + 1 + MAX_ISOLATION_OVERHEAD.total_seconds()

    clock.now += 1 + MAX_ISOLATION_OVERHEAD.total_seconds() - 0.001
    assert slots.abandon_overdue() == []
    clock.now += 0.001
    assert slots.abandon_overdue() == [running]

    assert (slots.free, slots.abandoned_threads()) == (2, 1)
    assert running.task.id in slots.abandoned_task_ids()
    elsewhere.go.set()
    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert slots.collect(wait=0) == []


def test_an_isolation_is_never_interrupted(slots: ThreadPool, clock: Moved, elsewhere: Elsewhere) -> None:
    elsewhere.go.clear()
    start(slots)
    assert eventually(lambda: len(elsewhere.specs) == 1)
    clock.now += 1 + MAX_ISOLATION_OVERHEAD.total_seconds()
    slots.abandon_overdue()
    clock.now += 10
    slots.abandon_overdue()

    assert slots.abandoned_threads(wait=0.05) == 1  # it waits, and so has time to put its house in order
    elsewhere.go.set()
    assert slots.abandoned_threads(wait=5) == 0
    assert elsewhere.returned == 1
