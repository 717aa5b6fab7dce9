"""Whatever a function does becomes an outcome, and the other tasks are run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tests.unit.make import eventually
from tidemill import Retry, TaskTimeoutError
from tidemill.runner.thread_pool import ThreadPool

Function = Callable[[dict[str, Any], Any], Any]


class _Exotic(BaseException):
    pass


class _Unprintable(Exception):  # noqa: N818 - a user's class
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _Blocking(Exception):  # noqa: N818 - a user's class
    def __str__(self) -> str:
        _UNTIL.wait(60)
        return "at last"


_UNTIL = threading.Event()


class _Demanding(Exception):  # noqa: N818 - a user's class
    def __init__(self, one: object, two: object) -> None:
        super().__init__(one, two)


def _raise(error: BaseException) -> Function:
    def function(_payload: dict[str, Any], _ctx: Any) -> None:
        raise error

    return function


def _of_itself() -> BaseException:
    error = ValueError("of itself")
    error.args = (error,)
    return error


def _in_a_circle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _chained() -> BaseException:
    error = ValueError("innermost")
    for n in range(50):
        outer = ValueError(f"number {n}")
        outer.__cause__ = error
        error = outer
    return error


def _recurse(payload: dict[str, Any], ctx: Any) -> Any:
    return _recurse(payload, ctx)


def _deep(levels: int) -> None:
    if levels:
        _deep(levels - 1)
    raise ValueError("from deep down")


HOSTILE: dict[str, Function] = {
    # F48
    "exit": lambda _payload, _ctx: sys.exit(),
    "exit 0": lambda _payload, _ctx: sys.exit(0),
    "exit 1": lambda _payload, _ctx: sys.exit(1),
    "exit text": lambda _payload, _ctx: sys.exit("bye"),
    "interrupt": _raise(KeyboardInterrupt()),
    "cancelled": _raise(asyncio.CancelledError()),
    "generator exit": _raise(GeneratorExit()),
    "memory": _raise(MemoryError()),
    "base exception": _raise(_Exotic()),
    "recursion": _recurse,
    "stop iteration": _raise(StopIteration()),
    "timeout of its own": _raise(TaskTimeoutError()),
    # F50
    "unprintable": _raise(_Unprintable()),
    "bytes": _raise(ValueError(b"\xff")),
    "surrogate": _raise(ValueError("cut \ud83c and \x00")),
    "of itself": _raise(_of_itself()),
    "demanding": _raise(_Demanding(1, 2)),
    "in a circle": _raise(_in_a_circle()),
    "nameless": _raise(type("", (Exception,), {})()),
    "client": _raise(ValueError(MongoClient("mongodb://user:a%20secret@127.0.0.1:9", connect=False))),
    "group": _raise(ExceptionGroup("many", [ValueError(str(n)) for n in range(500)])),
    # F51
    "huge": _raise(ValueError("first line\n" + "x" * 20_000_000)),
    "many lines": _raise(ValueError("first line\n" + "x\n" * 200_000)),
    "deep": lambda _payload, _ctx: _deep(800),
    "chained": _raise(_chained()),
}


def _as_async(function: Function) -> Function:
    async def later(payload: dict[str, Any], ctx: Any) -> Any:
        await asyncio.sleep(0)
        return function(payload, ctx)

    return later


KINDS: dict[str, Callable[[Function], Function]] = {"sync": lambda function: function, "async": _as_async}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_function_fails_and_the_others_are_run(  # F48, F50, F51
    bench: Bench, now: datetime, name: str, kind: str
) -> None:
    bench.task("hostile")(KINDS[kind](HOSTILE[name]))
    hostile, *good = add(
        bench.tasks, [document(now, name="hostile", priority=1, max_retries=0), *(document(now) for _ in range(3))]
    )

    report = bench.execute(concurrency=1)

    assert (report["failed"], report["done"]) == (1, 3)
    error = stored(bench.tasks, hostile)["error"]
    assert error["code"]
    assert error["message"].startswith((error["code"], "exception without a name"))
    assert len(error["message"]) <= 2200
    assert [stored(bench.tasks, one)["status"] for one in good] == ["done"] * 3


def test_what_is_kept_of_a_huge_failure_has_its_type_its_first_line_and_its_place(bench: Bench, now: datetime) -> None:
    bench.task("hostile")(HOSTILE["many lines"])  # F51
    [task_id] = add(bench.tasks, [document(now, name="hostile", max_retries=0)])

    bench.execute()

    message = stored(bench.tasks, task_id)["error"]["message"]
    assert message.startswith("ValueError: first line\n")
    assert message.endswith(" in function)")


def test_an_exception_that_blocks_when_it_is_looked_at_holds_up_only_its_own_slot(bench: Bench, now: datetime) -> None:
    _UNTIL.clear()
    bench.task("blocking")(_raise(_Blocking()))  # F50
    bench.task("last")(lambda _payload, _ctx: _UNTIL.set())
    blocking, *good = add(
        bench.tasks,
        [
            document(now, name="blocking", priority=1, max_retries=0),
            *(document(now) for _ in range(20)),
            document(now, name="last", priority=-1),
        ],
    )

    report = bench.execute(concurrency=2)

    assert (report["failed"], report["done"]) == (1, 21)
    assert [stored(bench.tasks, one)["status"] for one in good] == ["done"] * 21
    assert stored(bench.tasks, blocking)["error"]["message"].startswith("_Blocking: at last")


_ITSELF: dict[str, Any] = {}
_ITSELF["itself"] = _ITSELF


def _numbers() -> Iterator[int]:
    yield 1


async def _counts() -> AsyncIterator[int]:
    yield 1


class _Array:
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")


UNSTORABLE: dict[str, Callable[[], Any]] = {
    "set": lambda: {1, 2},
    "object": object,
    "Decimal": lambda: Decimal("1.1"),
    "date": lambda: date(2026, 1, 1),
    "int": lambda: 2**70,
    "dict": lambda: {1: "int key"},
    "float": lambda: float("nan"),
    "str": lambda: "x" * 20_000_000,
    "dict of itself": lambda: _ITSELF,
    "surrogate": lambda: "cut \ud83c",
    "array": _Array,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_result_that_cannot_be_stored_is_described_and_the_work_stays_done(  # F49
    bench: Bench, now: datetime, name: str, kind: str
) -> None:
    effects: list[str] = []

    def works(_payload: dict[str, Any], _ctx: Any) -> Any:
        effects.append("worked")
        return UNSTORABLE[name]()

    bench.task("odd")(KINDS[kind](works))
    [task_id] = add(bench.tasks, [document(now, name="odd")])

    bench.execute()
    bench.clock.move(timedelta(days=1))
    bench.execute()

    found = stored(bench.tasks, task_id)
    assert (found["status"], effects) == ("done", ["worked"])
    assert set(found["result"]) == {"not_stored", "reason"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("returned", [_numbers, _counts, lambda: Retry("later"), lambda: _numbers])
def test_a_function_that_returns_before_its_body_has_run_has_failed(  # N20, N21
    bench: Bench, now: datetime, returned: Callable[[], Any], kind: str
) -> None:
    bench.task("odd")(KINDS[kind](lambda _payload, _ctx: returned()))
    [task_id] = add(bench.tasks, [document(now, name="odd")])

    bench.execute()

    found = stored(bench.tasks, task_id)
    assert (found["status"], found["reason"], found["error"]["code"]) == ("failed", "not_retryable", "not_run")


def test_bytes_are_a_result_like_any_other(bench: Bench, now: datetime) -> None:  # F49
    bench.task("bytes")(lambda _payload, _ctx: b"\xff")
    [task_id] = add(bench.tasks, [document(now, name="bytes")])

    bench.execute()

    assert stored(bench.tasks, task_id)["result"] == b"\xff"


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


def test_a_task_whose_function_still_runs_is_not_run_again_by_the_same_process(bench: Bench, now: datetime) -> None:
    leap = _Leap()  # F52
    release, runs = threading.Event(), list[str]()

    def stuck(_payload: dict[str, Any], _ctx: Any) -> None:
        runs.append("begun")
        while not release.is_set():
            try:
                leap.begun.set()
                release.wait(60)
            except TaskTimeoutError:
                runs.append("interrupted")
        runs.append("ended")

    bench.task("stuck", retry="aggressive")(stuck)
    [task_id] = add(bench.tasks, [document(now, name="stuck")])
    first = bench.execute(remaining=timedelta(seconds=300), monotonic=leap)
    bench.clock.move(timedelta(hours=1))

    second = bench.execute()
    release.set()

    assert (first["timed_out"], first["leftovers"]) == (1, 1)
    assert (second["done"], second["retried"], runs.count("begun")) == (0, 0, 1)
    assert eventually(lambda: task_id not in ThreadPool(1).abandoned_task_ids())
    third = bench.execute()
    assert (third["done"], runs.count("begun")) == (1, 2)
    assert stored(bench.tasks, task_id)["status"] == "done"


def test_a_left_over_thread_of_a_function_that_returned_changes_nothing(bench: Bench, now: datetime) -> None:
    def starts_more(_payload: dict[str, Any], _ctx: Any) -> str:
        threading.Thread(target=time.sleep, args=(0.3,), daemon=True).start()
        return "returned"

    bench.task("starts")(starts_more)
    [task_id] = add(bench.tasks, [document(now, name="starts")])

    assert bench.execute()["leftovers"] == 0
    assert stored(bench.tasks, task_id)["result"] == "returned"
