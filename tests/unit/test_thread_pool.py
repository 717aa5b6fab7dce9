"""Slots: running functions on threads, whatever they do."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.fixtures import T0
from tests.unit.make import a_claimed_task, eventually, let_threads_exit
from tidemill import TaskContext
from tidemill.registry import TaskType
from tidemill.runner.results import NotStarted, Raised, Returned
from tidemill.runner.thread_pool import ThreadPool
from tidemill.runner.worker_thread import FinishedRun

LONG = timedelta(minutes=1)
SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN", default="nothing")


@pytest.fixture
def slots() -> Iterator[ThreadPool]:
    made = ThreadPool(2)
    yield made
    made.close()


def start(
    slots: ThreadPool, function: Callable[..., Any], payload: dict[str, Any] | None = None, **fields: Any
) -> None:
    task_type = TaskType(name="noop", function=function)
    task = a_claimed_task(payload=payload or {}, **fields)
    slots.start(task, task_type, timeout=LONG, is_last_attempt=False, now=T0)


def one(slots: ThreadPool) -> FinishedRun:
    """The next function that ends."""
    [ended] = slots.collect(wait=5)
    return ended


def run(slots: ThreadPool, function: Callable[..., Any], **fields: Any) -> FinishedRun:
    start(slots, function, **fields)
    return one(slots)


def test_a_function_runs_on_a_thread_of_its_own_and_its_result_comes_back(slots: ThreadPool) -> None:
    ended = run(slots, lambda payload, _: [payload["a"], threading.current_thread().name], payload={"a": 1})

    assert ended.result == Returned([1, "tidemill-slot"])
    assert ended.running.started_at == T0
    assert timedelta(0) <= ended.duration < timedelta(seconds=5)


def test_a_function_is_told_of_its_task(slots: ThreadPool) -> None:
    task = a_claimed_task(attempts=3)
    kept: list[TaskContext] = []
    task_type = TaskType(name="noop", function=lambda _, ctx: kept.append(ctx))

    slots.start(task, task_type, timeout=LONG, is_last_attempt=True, now=T0)

    ctx = one(slots).running.ctx
    assert kept == [ctx]
    assert (ctx.task_id, ctx.attempt, ctx.is_last_attempt) == (task.id, 3, True)
    assert timedelta(0) < ctx.remaining() <= LONG


class CustomBaseError(BaseException):
    pass


class HostileError(Exception):
    def __str__(self) -> str:
        raise SystemExit("hostile")

    __repr__ = __str__


def recursing() -> None:
    recursing()


def leaving(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


ENDS: dict[str, Callable[..., Any]] = {  # F48
    "exit": lambda *_: sys.exit(),
    "exit 0": lambda *_: sys.exit(0),
    "exit msg": lambda *_: sys.exit("msg"),
    "SystemExit": leaving(SystemExit()),
    "KeyboardInterrupt": leaving(KeyboardInterrupt()),
    "CancelledError": leaving(asyncio.CancelledError()),
    "GeneratorExit": leaving(GeneratorExit()),
    "MemoryError": leaving(MemoryError()),
    "StopIteration": leaving(StopIteration()),
    "custom": leaving(CustomBaseError()),
    "recursion": lambda *_: recursing(),
    "hostile": leaving(HostileError()),
    "no argument": lambda: None,
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_a_function_raises_is_kept_and_the_next_three_run(slots: ThreadPool, end: str) -> None:
    ended = run(slots, ENDS[end])

    assert isinstance(ended.result, Raised)
    assert [run(slots, lambda *_: "good").result for _ in range(3)] == [Returned("good")] * 3
    assert slots.free == 2


def test_an_event_loop_of_a_functions_own_works_off_the_main_thread(slots: ThreadPool) -> None:
    ended = run(slots, lambda *_: asyncio.run(asyncio.sleep(0, "done")))

    assert ended.result == Returned("done")


def test_as_many_run_at_a_time_as_there_are_slots(slots: ThreadPool) -> None:
    gate = threading.Barrier(3)
    start(slots, lambda *_: gate.wait(5))
    start(slots, lambda *_: gate.wait(5))

    assert (slots.size, slots.free, len(slots.running)) == (2, 0, 2)
    gate.wait(5)  # both are there, together
    ended = [*slots.collect(wait=5)]
    while len(ended) < 2:
        ended += slots.collect(wait=5)
    assert (slots.free, slots.running) == (2, [])


def test_all_that_ended_is_returned_at_once(slots: ThreadPool) -> None:
    threads: list[threading.Thread] = []
    for _ in range(2):
        start(slots, lambda *_: threads.append(threading.current_thread()))
    let_threads_exit(slots)

    ended = slots.collect(wait=0)

    assert len(ended) == len(set(threads)) == 2


def test_nothing_that_ended_is_waited_for_only_so_long(slots: ThreadPool) -> None:
    assert slots.collect(wait=0) == []
    started = time.monotonic()
    assert slots.collect(wait=0.05) == []
    assert 0.04 < time.monotonic() - started < 2


def test_threads_are_used_again(slots: ThreadPool) -> None:
    first, second = (run(slots, lambda *_: threading.get_ident()).result for _ in range(2))

    assert first == second


def test_what_one_task_sets_in_its_context_the_next_does_not_see(slots: ThreadPool) -> None:  # F53
    def spoils(*_: object) -> None:
        decimal.getcontext().prec = 1
        SEEN.set("spoilt")

    def looks(*_: object) -> list[str]:
        return [str(decimal.Decimal(1) / 3), SEEN.get()]

    SEEN.set("of the main thread")
    run(slots, spoils)

    assert run(slots, looks).result == Returned(["0." + "3" * 28, "nothing"])
    assert SEEN.get() == "of the main thread"


def test_a_slot_goes_on_while_a_thread_of_a_function_does(slots: ThreadPool) -> None:  # F52
    gate, late = threading.Event(), list[str]()

    def leaves_a_thread(*_: object) -> str:
        def outlives() -> None:
            gate.wait(5)
            late.append("wrote")

        threading.Thread(target=outlives, daemon=True).start()
        return "returned"

    assert run(slots, leaves_a_thread).result == Returned("returned")
    assert run(slots, lambda *_: "next").result == Returned("next")
    assert slots.abandoned_threads() == 0
    gate.set()
    assert eventually(lambda: late == ["wrote"])


def test_cancellation_is_told_to_the_one_that_was_asked(slots: ThreadPool) -> None:
    asked = threading.Event()

    def waits(_: object, ctx: TaskContext) -> bool:
        asked.wait(5)
        return ctx.cancelled()

    start(slots, waits)
    [first] = slots.running
    start(slots, waits)
    first.cancel.set()
    asked.set()

    ended = [*slots.collect(wait=5)]
    while len(ended) < 2:
        ended += slots.collect(wait=5)
    assert {one.running is first: one.result for one in ended} == {
        True: Returned(result=True),
        False: Returned(result=False),
    }


def test_what_no_thread_can_be_had_for_is_told_to_be_unstarted_and_the_next_runs(
    slots: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    called: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", refused)
    start(slots, lambda *_: called.append("called"))
    assert (slots.free, len(slots.running), slots.next_deadline()) == (1, 1, None)
    [unstarted] = slots.running

    ended = one(slots)

    assert (ended.running, ended.duration) == (unstarted, timedelta(0))
    assert ended.result == NotStarted("no thread could be started")
    assert (slots.free, slots.running, called) == (2, [], [])
    assert run(slots, lambda *_: "next").result == Returned("next")
    assert slots.free == 2


def test_what_did_not_start_is_not_overdue(slots: ThreadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    task_type = TaskType(name="noop", function=lambda *_: None)
    for _ in range(2):
        slots.start(a_claimed_task(), task_type, timeout=timedelta(0), is_last_attempt=False, now=T0)
    assert (slots.free, slots.abandon_overdue()) == (0, [])

    assert [one.result for one in slots.collect(wait=5)] == [NotStarted("no thread could be started")] * 2


def test_closing_lets_every_thread_end_once_its_function_has(slots: ThreadPool) -> None:
    gate = threading.Event()
    threads: list[threading.Thread] = []

    def waits(*_: object) -> None:
        threads.append(threading.current_thread())
        gate.wait(5)

    run(slots, lambda *_: threads.append(threading.current_thread()))
    start(slots, waits)
    start(slots, waits)
    assert eventually(lambda: len(threads) == 3)

    slots.close()
    gate.set()

    assert eventually(lambda: not any(thread.is_alive() for thread in threads))
