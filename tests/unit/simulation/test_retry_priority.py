"""One worker, six tasks, one of which fails: when its retry starts."""

from __future__ import annotations

from datetime import timedelta

from tidemill.simulation.scenarios import Comparison, Timeline, simulate_retry_priority


def seconds(span: timedelta) -> float:
    return span.total_seconds()


def told(timeline: Timeline) -> list[tuple[float, float, str]]:
    return [
        (seconds(step.starts), seconds(step.ends), step.task + " fails" * step.fails + " retry" * step.is_retry)
        for step in timeline.steps
    ]


def numbers(comparison: Comparison) -> tuple[float, float, float]:
    without, prioritized = comparison.without.retry_starts, comparison.prioritized.retry_starts
    return seconds(without), seconds(prioritized), seconds(comparison.time_saved)


def test_without_priority_the_retry_waits_for_all_that_was_due_before_it() -> None:
    timeline = simulate_retry_priority().waiting.without

    assert timeline.selection == "oldest_first"
    assert told(timeline) == [
        (0, 30, "A-q1 fails"),
        (32, 62, "A-q2"),
        (62, 92, "A-q3"),
        (92, 122, "B-q1"),
        (122, 152, "B-q2"),
        (152, 182, "B-q3"),
        (182, 212, "A-q1 retry"),
    ]


def test_with_priority_the_retry_is_the_next_task_of_a_worker_that_waited() -> None:
    timeline = simulate_retry_priority().waiting.prioritized

    assert timeline.selection == "retries_first"
    assert told(timeline) == [
        (0, 30, "A-q1 fails"),
        (32, 62, "A-q1 retry"),
        (62, 92, "A-q2"),
        (92, 122, "A-q3"),
        (122, 152, "B-q1"),
        (152, 182, "B-q2"),
        (182, 212, "B-q3"),
    ]


def test_priority_saves_150_seconds_on_a_worker_that_waits_out_the_backoff() -> None:
    waiting = simulate_retry_priority().waiting

    assert waiting.waits_out_backoff
    assert numbers(waiting) == (182, 32, 150)


def test_tidemill_runs_the_next_task_during_the_backoff() -> None:
    tidemill = simulate_retry_priority().tidemill

    assert not tidemill.waits_out_backoff
    assert numbers(tidemill) == (180, 60, 120)
    assert told(tidemill.without) == [
        (0, 30, "A-q1 fails"),
        (30, 60, "A-q2"),
        (60, 90, "A-q3"),
        (90, 120, "B-q1"),
        (120, 150, "B-q2"),
        (150, 180, "B-q3"),
        (180, 210, "A-q1 retry"),
    ]
    assert told(tidemill.prioritized) == [
        (0, 30, "A-q1 fails"),
        (30, 60, "A-q2"),
        (60, 90, "A-q1 retry"),
        (90, 120, "A-q3"),
        (120, 150, "B-q1"),
        (150, 180, "B-q2"),
        (180, 210, "B-q3"),
    ]


def test_the_estimate_is_the_run_time_of_the_tasks_that_the_retry_overtook() -> None:
    result = simulate_retry_priority()

    assert (result.waiting.ahead, seconds(result.waiting.estimate)) == (5, 150)
    assert (result.tidemill.ahead, seconds(result.tidemill.estimate)) == (4, 120)
