"""Two executors at once run every task once."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tidemill import Queue
from tidemill.registry import Registry
from tidemill.testing import double_tick


def test_every_task_is_run_once(queue: Queue, registry: Registry) -> None:
    ran: list[int] = []

    @registry.task("charge")
    def charge(payload: dict[str, Any]) -> None:
        ran.append(payload["card"])

    queue.enqueue_many({"name": "charge", "payload": {"card": n}} for n in range(50))

    assert double_tick(queue, registry=registry).raise_failures().done == 50
    assert sorted(ran) == list(range(50))


def test_both_are_at_work_at_the_same_time(queue: Queue, registry: Registry) -> None:
    together = threading.Barrier(2, timeout=10)

    @registry.task("meet")
    def meet(_payload: dict[str, Any]) -> None:
        together.wait()

    queue.enqueue_many({"name": "meet", "payload": {}} for _ in range(2))

    assert double_tick(queue, registry=registry).raise_failures().done == 2


@pytest.mark.parametrize("count", [0, 1])
def test_one_that_has_nothing_to_do_is_not_waited_for(queue: Queue, registry: Registry, count: int) -> None:
    registry.task("noop")(lambda _payload: None)
    queue.enqueue_many({"name": "noop", "payload": {}} for _ in range(count))

    assert double_tick(queue, registry=registry).done == count


def test_time_and_queues_can_be_chosen(db: Database[Any], queue: Queue, registry: Registry) -> None:
    registry.task("noop")(lambda _payload: None)
    for name in ("eu", "us"):
        queue.enqueue("noop", {}, queue=name, delay=timedelta(hours=1))

    at = queue.now() + timedelta(hours=2)

    assert double_tick(queue, registry=registry).done == 0
    drained = double_tick(db, now=at, queues=["eu"], registry=registry)
    assert (drained.done, drained.now) == (1, at)


def test_an_attempt_that_was_run_twice_is_told_of(queue: Queue, registry: Registry) -> None:
    """As it would be if leases did not hold: the function takes its own task back and gives it free again."""

    def free(_payload: dict[str, Any]) -> None:
        again = {"$set": {"status": "pending", "attempts": 0}, "$unset": {"lease": ""}}
        queue.database["tasks"].update_one({"status": "processing", "crashes": 0}, again | {"$inc": {"crashes": 1}})

    registry.task("free")(free)
    queue.enqueue("free", {})

    with pytest.raises(AssertionError, match="1 attempts were run twice"):
        double_tick(queue, registry=registry)
