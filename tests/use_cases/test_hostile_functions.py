"""Whatever a function does becomes an outcome, and the other tasks are run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.builders import add, document, stored
from tests.use_cases.conftest import Bench
from tidemill import TaskTimeoutError


class _Exotic(BaseException):
    pass


class _Unprintable(Exception):  # noqa: N818 - a user's class
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def _raise(error: BaseException) -> Callable[[dict[str, Any], Any], Any]:
    def function(_payload: dict[str, Any], _ctx: Any) -> None:
        raise error

    return function


def _recurse(payload: dict[str, Any], ctx: Any) -> Any:
    return _recurse(payload, ctx)


HOSTILE = {
    "exit 0": _raise(SystemExit(0)),
    "exit text": _raise(SystemExit("bye")),
    "interrupt": _raise(KeyboardInterrupt()),
    "cancelled": _raise(asyncio.CancelledError()),
    "generator exit": _raise(GeneratorExit()),
    "memory": _raise(MemoryError()),
    "base exception": _raise(_Exotic()),
    "recursion": _recurse,
    "stop iteration": _raise(StopIteration()),
    "timeout of its own": _raise(TaskTimeoutError()),
    "unprintable": _raise(_Unprintable()),
    "huge": _raise(ValueError("first line\n" + "x" * 20_000_000)),
    "surrogate": _raise(ValueError("cut \ud83c and \x00")),
    "group": _raise(ExceptionGroup("many", [ValueError(str(n)) for n in range(500)])),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_function_fails_and_the_others_are_run(bench: Bench, now: datetime, name: str) -> None:
    bench.task("hostile")(HOSTILE[name])
    hostile, *good = add(
        bench.tasks, [document(now, name="hostile", priority=1, max_retries=0), *(document(now) for _ in range(3))]
    )

    report = bench.execute(concurrency=1)

    assert (report["failed"], report["done"]) == (1, 3)
    error = stored(bench.tasks, hostile)["error"]
    assert error["code"]
    assert len(error["message"]) <= 2200
    assert [stored(bench.tasks, one)["status"] for one in good] == ["done"] * 3


_ITSELF: dict[str, Any] = {}
_ITSELF["itself"] = _ITSELF

UNSTORABLE: dict[str, Callable[[], Any]] = {
    "set": lambda: {1, 2},
    "object": object,
    "Decimal": lambda: Decimal("1.1"),
    "date": lambda: date(2026, 1, 1),
    "int": lambda: 2**70,
    "dict": lambda: {1: "int key"},
    "float": lambda: float("nan"),
    "generator": lambda: (n for n in "abc"),
    "str": lambda: "x" * 20_000_000,
    "dict of itself": lambda: _ITSELF,
    "surrogate": lambda: "cut \ud83c",
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_result_that_cannot_be_stored_is_described_and_the_work_stays_done(
    bench: Bench, now: datetime, name: str
) -> None:
    bench.task("odd")(lambda _payload, _ctx: UNSTORABLE[name]())
    [task_id] = add(bench.tasks, [document(now, name="odd")])

    bench.execute()
    bench.clock.move(timedelta(days=1))
    bench.execute()

    found = stored(bench.tasks, task_id)
    assert (found["status"], len(bench.ran)) == ("done", 1)
    assert set(found["result"]) == {"not_stored", "reason"}


class _Leap:
    """A monotonic clock that leaps past every deadline once *begun* is set: no function is late before it ran."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self) -> float:
        return time.monotonic() + (60 if self.begun.is_set() else 0)


def test_a_function_that_runs_too_long_is_timed_out_interrupted_and_its_result_refused(
    bench: Bench, now: datetime
) -> None:
    leap = _Leap()
    interrupted = threading.Event()
    ended = threading.Event()

    def busy(_payload: dict[str, Any], _ctx: Any) -> str:
        try:
            leap.begun.set()
            while True:
                pass
        except TaskTimeoutError:
            interrupted.set()
        ended.set()
        return "late"

    bench.task("busy")(busy)
    late, *good = add(
        bench.tasks,
        [document(now, name="busy", priority=1, max_retries=0), *(document(now, payload={"n": n}) for n in range(3))],
    )

    report = bench.execute(concurrency=1, remaining=timedelta(seconds=300), monotonic=leap)

    assert (report["timed_out"], report["failed"], report["done"], report["lost"]) == (1, 1, 3, 0)
    assert interrupted.wait(10)
    assert ended.wait(10)
    found = stored(bench.tasks, late)
    assert (found["status"], found["error"]["code"], found["result"]) == ("failed", "timeout", None)
    assert found["attempt_log"][0]["status"] == "timed_out"
    assert [stored(bench.tasks, one)["status"] for one in good] == ["done"] * 3


def test_a_function_that_will_not_stop_is_reported_as_left_over(bench: Bench, now: datetime) -> None:
    leap = _Leap()
    release = threading.Event()

    def stuck(_payload: dict[str, Any], _ctx: Any) -> None:
        try:
            leap.begun.set()
            release.wait(60)
        except TaskTimeoutError:
            release.wait(60)

    bench.task("stuck")(stuck)
    add(bench.tasks, [document(now, name="stuck", max_retries=0)])

    report = bench.execute(remaining=timedelta(seconds=300), monotonic=leap)
    release.set()

    assert (report["timed_out"], report["leftovers"]) == (1, 1)


def test_a_left_over_thread_of_a_function_that_returned_changes_nothing(bench: Bench, now: datetime) -> None:
    def starts_more(_payload: dict[str, Any], _ctx: Any) -> str:
        threading.Thread(target=time.sleep, args=(0.3,), daemon=True).start()
        return "returned"

    bench.task("starts")(starts_more)
    [task_id] = add(bench.tasks, [document(now, name="starts")])

    assert bench.execute()["leftovers"] == 0
    assert stored(bench.tasks, task_id)["result"] == "returned"
