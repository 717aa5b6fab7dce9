"""From a call to its conclusion: whatever it does, a plain value that refers to nothing of it."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import sys
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import pytest

from tidemill import Fail, Retry, Snooze, TaskTimeoutError
from tidemill.model import EARLIEST, LATEST
from tidemill.policy.failures import Rules
from tidemill.runner.call import MAX_RESULT_BYTES, run_function
from tidemill.runner.results import Raised, Returned, SnoozeRequested

SECOND = timedelta(seconds=1)


def raising(error: BaseException) -> Callable[[], Any]:
    def function() -> None:
        raise error

    return function


def failure(error: BaseException) -> Any:
    concluded = run_function(raising(error))
    assert isinstance(concluded, Raised)
    return concluded.failure


def test_a_result_that_can_be_stored_is_kept_as_a_copy() -> None:
    result = {"sent": [1, 2]}

    concluded = run_function(lambda: result)
    result["sent"].append(3)

    assert concluded == Returned({"sent": [1, 2]})


class Unprintable:
    def __repr__(self) -> str:
        raise SystemExit("hostile")


def _leave(*_: object) -> Any:
    raise SystemExit("hostile")


Lying = type("Lying", (), {"__class__": property(_leave)})


ODD: dict[str, Any] = {
    "set": {1, 2},
    "object": object(),
    "Decimal": Decimal("1.1"),
    "too large": 2**70,
    "nan": math.nan,
    "too long": "x" * (MAX_RESULT_BYTES + 1),
    "int key": {1: "x"},
    "unprintable": Unprintable(),
    "lying": Lying(),
    "class": Lying,
}


@pytest.mark.parametrize("name", ODD)
def test_work_whose_result_cannot_be_stored_is_done_all_the_same(name: str) -> None:  # F49
    concluded = run_function(lambda: ODD[name])

    assert isinstance(concluded, Returned)
    assert concluded.result["not_stored"] == type(ODD[name]).__name__


class OwnError(BaseException):
    pass


class HostileError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt("hostile")

    __repr__ = __str__


Text: Any = type("Text", (str,), dict.fromkeys(["__len__", "__getitem__", "__format__", "encode"], _leave))


class TextError(Exception):
    def __str__(self) -> str:
        text: str = Text("some text")
        return text


def nested(depth: int) -> BaseException:
    group: Exception = ValueError("innermost")
    for _ in range(depth):
        group = ExceptionGroup("group", [group])
    return group


ERRORS: dict[str, tuple[BaseException, str]] = {
    "exit 0": (SystemExit(0), "SystemExit"),
    "exit text": (SystemExit("bye"), "SystemExit"),
    "interrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator exit": (GeneratorExit(), "GeneratorExit"),
    "cancelled": (asyncio.CancelledError(), "CancelledError"),
    "memory": (MemoryError(), "MemoryError"),
    "recursion": (RecursionError(), "RecursionError"),
    "stop iteration": (StopIteration(1), "StopIteration"),
    "own": (OwnError("x"), "OwnError"),
    "hostile": (HostileError(), "HostileError"),
    "hostile text": (TextError(), "TextError"),
    "group": (ExceptionGroup("many", [ValueError(str(n)) for n in range(500)]), "ExceptionGroup"),
    "nested groups": (nested(500), "ValueError"),
    "timeout of its own": (TaskTimeoutError(), "TaskTimeoutError"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_whatever_is_raised_is_described(name: str) -> None:  # F48, F50
    error, code = ERRORS[name]

    found = failure(error)

    assert found.code == code
    assert found.message.startswith(code)
    assert type(found.message) is str
    assert found.by_function


def test_recursion_without_end_is_described() -> None:  # F48, F51
    def recursing() -> None:
        recursing()

    concluded = run_function(recursing)

    assert isinstance(concluded, Raised)
    assert concluded.failure.code == "RecursionError"
    assert "in recursing" in concluded.failure.message


def test_a_chain_of_causes_that_bites_its_tail_is_described() -> None:  # F50
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert failure(first).message.startswith("ValueError: first")


def test_the_rules_of_the_registration_are_applied() -> None:
    concluded = run_function(raising(KeyError("x")), Rules(fail_on=frozenset({"LookupError"})))

    assert isinstance(concluded, Raised)
    assert not concluded.failure.retryable


def test_what_is_raised_on_purpose_says_what_it_says() -> None:
    assert not failure(Fail("gone")).retryable
    assert failure(Retry("busy", after=SECOND)).retry_after == SECOND


class TextFail(Fail):
    __str__ = TextError.__str__


def test_what_is_said_on_purpose_is_plain_text() -> None:
    said = failure(TextFail(code=Text("http_410")))

    assert (said.code, said.message) == ("http_410", "some text")
    assert (type(said.code), type(said.message)) == (str, str)


HERE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("asked", "until"),
    [
        (90 * SECOND, 90 * SECOND),
        (timedelta.max, LATEST - EARLIEST),
        (datetime(2031, 7, 1, 9, 0, 0, 7, tzinfo=HERE), datetime(2031, 7, 1, 7, 0, 0, 7, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))), LATEST),
        (datetime.min.replace(tzinfo=HERE), EARLIEST),
    ],
)
def test_a_snooze_is_told_in_utc_and_within_the_calendar(asked: datetime | timedelta, until: object) -> None:
    assert run_function(raising(Snooze(asked))) == SnoozeRequested(until)  # type: ignore[arg-type]


RECKONING = ["__add__", "__radd__", "__sub__", "__lt__", "__gt__", "__le__", "__ge__"]
Moment: Any = type("Moment", (datetime,), dict.fromkeys([*RECKONING, "astimezone", "replace"], _leave))
Span: Any = type("Span", (timedelta,), dict.fromkeys(RECKONING, _leave))
Zone: Any = type("Zone", (tzinfo,), {"utcoffset": lambda *_: timedelta(hours=1), "fromutc": _leave, "dst": _leave})


def test_what_a_function_asks_for_is_plain_whatever_it_was() -> None:
    moment = run_function(raising(Snooze(Moment(2031, 7, 1, tzinfo=Zone()))))
    span = run_function(raising(Snooze(Span(seconds=7))))
    after = Retry("busy")
    after.after = Span(seconds=7)

    assert moment == SnoozeRequested(datetime(2031, 6, 30, 23, tzinfo=UTC))
    assert span == SnoozeRequested(7 * SECOND)
    assert isinstance(moment, SnoozeRequested)
    assert isinstance(span, SnoozeRequested)
    assert (type(moment.until), type(span.until)) == (datetime, timedelta)
    assert type(failure(after).retry_after) is timedelta


class Later(Snooze):
    def __init__(self, until: Callable[[], Any]) -> None:
        self._until = until

    @property
    def until(self) -> Any:  # type: ignore[override]
        return self._until()


@pytest.mark.parametrize("until", [_leave, lambda: 60, lambda: datetime(2031, 7, 1)], ids=["exit", "int", "naive"])  # noqa: DTZ001
def test_a_snooze_until_nonsense_is_a_failure(until: Callable[[], Any]) -> None:
    assert failure(Later(until)).code == "Later"


class Held:
    """Something a function holds, whose end can be seen."""


@pytest.mark.parametrize(
    "ends", [lambda held: held, lambda held: raising(ValueError(held))()], ids=["returns", "raises"]
)
def test_nothing_of_the_function_is_kept(ends: Callable[[Held], Any]) -> None:
    held = Held()
    seen = weakref.ref(held)

    def function() -> Any:
        nonlocal held
        return ends(held)

    concluded = run_function(function)
    del held
    gc.collect()

    assert isinstance(concluded, Returned | Raised)
    assert seen() is None


@pytest.mark.parametrize("end", [lambda: {"a": 1}, raising(ValueError("x")), raising(Snooze(SECOND))])
def test_a_conclusion_can_cross_processes(end: Callable[[], Any]) -> None:
    concluded = run_function(end)

    assert pickle.loads(pickle.dumps(concluded)) == concluded


def test_a_result_or_an_exception_may_be_large_without_end() -> None:  # F51
    assert len(failure(ValueError("first line\n" + "x\n" * 10_000_000)).message) < 2300
    concluded = run_function(lambda: ["x"] * 10_000_000)
    assert isinstance(concluded, Returned)
    assert sys.getsizeof(concluded.result) < 1000
