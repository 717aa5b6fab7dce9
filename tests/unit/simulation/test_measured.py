"""What is counted, on a handful of runs made by hand."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tidemill.model import Lane, Retried, Succeeded
from tidemill.simulation.engine import EPOCH, FAILURE, SimulatedRun, SimulatedTask
from tidemill.simulation.scenarios import Scenario, Starvation, Wave, measure_runs

SMALL = Scenario(slots=2, duration=timedelta(seconds=20), waves=(Wave(at=timedelta(seconds=2), tasks=2),))


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def run(name: str, *, due: float, start: float, lane: Lane = "fresh", retry_at: float | None = None) -> SimulatedRun:
    return SimulatedRun(
        task=SimulatedTask(id=name, due_at=at(due), lane=lane),
        started_at=at(start),
        ended_at=at(start + 1),
        outcome=Succeeded(result=None) if retry_at is None else Retried(failure=FAILURE, next_retry_at=at(retry_at)),
    )


def course(*, last_due: float = 9) -> Starvation:
    runs = [
        run("steady", due=0, start=0),
        run("wave-1", due=2, start=2, retry_at=8),
        run("wave-2", due=2, start=3, retry_at=11),
        run("wave-1", due=8, start=12, lane="retry"),
        run("wave-2", due=11, start=13.5, lane="retry"),
        run("runs at the end", due=18, start=19.5),
        run("waits at the end", due=last_due, start=20.5),
    ]
    return measure_runs(runs, SMALL)


def test_a_retry_is_in_backoff_until_it_is_due_and_due_until_it_starts() -> None:
    first, second = course().intervals

    assert (first.retries_due, first.retries_in_backoff, first.retry_pool) == (1, 1, 2)
    assert (second.retries_due, second.retries_in_backoff, second.retry_pool) == (0, 0, 0)


def test_slots_held_by_retries_are_averaged_over_all_slots_and_the_whole_interval() -> None:
    assert [one.retry_slots for one in course().intervals] == pytest.approx([0, 2 / (2 * 10)])


def test_fresh_runs_count_when_they_end_and_those_that_failed_count_apart() -> None:
    first, second = course().intervals

    assert (first.fresh_per_sec, first.failed_per_sec) == (0.3, 0.2)
    assert (second.fresh_per_sec, second.failed_per_sec) == (0, 0)


def test_fresh_tasks_wait_from_their_due_time_to_their_start() -> None:
    assert [one.fresh_waiting for one in course().intervals] == [1, 1]


@pytest.mark.parametrize(("last_due", "waited"), [(9, True), (9.1, False)])
def test_fresh_work_always_waited_where_it_did_so_for_a_run_before_the_interval_too(
    last_due: float, *, waited: bool
) -> None:
    result = course(last_due=last_due)

    assert [one.fresh_always_waited for one in result.intervals] == [False, waited]
    assert result.least_fresh_per_sec == (0 if waited else None)


def test_the_pool_was_largest_when_the_second_task_had_failed_and_empty_when_its_retry_started() -> None:
    result = course()

    assert (result.retries, result.largest_pool) == (2, 2)
    assert result.pool_empty_after == timedelta(seconds=13.5)


def test_a_wave_belongs_to_the_interval_it_comes_in() -> None:
    assert [one.wave for one in course().intervals] == [2, 0]
