"""Functions that run past their deadline: abandoned, interrupted, and never heard of again."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.fixtures import T0
from tests.unit.make import Moved, a_claimed_task, eventually, let_threads_exit
from tidemill import TaskTimeoutError
from tidemill.registry import TaskType
from tidemill.runner.results import Returned
from tidemill.runner.thread_pool import ThreadPool
from tidemill.runner.worker_thread import RunningTask

SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
def slots(clock: Moved) -> Iterator[ThreadPool]:
    made = ThreadPool(2, monotonic=clock)
    yield made
    made.close()


class Stuck:
    """A function that runs until it is let go, and swallows *swallows* interruptions."""

    def __init__(self, *, swallows: int = 0) -> None:
        self.started, self.go, self.gone = threading.Event(), threading.Event(), threading.Event()
        self.swallows = swallows
        self.caught: list[BaseException] = []

    def __call__(self, *_: object) -> str:
        try:
            while True:
                try:
                    self.started.set()
                    while not self.go.is_set():
                        time.sleep(0.001)
                except TaskTimeoutError as error:
                    self.caught.append(error)
                    if len(self.caught) > self.swallows:
                        raise
                else:
                    return "late"
        finally:
            self.gone.set()


def start(slots: ThreadPool, function: Callable[..., Any], *, timeout: timedelta = SECOND) -> RunningTask:
    task_type = TaskType(name="noop", function=function)
    slots.start(a_claimed_task(), task_type, timeout=timeout, is_last_attempt=False, now=T0)
    if isinstance(function, Stuck):
        assert function.started.wait(5)
    return slots.running[-1]


def test_what_has_time_left_is_left_alone(slots: ThreadPool, clock: Moved) -> None:
    stuck = Stuck()
    start(slots, stuck)
    clock.now += 0.999

    assert slots.abandon_overdue() == []
    stuck.go.set()
    [ended] = slots.collect(wait=5)
    assert ended.result == Returned("late")
    assert ended.duration == timedelta(seconds=0.999)


def test_what_has_none_is_given_up_and_interrupted(slots: ThreadPool, clock: Moved) -> None:
    stuck = Stuck()
    running = start(slots, stuck)
    clock.now += 1

    assert slots.abandon_overdue() == [running]

    assert slots.free == 2
    assert stuck.gone.wait(5)
    assert [isinstance(error, TaskTimeoutError) for error in stuck.caught] == [True]
    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert slots.collect(wait=0) == []
    assert slots.abandon_overdue() == []


def test_a_late_result_is_thrown_away(slots: ThreadPool, clock: Moved) -> None:  # F52
    stuck = Stuck(swallows=1)
    start(slots, stuck)
    clock.now += 1
    slots.abandon_overdue()
    assert eventually(lambda: bool(stuck.caught))

    assert slots.abandoned_threads() == 1
    stuck.go.set()

    assert stuck.gone.wait(5)
    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert slots.collect(wait=0.01) == []


def test_others_run_on_while_one_will_not_stop(slots: ThreadPool, clock: Moved) -> None:
    stuck = Stuck(swallows=1)
    start(slots, stuck)
    clock.now += 1
    slots.abandon_overdue()

    for _ in range(3):
        start(slots, lambda *_: "good")
        assert [one.result for one in slots.collect(wait=5)] == [Returned("good")]

    assert slots.abandoned_threads() == 1
    stuck.go.set()


def test_the_slots_of_what_will_not_stop_are_replaced(slots: ThreadPool, clock: Moved) -> None:
    stuck = [Stuck(swallows=1) for _ in range(6)]
    for pair in (stuck[0:2], stuck[2:4], stuck[4:6]):
        for one in pair:
            start(slots, one)
        assert slots.free == 0
        clock.now += 1
        assert len(slots.abandon_overdue()) == 2

    assert (slots.free, slots.abandoned_threads()) == (2, 6)
    for one in stuck:
        one.go.set()
    assert eventually(lambda: slots.abandoned_threads() == 0)


def test_only_what_is_overdue_is_interrupted(slots: ThreadPool, clock: Moved) -> None:
    late, early = Stuck(), Stuck()
    given_up = start(slots, late)
    kept = start(slots, early, timeout=3 * SECOND)
    clock.now += 2

    assert slots.abandon_overdue() == [given_up]

    assert late.gone.wait(5)
    assert slots.running == [kept]
    early.go.set()
    assert [one.running for one in slots.collect(wait=5)] == [kept]
    assert early.caught == []


def test_a_result_that_is_on_its_way_when_time_runs_out_is_taken(slots: ThreadPool, clock: Moved) -> None:
    running = start(slots, lambda *_: "just in time")
    let_threads_exit(slots)
    clock.now += 1

    assert slots.abandon_overdue() == []
    assert slots.running == [running]
    [ended] = slots.collect(wait=0)
    assert ended.result == Returned("just in time")


def test_a_function_that_cleans_up_for_long_is_a_leftover_meanwhile(slots: ThreadPool, clock: Moved) -> None:
    hold, cleaning = threading.Event(), threading.Event()
    stuck = Stuck()

    def cleans_up(*_: object) -> None:
        try:
            stuck()
        finally:
            cleaning.set()
            hold.wait(5)

    start(slots, cleans_up)
    assert stuck.started.wait(5)
    clock.now += 1
    slots.abandon_overdue()

    assert cleaning.wait(5)
    assert slots.abandoned_threads() == 1
    hold.set()
    assert eventually(lambda: slots.abandoned_threads() == 0)


def test_the_next_deadline_is_the_earliest(slots: ThreadPool, clock: Moved) -> None:
    assert slots.next_deadline() is None
    first, second = Stuck(), Stuck()

    start(slots, first, timeout=7 * SECOND)
    start(slots, second, timeout=3 * SECOND)
    assert slots.next_deadline() == clock.now + 3

    second.go.set()
    slots.collect(wait=5)
    assert slots.next_deadline() == clock.now + 7
    first.go.set()


@pytest.fixture
def no_callbacks() -> Iterator[None]:
    """Keep what test tools have the collector call out of the slots' threads, which may be interrupted in it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


async def short(*_: object) -> int:
    await asyncio.sleep(0)
    return sum(range(50))


async def leaves_some(*_: object) -> int:
    return len([asyncio.ensure_future(short()) for _ in range(3)])


@pytest.mark.usefixtures("no_callbacks")
@pytest.mark.parametrize("functions", [[lambda *_: sum(range(50))], [short, leaves_some]], ids=["sync", "async"])
def test_no_interruption_escapes_its_thread_wherever_it_lands(
    clock: Moved, monkeypatch: pytest.MonkeyPatch, functions: list[Callable[..., Any]]
) -> None:
    escaped: list[object] = []
    threads = set(threading.enumerate())
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # it may land in what Python calls for a dead object
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads meet everywhere
    slots, heard, given_up = ThreadPool(8, monotonic=clock), 0, 0
    until = time.monotonic() + 1.5

    while slots.running or time.monotonic() < until:
        while slots.free and time.monotonic() < until:
            start(slots, functions[slots.free % len(functions)], timeout=timedelta(0))
        given_up += len(slots.abandon_overdue())
        clock.now += 1
        heard += len(slots.collect(wait=0))
    sys.setswitchinterval(interval)

    assert slots.abandoned_threads(wait=10) == 0
    slots.close()
    assert eventually(lambda: set(threading.enumerate()) <= threads)
    gc.collect()  # what was interrupted half-way speaks now, or it would in another test
    assert heard
    assert given_up
    assert escaped == []
