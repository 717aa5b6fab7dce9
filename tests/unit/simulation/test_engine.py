"""The virtual clock and its slots."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tidemill.model import Backoff, Failed, Retried, RetryPolicy, Succeeded
from tidemill.simulation.engine import EPOCH, Backlog, Conditions, SimulatedRun, SimulatedTask, simulate

ALWAYS_2_SEC = RetryPolicy(max_retries=2, backoff=Backoff(strategy="fixed", base_sec=2, jitter="none"))


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def task(name: str, *, due: float = 0, **fields: Any) -> SimulatedTask:
    return SimulatedTask(id=name, due_at=at(due), **fields)


def runs(*tasks: SimulatedTask, slots: int = 1, **conditions: Any) -> list[SimulatedRun]:
    under = Conditions(slots=slots, run_time=timedelta(seconds=10), policy=ALWAYS_2_SEC, **conditions)
    return list(simulate(tasks, under, draw=lambda: 0.5))


def starts(of: list[SimulatedRun]) -> list[tuple[str, float]]:
    return [(run.task.id, (run.started_at - EPOCH).total_seconds()) for run in of]


def test_due_tasks_start_by_priority_then_due_time_then_id() -> None:
    backlog = Backlog(
        [task("c"), task("b", due=1), task("d", priority=-1), task("e", due=2, priority=5), task("a", due=1)]
    )

    backlog.advance(at(2))

    assert [one.id for one in backlog.take(("fresh", "retry"), 9)] == ["e", "c", "a", "b", "d"]


def test_a_task_cannot_be_taken_before_it_is_due() -> None:
    backlog = Backlog([task("a", due=5)])

    backlog.advance(at(4.999))
    assert backlog.take(("fresh",), 1) == []
    backlog.advance(at(5))
    assert [one.id for one in backlog.take(("fresh",), 1)] == ["a"]


def test_only_the_lanes_that_are_asked_give_tasks_and_no_more_than_asked() -> None:
    backlog = Backlog([task("a", lane="retry"), task("b"), task("c")])
    backlog.advance(at(0))

    assert [one.id for one in backlog.take(("fresh",), 1)] == ["b"]
    assert [one.id for one in backlog.take(("retry", "fresh"), 5)] == ["a", "c"]


def test_as_many_tasks_run_side_by_side_as_there_are_slots() -> None:
    assert starts(runs(task("a"), task("b"), task("c"), slots=2)) == [("a", 0), ("b", 0), ("c", 10)]


def test_an_idle_worker_starts_a_task_when_it_becomes_due() -> None:
    assert starts(runs(task("a"), task("b", due=25))) == [("a", 0), ("b", 25)]


def test_a_failed_task_is_tried_again_in_the_retry_lane_after_its_backoff_until_it_succeeds() -> None:
    result = runs(task("a", fails=2))

    assert starts(result) == [("a", 0), ("a", 12), ("a", 24)]
    assert [run.task.lane for run in result] == ["fresh", "retry", "retry"]
    assert [type(run.outcome) for run in result] == [Retried, Retried, Succeeded]


def test_a_task_whose_retries_are_exhausted_fails_for_good() -> None:
    result = runs(task("a", fails=9))

    assert [type(run.outcome) for run in result] == [Retried, Retried, Failed]


def test_only_a_worker_that_waits_out_the_backoff_keeps_its_slot_idle() -> None:
    tasks = task("a", fails=1), task("b"), task("c"), task("d")

    waiting = runs(*tasks, slots=2, selection="oldest_first", waits_out_backoff=True)
    going_on = runs(*tasks, slots=2, selection="oldest_first")

    assert starts(waiting) == [("a", 0), ("b", 0), ("c", 10), ("d", 12), ("a", 20)]
    assert starts(going_on) == [("a", 0), ("b", 0), ("c", 10), ("d", 10), ("a", 20)]
