"""Executors that are made to die leave behind what a killed process would, and every task survives it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.commands import Commands
from tidemill import Queue, Task
from tidemill.registry import Registry
from tidemill.testing import Faults, Mongod, dies_after, dies_before, drain, reclaim_now
from tidemill.testing.faults import Point

Plug = Callable[[Queue, Point], AbstractContextManager[None]]
TASKS = 3


@pytest.fixture
def runs(registry: Registry) -> list[int]:
    """The numbers that ``note`` was given, in the order of its runs; it returns how often each was run by then."""
    numbers: list[int] = []

    @registry.task("note", retry="one_shot")
    def note(payload: dict[str, Any]) -> int:
        numbers.append(payload["n"])
        return numbers.count(payload["n"])

    return numbers


def states(queue: Queue) -> list[tuple[str, int, int, Any]]:
    """Status, attempts, crashes and result of every task, in the order of their enqueueing."""
    return [
        (one["status"], one["attempts"], one["crashes"], one["result"])
        for one in queue.database["tasks"].find(sort=[("_id", 1)]).to_list()
    ]


@pytest.mark.parametrize("concurrency", [1, TASKS])
@pytest.mark.parametrize("dies", [dies_before, dies_after])
def test_every_task_survives_a_death_at_any_command_of_an_execution(
    mortal: Queue, registry: Registry, runs: list[int], dies: Plug, concurrency: int
) -> None:
    deaths = 0
    for point in range(1, 100):
        mortal.database["tasks"].delete_many({})
        runs.clear()
        ids = [mortal.enqueue("note", {"n": n}) for n in range(TASKS)]
        try:
            with dies(mortal, point):
                drain(mortal, registry=registry, concurrency=concurrency)
        except AssertionError:  # it was done before it came to that
            break
        deaths += 1
        had_run = list(runs)

        reclaim_now(mortal, registry=registry)
        drain(mortal, registry=registry)

        found = [mortal.get(one) for one in ids]
        for n, task in enumerate(found):
            assert isinstance(task, Task)
            # The first loss is refunded, so even a task that may run only once is run again.
            assert (task.status, task.attempts, task.lease) == ("done", 1, None), (point, n)
            assert task.result == runs.count(n) <= 2, (point, n)
            assert runs.count(n) >= 1, (point, n)
        assert set(had_run) <= set(runs)
        assert reclaim_now(mortal, registry=registry)["reclaimed"] == 0
    assert 8 < deaths < 99


@pytest.mark.parametrize(
    ("plug", "left"),
    [
        (lambda queue: dies_before(queue, "claim"), ([], ("pending", 0, 0, None))),
        (lambda queue: dies_after(queue, "claim"), ([], ("processing", 1, 0, None))),
        (lambda queue: dies_before(queue, "settle"), ([1], ("processing", 1, 0, None))),
        (lambda queue: dies_after(queue, "settle"), ([1], ("done", 1, 0, 1))),
    ],
    ids=["before claim", "after claim", "before settle", "after settle"],
)
def test_it_dies_where_it_is_told_to(
    mortal: Queue, registry: Registry, runs: list[int], plug: Callable[[Queue], AbstractContextManager[None]], left: Any
) -> None:
    mortal.enqueue("note", {"n": 1})

    with plug(mortal):
        drain(mortal, registry=registry)

    assert (runs, *states(mortal)) == left


@pytest.mark.parametrize("dies", [dies_before, dies_after])
def test_after_its_death_it_sends_nothing(mongod: Mongod, db: Database[Any], registry: Registry, dies: Plug) -> None:
    commands = Commands()
    registry.task("noop")(lambda _payload: None)
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[Faults(), commands]) as client:
        queue = Queue(client[db.name])

        def sent(point: Point | None) -> int:
            queue.database["tasks"].delete_many({})
            queue.enqueue("noop", {})
            commands.names.clear()
            with nullcontext() if point is None else dies(queue, point):
                drain(queue, registry=registry)
            return len([name for name in commands.names if name != "hello"])

        points = range(1, sent(None) + 1)
        assert [sent(point) for point in points] == [point - (dies is dies_before) for point in points]


def test_what_it_leaves_stays_leased_until_it_is_taken_back(mortal: Queue, registry: Registry, runs: list[int]) -> None:
    mortal.enqueue("note", {"n": 1})
    with dies_before(mortal, "settle"):
        drain(mortal, registry=registry)

    assert drain(mortal, now=mortal.now() + timedelta(days=1), registry=registry).report["claimed"] == 0
    assert reclaim_now(mortal, registry=registry)["reclaimed"] == 1
    assert drain(mortal, registry=registry).done == 1
    assert (runs, states(mortal)) == ([1, 1], [("done", 1, 0, 2)])


def test_a_second_loss_counts_and_a_task_that_is_lost_again_and_again_fails(
    mortal: Queue, registry: Registry, runs: list[int]
) -> None:
    mortal.enqueue("note", {"n": 1}, max_retries=1)

    taken_back = []
    for _ in range(3):
        with dies_after(mortal, "claim"):
            drain(mortal, registry=registry)
        report = reclaim_now(mortal, registry=registry)
        taken_back.append((report["reclaimed"], report["failed"]))

    assert taken_back == [(1, 0), (1, 0), (0, 1)]
    assert (runs, states(mortal)) == ([], [("failed", 2, 3, None)])


def test_the_policy_of_the_registration_holds_when_a_task_is_taken_back(mortal: Queue, registry: Registry) -> None:
    registry.task("once", retry="one_shot")(lambda _payload: None)
    mortal.enqueue("once", {})

    for _ in range(2):
        with dies_after(mortal, "claim"):
            drain(mortal, registry=registry)
        reclaim_now(mortal, registry=registry)

    assert [status for status, *_ in states(mortal)] == ["failed"]


def test_leases_of_several_dead_are_taken_back_at_once(mortal: Queue, registry: Registry, runs: list[int]) -> None:
    for n in range(3):
        mortal.enqueue("note", {"n": n})
        with dies_after(mortal, "claim"):
            drain(mortal, registry=registry)
        mortal.enqueue("note", {"n": n})

    report = reclaim_now(mortal, registry=registry)

    assert report["reclaimed"] == 3
    assert set(report) >= {"reclaimed", "failed", "cancelled"}
    assert drain(mortal, registry=registry).done == 6
    assert len(runs) == 6


def test_functions_that_run_when_it_dies_are_waited_for(mortal: Queue, registry: Registry) -> None:
    ended: list[int] = []
    may_end = threading.Event()

    @registry.task("quick")
    def quick(_payload: dict[str, Any]) -> None:
        pass

    @registry.task("slow")
    def slow(_payload: dict[str, Any]) -> None:
        may_end.wait(10)
        ended.append(1)

    mortal.enqueue("slow", {}, priority=1)
    mortal.enqueue("quick", {})
    threading.Timer(0.5, may_end.set).start()

    with dies_before(mortal, "settle"):
        drain(mortal, registry=registry, concurrency=2)

    assert ended == [1]


def test_no_thread_of_a_dead_executor_stays(mortal: Queue, registry: Registry, runs: list[int]) -> None:
    before = set(threading.enumerate())
    mortal.enqueue("note", {"n": 1})

    with dies_before(mortal, "settle"):
        drain(mortal, registry=registry)
    slots = [one for one in threading.enumerate() if one not in before and one.name.startswith("tidemill")]
    for thread in slots:
        thread.join(10)

    assert runs == [1]
    assert not any(thread.is_alive() for thread in slots)


def test_an_executor_that_does_not_come_to_the_point_is_told_of(mortal: Queue, registry: Registry) -> None:
    with pytest.raises(AssertionError, match=r"^it did not die before 'settle': it sent aggregate"):  # noqa: SIM117
        with dies_before(mortal, "settle"):
            drain(mortal, registry=registry)
    with pytest.raises(AssertionError, match=r"^it did not die after 'claim': it sent no command"):  # noqa: SIM117
        with dies_after(mortal, "claim"):
            pass


def test_only_the_executor_dies_and_once(mortal: Queue, registry: Registry) -> None:
    found: list[int] = []

    @registry.task("count")
    def count(_payload: dict[str, Any]) -> None:
        found.append(len(mortal.database["tasks"].find().to_list()))

    mortal.enqueue("count", {})
    with dies_before(mortal, "settle"):
        drain(mortal, registry=registry)

    assert found == [1]
    assert len(mortal.database["tasks"].find().to_list()) == 1


def test_what_goes_wrong_inside_comes_out_as_it_is(mortal: Queue) -> None:
    with pytest.raises(ZeroDivisionError), dies_before(mortal, "settle"):
        _ = 1 / 0
    mortal.enqueue("note", {})


def test_a_client_that_cannot_die_is_refused_with_what_to_do(db: Database[Any], queue: Queue) -> None:
    for where in (db, queue):
        with pytest.raises(ValueError, match=r"event_listeners=\[Faults\(\)\]"), dies_before(where, "claim"):
            pass


def test_the_time_of_a_reclaim_can_be_given(mortal: Queue, registry: Registry, now: datetime) -> None:
    registry.task("noop")(lambda _payload: None)
    task_id = mortal.enqueue("noop", {})
    with dies_after(mortal, "claim"):
        drain(mortal, registry=registry)

    reclaim_now(mortal.database, now=now, registry=registry)

    task = mortal.get(task_id)
    assert isinstance(task, Task)
    assert task.due_at == now
