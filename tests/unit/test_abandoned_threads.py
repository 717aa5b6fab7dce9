"""Functions that still run though nobody waits for them: the process knows of which tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.fixtures import T0
from tests.unit.make import Moved, a_claimed_task, eventually
from tidemill import TaskTimeoutError
from tidemill.registry import TaskType
from tidemill.runner.thread_pool import ThreadPool

SECOND = timedelta(seconds=1)


def waiting_for(go: threading.Event, begun: threading.Event) -> Callable[..., Any]:
    def waits(*_: object) -> None:
        begun.set()
        while not go.is_set():
            try:
                go.wait(5)
            except TaskTimeoutError:
                continue

    return waits


def started(slots: ThreadPool, go: threading.Event, **fields: Any) -> Any:
    """The id of a task whose function runs until *go*."""
    task, begun = a_claimed_task(**fields), threading.Event()
    task_type = TaskType(name="noop", function=waiting_for(go, begun))
    slots.start(task, task_type, timeout=SECOND, is_last_attempt=False, now=T0)
    assert begun.wait(5)
    return task.id


def test_what_runs_in_time_is_no_zombie() -> None:
    slots, go = ThreadPool(1), threading.Event()
    task_id = started(slots, go)

    assert task_id not in slots.abandoned_task_ids()
    go.set()
    assert len(slots.collect(wait=5)) == 1
    slots.close()
    assert task_id not in slots.abandoned_task_ids()


def test_a_function_that_was_given_up_and_runs_on_is_one_until_it_ends() -> None:
    clock, go = Moved(), threading.Event()
    slots = ThreadPool(1, monotonic=clock)
    task_id = started(slots, go)
    clock.now += 1
    slots.abandon_overdue()

    assert task_id in slots.abandoned_task_ids()
    go.set()
    assert eventually(lambda: task_id not in slots.abandoned_task_ids())
    slots.close()


def test_a_later_execution_of_the_same_process_knows_of_it_and_does_not_count_it() -> None:
    clock, go = Moved(), threading.Event()
    earlier = ThreadPool(1, monotonic=clock)
    task_id = started(earlier, go, _id={"an id": "of any kind"})
    clock.now += 1
    earlier.abandon_overdue()
    earlier.close()

    later = ThreadPool(1)

    assert task_id == {"an id": "of any kind"}
    assert task_id in later.abandoned_task_ids()
    assert (earlier.abandoned_threads(), later.abandoned_threads()) == (1, 0)
    go.set()
    assert eventually(lambda: task_id not in later.abandoned_task_ids())


def test_what_still_runs_when_an_execution_is_cut_short_is_one_too() -> None:
    slots, go = ThreadPool(1), threading.Event()
    task_id = started(slots, go)

    slots.close()

    assert task_id in ThreadPool(1).abandoned_task_ids()
    go.set()
    assert eventually(lambda: task_id not in slots.abandoned_task_ids())
