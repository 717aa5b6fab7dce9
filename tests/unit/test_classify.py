"""What an exception says about the attempt it ended."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import Fail, Retry, TaskTimeoutError
from tidemill.model import Failure
from tidemill.policy.failures import MAX_CODE_CHARS, MAX_MESSAGE_CHARS, Rules, classify, describe, truncate_text


def raised(error: BaseException) -> BaseException:
    """*error* with the traceback of a raise."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def a_class(name: str, *bases: type[BaseException]) -> type[BaseException]:
    return type(name, bases or (Exception,), {})


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"), TypeError("h() missing 1 required keyword-only argument: 'site'"), KeyError("x"),
        SystemExit(0), SystemExit(1), SystemExit("msg"), KeyboardInterrupt(), GeneratorExit(), MemoryError(),
        RecursionError(), asyncio.CancelledError(), a_class("X", BaseException)(), TaskTimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_every_other_exception_is_a_failure_that_is_retried(error: BaseException) -> None:  # F22, F48
    failure = classify(raised(error))

    assert (failure.retryable, failure.by_function, failure.retry_after) == (True, True, None)
    assert failure.code == type(error).__name__
    assert failure.message.startswith(type(error).__name__)


def test_fail_is_final_and_carries_its_code() -> None:
    failure = classify(Fail("no such user", code="gone"))

    assert failure == Failure(message="no such user", code="gone", retryable=False)


def test_retry_carries_its_wait_and_code() -> None:
    failure = classify(Retry("busy", after=timedelta(seconds=7), code="busy"))

    assert failure == Failure(message="busy", code="busy", retry_after=timedelta(seconds=7))


def test_what_is_raised_on_purpose_is_told_in_its_own_words_without_the_place() -> None:
    assert classify(raised(Fail("gone\ud83c" * 1000))).message.startswith("gone\\ud83c")
    assert len(classify(raised(Fail("gone" * 1000))).message) <= MAX_MESSAGE_CHARS
    assert classify(raised(Retry())).message.startswith("Retry (test_classify.py:")


@pytest.mark.parametrize("after", [timedelta(seconds=-1), timedelta(hours=24, microseconds=1)])
def test_a_wait_beyond_a_day_or_below_zero_cannot_be_asked_for(after: timedelta) -> None:
    with pytest.raises(ValueError, match="between zero and 24 hours"):
        Retry(after=after)


@pytest.mark.parametrize(
    ("code", "stored"), [(404, "404"), (None, "None"), ("", "Retry"), ("c" * 5000, "c"), (object, "<class 'object'>")]
)
def test_a_code_of_any_kind_becomes_text(code: Any, stored: str) -> None:
    failure = classify(Retry("x", code=code))

    assert failure.code.startswith(stored)
    assert 0 < len(failure.code) <= MAX_CODE_CHARS


def test_heirs_that_skip_our_constructor_are_still_what_they_inherit() -> None:
    class Busy(Retry):
        def __init__(self) -> None:
            pass

    class Gone(Fail):
        def __init__(self) -> None:
            pass

    assert classify(Busy()) == Failure(message="Busy", code="Busy")
    assert classify(Gone()) == Failure(message="Gone", code="Gone", retryable=False)


def test_a_wait_that_was_changed_to_nonsense_is_left_to_the_policy() -> None:
    error = Retry("x")
    error.after = 30  # type: ignore[assignment]

    assert classify(error).retry_after is None


def breaks(*_: Any) -> Any:
    raise SystemExit("hostile")


class Text(str):
    __slots__ = ()
    __len__ = breaks
    __getitem__ = breaks


class Meta(type):
    __name__ = property(breaks)


class NamelessError(Exception, metaclass=Meta):
    pass


class HiddenMeta(Meta):
    __mro__ = property(breaks)
    __bases__ = property(breaks)


class HiddenError(SyntaxError, metaclass=HiddenMeta):
    pass


class UncountableMeta(type):
    __hash__ = breaks
    __eq__ = breaks


class UncountableError(Exception, metaclass=UncountableMeta):
    pass


def with_itself() -> BaseException:
    error = ValueError()
    error.args = (error,)
    return error


def with_a_circle_of_causes() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


HOSTILE: dict[str, Callable[[], BaseException]] = {  # F50
    "str raises": type("BadStr", (Exception,), {"__str__": breaks}),
    "repr raises": type("BadRepr", (Exception,), {"__repr__": breaks}),
    "repr of an argument raises": lambda: ValueError(type("Bad", (), {"__repr__": breaks, "__str__": breaks})()),
    "str is no plain text": type("BadText", (Exception,), {"__str__": lambda _: Text("x" * 5000)}),
    "str is no text": type("NoText", (Exception,), {"__str__": lambda _: 7}),
    "its class raises": type("BadClass", (Exception,), {"__class__": property(breaks)}),
    "its traceback raises": type("BadTraceback", (Exception,), {"__traceback__": property(breaks)}),
    "every attribute raises": type("BadAttributes", (Retry,), {"__getattribute__": breaks}),
    "the name of its class raises": NamelessError,
    "the bases of its class raise": HiddenError,
    "its class cannot be looked up": UncountableError,
    "no name": a_class(""),
    "a huge name": a_class("N" * 1_000_000),
    "it holds itself": with_itself,
    "causes in a circle": with_a_circle_of_causes,
    "a group of 500": lambda: ExceptionGroup("many", [ValueError(n) for n in range(500)]),
    "bytes": lambda: ValueError(b"\xff", "\ud83c", "\x00"),
    "about unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_exception_is_told_in_storable_text(kind: str) -> None:
    failure = classify(HOSTILE[kind]())

    assert failure.message
    assert failure.code
    assert len(failure.message) <= MAX_MESSAGE_CHARS
    assert len(failure.code) <= MAX_CODE_CHARS
    bson.encode({"message": failure.message, "code": failure.code})


def test_a_class_that_hides_its_name_and_bases_is_judged_by_what_they_are() -> None:
    failure = classify(HiddenError("x"))

    assert (failure.message, failure.code, failure.retryable) == ("HiddenError: x", "HiddenError", False)
    assert classify(HiddenError("x"), Rules(retry_on=frozenset(["HiddenError"]))).retryable
    assert not classify(NamelessError("x"), Rules(fail_on=frozenset(["NamelessError"]))).retryable


def test_a_text_that_cannot_be_had_is_told_with_the_name() -> None:
    message = describe(type("Mine", (Exception,), {"__str__": breaks})())

    assert message == "Mine: (its text cannot be read: SystemExit)"


def deep(n: int) -> None:
    if n:
        deep(n - 1)
    raise ValueError("first line\n" + "x\n" * 200_000 + "why")


def test_a_huge_message_keeps_type_first_line_end_and_innermost_frame() -> None:  # F51
    with pytest.raises(ValueError, match="first line") as caught:
        deep(100)

    message = describe(caught.value)

    assert len(message) <= MAX_MESSAGE_CHARS
    assert message.startswith("ValueError: first line\n")
    assert "why (test_classify.py:" in message
    assert message.endswith(" in deep)")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda: os.environ["NOT_THERE"], KeyError),
        (lambda: json.loads("{"), json.JSONDecodeError),
        (lambda: bson.encode({"": object()}), bson.errors.InvalidDocument),
        (lambda: Retry("x", after=timedelta(days=2)), ValueError),
        (lambda: eval("1 / 0"), ZeroDivisionError),
    ],
    ids=["frozen", "library", "installed", "tidemill", "generated"],
)
def test_the_place_of_what_a_library_raises_is_that_of_the_call(function: FunctionType, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        function()

    line = function.__code__.co_firstlineno
    assert describe(caught.value).endswith(f" (test_classify.py:{line} in <lambda>)")


def test_where_no_frame_is_the_users_the_place_is_the_innermost() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    trace = caught.value.__traceback__

    message = describe(caught.value.with_traceback(trace and trace.tb_next))

    assert message.endswith(" in raw_decode)")


def test_a_message_of_20_mb_costs_no_time_to_speak_of() -> None:
    error = ValueError("x" * 20_000_000)
    started = time.thread_time()

    assert len(describe(error)) <= MAX_MESSAGE_CHARS
    assert time.thread_time() - started < 0.5


@given(st.text(st.characters(), max_size=400), st.integers(0, 200))
def test_bounded_text_fits_and_can_be_stored(text: str, limit: int) -> None:  # F41
    told = truncate_text(text, limit)

    assert len(told) <= limit
    assert "\x00" not in told
    assert bson.decode(bson.encode({"told": told})) == {"told": told}


@pytest.mark.parametrize("text", ["", "plain", "é😀\u202e中", "two\nlines"])
def test_text_that_fits_and_can_be_stored_is_left_alone(text: str) -> None:
    assert truncate_text(text, 20) == text


def test_text_that_does_not_fit_loses_its_middle() -> None:
    assert truncate_text("begin" + "x" * 100 + "end", 24) == "beginxxxxxxxx ... xxxend"


def test_half_a_pair_and_nul_are_made_visible() -> None:
    assert truncate_text("cut \ud83c\x00", 40) == "cut \\ud83c\\x00"
