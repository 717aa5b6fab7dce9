"""Notes that functions give to their attempts, and where people read them."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tidemill import Fail, Retry, Snooze, TaskContext


def read_notes(bench: Bench, task_id: Any) -> list[tuple[str, str]]:
    """The status and the note of each line of the execution log."""
    return [(line["status"], line["note"]) for line in stored(bench.tasks, task_id)["attempt_log"]]


def run_once(bench: Bench, now: datetime, function: Any, **fields: Any) -> Any:
    """Run *function* once as a task, and return the id of the task."""
    bench.task("noted")(function)
    [task_id] = add(bench.tasks, [document(now, name="noted", **fields)])
    bench.execute()
    return task_id


def test_the_note_of_a_function_is_the_note_of_its_attempt(bench: Bench, now: datetime) -> None:
    # S07
    def function(_: Any, ctx: TaskContext) -> None:
        ctx.note("3 of 7 files sent")

    task_id = run_once(bench, now, function)

    assert read_notes(bench, task_id) == [("succeeded", "3 of 7 files sent")]


def test_many_tasks_that_end_at_once_keep_their_own_notes(bench: Bench, now: datetime) -> None:
    def function(payload: Any, ctx: TaskContext) -> None:
        ctx.note(f"file {payload['n']}")

    bench.task("noted")(function)
    ids = add(bench.tasks, [document(now, name="noted", payload={"n": n}) for n in range(30)])
    bench.execute()

    assert [read_notes(bench, task_id) for task_id in ids] == [[("succeeded", f"file {n}")] for n in range(30)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Retry("busy", code="http_503"), "http_503: busy"),
        (Fail("no such file", code="missing"), "missing: no such file"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_the_note_of_a_failed_attempt_stands_behind_its_error(
    bench: Bench, now: datetime, error: BaseException, reason: str
) -> None:
    def function(_: Any, ctx: TaskContext) -> None:
        ctx.note("2 of 7 files sent")
        raise error

    task_id = run_once(bench, now, function)

    [(status, note)] = read_notes(bench, task_id)
    assert status == "failed"
    assert note.startswith(reason)
    assert note.endswith("; 2 of 7 files sent")
    assert "2 of 7" not in stored(bench.tasks, task_id)["error"]["message"]


def test_the_note_of_an_attempt_that_ran_too_long_is_kept(bench: Bench, now: datetime) -> None:
    async def function(_: Any, ctx: TaskContext) -> None:
        ctx.note("waiting for the receiver")
        await asyncio.sleep(60)

    task_id = run_once(bench, now, function, timeout_sec=0.2)

    assert read_notes(bench, task_id) == [("timed_out", "it ran longer than 0.2 s; waiting for the receiver")]


def test_each_attempt_has_its_own_note(bench: Bench, now: datetime) -> None:
    def function(_: Any, ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.note("tried the first host")
            raise Retry("busy", code="busy", after=timedelta(0))

    task_id = run_once(bench, now, function)

    assert read_notes(bench, task_id) == [("failed", "busy; tried the first host"), ("succeeded", "")]


def test_the_last_note_counts_and_any_value_is_written_as_text(bench: Bench, now: datetime) -> None:
    def function(_: Any, ctx: TaskContext) -> None:
        ctx.note("first")
        ctx.note(7)

    assert read_notes(bench, run_once(bench, now, function)) == [("succeeded", "7")]


def test_a_note_is_bounded_and_can_be_stored_whatever_it_holds(bench: Bench, now: datetime) -> None:
    class Text(str):
        """Text with code of its own."""

        def __str__(self) -> str:
            return self

        __slots__ = ()

    def function(_: Any, ctx: TaskContext) -> None:
        ctx.note(Text("\x00\ud800\x1b[31m" + "x" * 1_000_000 + "end"))

    [(status, note)] = read_notes(bench, run_once(bench, now, function))

    assert status == "succeeded"
    assert len(note) <= 200
    assert note.startswith("\\x00\\ud800\x1b[31mxxx")
    assert "xxx ... xxx" in note


def test_an_attempt_that_does_not_count_leaves_no_note(bench: Bench, now: datetime) -> None:
    def function(_: Any, ctx: TaskContext) -> None:
        ctx.note("not yet")
        raise Snooze(timedelta(hours=1))

    assert read_notes(bench, run_once(bench, now, function)) == []


def test_a_note_that_comes_after_the_end_of_its_attempt_changes_nothing(bench: Bench, now: datetime) -> None:
    contexts: list[TaskContext] = []

    def function(_: Any, ctx: TaskContext) -> None:
        contexts.append(ctx)
        ctx.note("in time")

    task_id = run_once(bench, now, function)
    contexts[0].note("too late")
    bench.execute()

    assert read_notes(bench, task_id) == [("succeeded", "in time")]
