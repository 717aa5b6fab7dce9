"""When a settler writes: soon, at once if many are pending, and with growing pauses after failures."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.builders import add, claim, document, stored, whole
from tests.faults import failing
from tests.features.worker.at_work import Time
from tests.fixtures import ManualClock
from tidemill import UnavailableError
from tidemill.executor.context import ExecutionContext, ExecutionOptions, Runtime
from tidemill.executor.lifetime import TIMING, Worker
from tidemill.executor.outcomes import FLUSH_SIZE, Settler
from tidemill.model import QueueOptions, Succeeded
from tidemill.registry import Registry
from tidemill.settings import Settings
from tidemill.store.connection import Tasks
from tidemill.store.settle import Settlement

INTERRUPTED = 11601


def a_settler(tasks: Tasks, time: Time) -> Settler:
    """The settler of a worker."""
    runtime = Runtime(
        tasks=tasks,
        registry=Registry(),
        settings=Settings(),
        clock=time.clock,
        options=lambda _: QueueOptions(),
        monotonic=time,
    )
    options = ExecutionOptions(owner="A", remaining=timedelta(hours=1))
    return Settler(ExecutionContext(runtime=runtime, options=options, lifetime=Worker(threading.Event())))


def ended(tasks: Tasks, time: Time, count: int) -> list[Settlement]:
    """The settlements of so many tasks that succeeded."""
    now = time.clock.now()
    add(tasks, [document(now) for _ in range(count)])
    return [
        Settlement(task=task, outcome=Succeeded(result=None)) for task in whole(claim(tasks, now, limit=count).tasks)
    ]


def test_the_first_settlement_sets_the_time_of_the_flush(tasks: Tasks, clock: ManualClock) -> None:
    time = Time(clock)
    settler, (first, second) = a_settler(tasks, time), ended(tasks, time, 2)
    assert (settler.next_flush(), settler.is_due()) == (None, False)

    settler.add(first)
    due_at = time() + TIMING.flush_sec
    time.pass_(TIMING.flush_sec / 2)
    settler.add(second)
    assert settler.next_flush() == pytest.approx(due_at)
    assert not settler.is_due()

    time.pass_(TIMING.flush_sec)
    assert settler.is_due()


def test_a_failed_flush_is_repeated_after_pauses_that_double(mine: Tasks, clock: ManualClock) -> None:
    time = Time(clock)
    settler, (first, *others) = a_settler(mine, time), ended(mine, time, 2 * FLUSH_SIZE)
    settler.add(first)

    with failing(mine, "update", times=1_000, errorCode=INTERRUPTED):
        pauses = []
        for _ in range(6):
            settler.flush(now=clock.now())
            pauses.append((settler.next_flush() or 0) - time())

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, TIMING.longest_flush_pause_sec])
    for settlement in others[: FLUSH_SIZE - 1]:
        settler.add(settlement)
    assert not settler.is_due(), "many are pending, and the pause is not over"
    time.pass_(TIMING.longest_flush_pause_sec)
    assert settler.is_due()

    settled = settler.flush(now=clock.now()).settled
    assert (len(settled), len(settler)) == (FLUSH_SIZE, 0)
    assert settler.next_flush() is None
    assert stored(mine, first.task.id)["status"] == "done"


def test_after_a_flush_that_succeeds_nothing_is_left_of_the_failure(mine: Tasks, clock: ManualClock) -> None:
    time = Time(clock)
    settler, (first, *others) = a_settler(mine, time), ended(mine, time, FLUSH_SIZE + 1)
    settler.add(first)
    with failing(mine, "update", times=1, errorCode=INTERRUPTED):
        settler.flush(now=clock.now())
    error = settler.error
    assert isinstance(error, UnavailableError)

    settler.flush(now=clock.now())
    assert settler.error is None
    for settlement in others:
        settler.add(settlement)
    assert settler.is_due(), "many are pending"


def test_many_settlements_are_written_at_once(tasks: Tasks, clock: ManualClock) -> None:
    time = Time(clock)
    settler, (*most, last) = a_settler(tasks, time), ended(tasks, time, FLUSH_SIZE)

    for settlement in most:
        settler.add(settlement)
    assert not settler.is_due()
    settler.add(last)
    assert settler.is_due()


def test_what_is_given_up_counts_as_unknown_once(tasks: Tasks, clock: ManualClock) -> None:
    time = Time(clock)
    settler, (settlement,) = a_settler(tasks, time), ended(tasks, time, 1)
    settler.add(settlement)

    settler.give_up()

    assert (len(settler), settler.next_flush(), settler.is_due()) == (0, None, False)
