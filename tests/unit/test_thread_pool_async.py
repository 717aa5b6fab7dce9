"""Async functions in slots: beside others, cancelled at their deadline, interrupted where that does not do."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import T0
from tests.unit.make import Moved, a_claimed_task, eventually
from tidemill import TaskTimeoutError
from tidemill.registry import TaskType
from tidemill.runner.results import Raised, Returned
from tidemill.runner.thread_pool import CANCEL_GRACE_SEC, ThreadPool
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


def start(slots: ThreadPool, function: Callable[..., Any], *, timeout: timedelta = SECOND) -> RunningTask:
    task_type = TaskType(name="noop", function=function)
    slots.start(a_claimed_task(), task_type, timeout=timeout, is_last_attempt=False, now=T0)
    return slots.running[-1]


def good(slots: ThreadPool) -> None:
    """Others are run as if nothing were."""

    async def works(*_: object) -> str:
        await asyncio.sleep(0)
        return "async"

    for function, result in ((works, "async"), (lambda *_: "sync", "sync")):
        start(slots, function)
        assert [one.result for one in slots.collect(wait=5)] == [Returned(result)]


class Async:
    """An async function that begins, goes on, and swallows *swallows* cancellations and interruptions.

    It *blocks* its thread, or awaits; and once it has swallowed, *waits* for what never happens.
    """

    def __init__(self, *, swallows: int = 0, blocks: bool = False, waits: bool = False) -> None:
        self.begun, self.go, self.gone = threading.Event(), threading.Event(), threading.Event()
        self.swallows = swallows
        self.blocks = blocks
        self.waits = waits
        self.steps = 0
        self.caught: list[type[BaseException]] = []
        self.threads: list[threading.Thread] = []

    async def __call__(self, *_: object) -> str:
        self.threads.append(threading.current_thread())
        self.begun.set()
        try:
            while not self.go.is_set():
                await self._step()
            return "late"
        finally:
            await asyncio.sleep(0)  # an end takes a moment, which is granted
            self.gone.set()

    async def _step(self) -> None:
        self.steps += 1
        try:
            if self.waits and self.caught:
                await asyncio.Event().wait()
            elif self.blocks:
                time.sleep(0.001)
            else:
                await asyncio.sleep(0.001)
        except (asyncio.CancelledError, TaskTimeoutError) as error:
            self.caught.append(type(error))
            if len(self.caught) > self.swallows:
                raise


def begin(slots: ThreadPool, function: Async, **options: Any) -> RunningTask:
    running = start(slots, function, **options)
    assert function.begun.wait(5)
    return running


def test_what_an_async_function_returns_comes_back(slots: ThreadPool) -> None:
    async def works(payload: dict[str, Any], _: object) -> list[Any]:
        await asyncio.sleep(0)
        return [payload, threading.current_thread().name]

    start(slots, works)

    [ended] = slots.collect(wait=5)
    assert ended.result == Returned([{}, "tidemill-slot"])


def test_a_coroutine_that_blocks_holds_up_only_its_own_slot(slots: ThreadPool) -> None:
    blocking = Async(blocks=True)
    begin(slots, blocking)

    good(slots)

    blocking.go.set()
    assert [one.result for one in slots.collect(wait=5)] == [Returned("late")]


def test_one_that_is_overdue_is_cancelled_and_may_clean_up(slots: ThreadPool, clock: Moved) -> None:
    late = Async()
    running = begin(slots, late)
    clock.now += 1

    assert slots.abandon_overdue() == [running]

    assert slots.free == 2
    assert late.gone.wait(5)
    assert late.caught == [asyncio.CancelledError]
    assert eventually(lambda: not late.threads[0].is_alive())
    assert (slots.abandoned_threads(), slots.collect(wait=0), slots.abandon_overdue()) == (0, [], [])
    good(slots)


@pytest.mark.parametrize(
    ("late", "caught"),
    [
        (Async(swallows=1), [asyncio.CancelledError]),
        (Async(swallows=1, waits=True), [asyncio.CancelledError]),
        (Async(blocks=True), []),
    ],
    ids=["swallows it", "swallows it and waits", "blocks"],
)
def test_one_that_does_not_heed_its_cancellation_is_interrupted_a_second_later(
    slots: ThreadPool, clock: Moved, late: Async, caught: list[type]
) -> None:
    begin(slots, late)
    clock.now += 1
    slots.abandon_overdue()
    clock.now += CANCEL_GRACE_SEC / 2
    assert slots.abandon_overdue() == []
    assert eventually(lambda: late.caught == caught)
    steps = late.steps
    assert late.waits or eventually(lambda: late.steps > steps + 20)
    assert (late.caught, slots.abandoned_threads()) == (caught, 1)

    clock.now += CANCEL_GRACE_SEC
    assert slots.abandon_overdue() == []

    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert len(late.caught) == len(caught) + 1  # interrupted itself, or cancelled because its loop was
    assert slots.collect(wait=0) == []
    good(slots)


def test_a_left_over_is_waited_for_and_interrupted_meanwhile(slots: ThreadPool, clock: Moved) -> None:
    late = Async(swallows=1)
    begin(slots, late)
    clock.now += 1
    slots.abandon_overdue()
    clock.now += CANCEL_GRACE_SEC

    assert slots.abandoned_threads(wait=5) == 0

    assert len(late.caught) == 2


def test_one_that_goes_on_whatever_is_done_to_it_is_a_left_over_and_its_result_refused(
    slots: ThreadPool, clock: Moved
) -> None:
    late = Async(swallows=2)
    begin(slots, late)
    for _ in range(4):
        clock.now += 1
        slots.abandon_overdue()
    assert eventually(lambda: len(late.caught) == 2)

    assert slots.abandoned_threads(wait=0.05) == 1
    good(slots)
    late.go.set()

    assert late.gone.wait(5)
    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert slots.collect(wait=0) == []


def test_a_call_on_a_thread_that_outlives_its_cancellation_is_a_left_over(slots: ThreadPool, clock: Moved) -> None:
    begun, go, late = threading.Event(), threading.Event(), list[str]()

    def works() -> None:
        begun.set()
        go.wait(5)
        late.append("wrote")

    async def waits(*_: object) -> None:
        await asyncio.to_thread(works)

    running = start(slots, waits)
    assert begun.wait(5)
    clock.now += 1
    assert slots.abandon_overdue() == [running]

    assert slots.abandoned_threads(wait=0.05) == 1
    assert running.task.id in slots.abandoned_task_ids()
    go.set()
    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert late == ["wrote"]


def test_one_that_is_given_up_before_its_coroutine_begins_never_begins(slots: ThreadPool, clock: Moved) -> None:
    begun, ran = threading.Event(), list[str]()

    async def work() -> None:
        ran.append("work")

    def slowly_async(*_: object) -> Awaitable[None]:
        try:
            begun.set()
            while True:
                time.sleep(0.001)
        except TaskTimeoutError:
            return work()

    start(slots, slowly_async)
    assert begun.wait(5)
    clock.now += 1
    slots.abandon_overdue()

    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert (ran, slots.collect(wait=0)) == ([], [])


def test_a_task_that_blocks_when_it_is_cancelled_counts_against_the_function_that_left_it(
    slots: ThreadPool, clock: Moved
) -> None:
    blocking, go = threading.Event(), threading.Event()

    async def blocks() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            blocking.set()
            while not go.is_set():
                time.sleep(0.001)

    async def leaves(*_: object) -> str:
        left = asyncio.ensure_future(blocks())
        await asyncio.sleep(0)
        return f"left {left}"

    running = start(slots, leaves)
    assert blocking.wait(5)
    good(slots)
    clock.now += 1

    assert slots.abandon_overdue() == [running]

    assert eventually(lambda: slots.abandoned_threads() == 0)
    assert slots.collect(wait=0) == []


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files where Linux shows them")
def test_a_hundred_timeouts_leave_no_thread_and_no_file_open(clock: Moved) -> None:
    slots = ThreadPool(10, monotonic=clock)
    gc.collect()
    files, threads = open_files(), set(threading.enumerate())

    gc.disable()  # an interruption that meets a finalizer in its thread is lost, with a warning
    try:
        for turn in range(10):
            late = [Async(swallows=turn % 2) for _ in range(10)]
            for one in late:
                begin(slots, one)
            clock.now += 1
            assert len(slots.abandon_overdue()) == 10
            clock.now += CANCEL_GRACE_SEC
            assert slots.abandoned_threads(wait=5) == 0
    finally:
        gc.enable()

    slots.close()
    assert eventually(lambda: set(threading.enumerate()) <= threads)
    gc.collect()
    assert open_files() <= files  # what earlier tests left may have gone meanwhile


def test_an_exception_of_a_coroutine_is_a_failure(slots: ThreadPool) -> None:
    async def fails(*_: object) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    start(slots, fails)

    [ended] = slots.collect(wait=5)
    assert isinstance(ended.result, Raised)
    assert ended.result.failure.message.startswith(f"ValueError: no ({Path(__file__).name}:")
