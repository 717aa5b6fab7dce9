"""An error tells its causes, in its message and in its fingerprint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.make import a_context
from tidemill import Fail, Retry, Snooze
from tidemill.model import Failure
from tidemill.policy.failures import MAX_MESSAGE_CHARS, Rules, classify
from tidemill.policy.fingerprint import fingerprint
from tidemill.registry import Registry
from tidemill.runner.call import run_function, run_to_end
from tidemill.runner.results import Raised, SnoozeRequested


def failing(function: Callable[..., Any]) -> Failure:
    """Return the failure of *function*, called as an executor calls it."""
    registry = Registry()
    registry.task("send")(function)
    [task_type] = registry
    result = run_function(lambda: run_to_end(lambda: task_type.call({}, a_context())), task_type.rules)
    assert isinstance(result, Raised)
    return result.failure


def group_of(failure: Failure) -> str:
    return fingerprint(name="send", code=failure.code, message=failure.message)


def connect(reason: str) -> None:
    raise ConnectionError(reason)


def from_(reason: str) -> Callable[[Any], None]:
    def send(_: Any) -> None:
        try:
            connect(reason)
        except ConnectionError as error:
            raise RuntimeError("no rate") from error

    return send


def in_a_task_group(*reasons: str) -> Callable[[Any], Any]:
    async def fail(reason: str) -> None:
        connect(reason)

    async def send(_: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for reason in reasons:
                group.create_task(fail(reason))

    return send


def test_a_cause_that_was_given_is_told_with_its_place() -> None:  # N56
    failure = failing(from_("refused"))

    assert failure.code == "RuntimeError"
    assert failure.message.startswith("RuntimeError: no rate (test_causes.py:")
    assert "in send); caused by ConnectionError: refused (test_causes.py:" in failure.message
    assert failure.message.endswith("in connect)")


def test_an_error_while_another_was_handled_tells_both() -> None:
    def send(_: Any) -> None:
        try:
            connect("refused")
        except ConnectionError:
            raise KeyError("host")  # noqa: B904 - as users write it

    assert "KeyError: 'host' (" in failing(send).message
    assert "; caused by ConnectionError: refused (" in failing(send).message


def test_a_cause_that_was_suppressed_is_not_told() -> None:
    def send(_: Any) -> None:
        try:
            connect("refused")
        except ConnectionError:
            raise KeyError("host") from None

    assert "caused by" not in failing(send).message


def test_the_only_error_of_a_task_group_stands_for_the_group() -> None:  # N56
    failure = failing(in_a_task_group("refused"))

    assert failure.code == "ConnectionError"
    assert failure.message.startswith("ConnectionError: refused (test_causes.py:")


def test_the_errors_of_a_task_group_are_told_each_once_in_one_order() -> None:  # N56
    failure = failing(in_a_task_group("refused", "reset", "refused"))

    assert failure.code == "ExceptionGroup"
    assert failure.message.startswith("ExceptionGroup: unhandled errors in a TaskGroup (3 sub-exceptions) (test_causes")
    causes = [cause.partition(" (")[0] for cause in failure.message.split("; caused by ")[1:]]
    assert causes == ["ConnectionError: refused", "ConnectionError: reset"]
    assert group_of(failure) == group_of(failing(in_a_task_group("refused", "refused", "reset")))


def test_many_causes_are_counted() -> None:
    error = ExceptionGroup("many", [ValueError("a"), KeyError("b"), OSError("c"), TypeError("d"), EOFError("e")])

    message = classify(error).message

    assert message.count("; caused by ") == 4
    assert "; caused by 2 more; caused by " in message


def test_of_a_long_chain_the_nearest_and_the_first_cause_are_told() -> None:
    error: BaseException = ValueError("root")
    for kind in (KeyError, OSError, EOFError, TypeError, KeyError, RuntimeError):
        outer = kind(f"in {kind.__name__}")
        outer.__cause__, error = error, outer

    causes = [cause.partition(" (")[0] for cause in classify(error).message.split("; caused by ")]

    assert causes[:3] == ["RuntimeError: in RuntimeError", "KeyError: 'in KeyError'", "TypeError: in TypeError"]
    assert causes[3:] == ["2 more", "ValueError: root"]


def test_a_timeout_of_asyncio_tells_no_cancellation() -> None:
    async def send(_: Any) -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)

    assert "CancelledError" not in failing(send).message


def test_notes_are_told() -> None:  # N56
    def send(_: Any) -> None:
        error = ValueError("bad row")
        error.add_note("in line 7")
        error.add_note("of july.csv")
        raise error

    assert failing(send).message.startswith("ValueError: bad row; in line 7; of july.csv (test_causes.py:")


@pytest.mark.parametrize("made", [from_, in_a_task_group, lambda reason: in_a_task_group(reason, "else")])
def test_two_different_causes_are_two_groups(made: Callable[[str], Callable[[Any], Any]]) -> None:  # N56
    refused, reset = failing(made("refused")), failing(made("reset"))

    assert group_of(refused) == group_of(failing(made("refused")))
    assert group_of(refused) != group_of(reset)


def test_a_long_error_does_not_hide_its_cause() -> None:
    def send(reason: str) -> Failure:
        error = RuntimeError("no rate " * 1000)
        error.__cause__ = ConnectionError(reason)
        return classify(error)

    refused, reset = send("refused"), send("reset")

    assert len(refused.message) <= MAX_MESSAGE_CHARS
    assert refused.message.endswith("; caused by ConnectionError: refused")
    assert group_of(refused) != group_of(reset)


def test_a_failure_on_purpose_tells_the_cause_it_was_given_and_no_other() -> None:
    def given(_: Any) -> None:
        try:
            connect("refused")
        except ConnectionError as error:
            raise Fail("the bank is closed", code="closed") from error

    def handled(_: Any) -> None:
        try:
            connect("refused")
        except ConnectionError:
            raise Fail("the bank is closed", code="closed")  # noqa: B904 - as users write it

    assert failing(given).message.startswith("the bank is closed; caused by ConnectionError: refused (")
    assert failing(handled).message == "the bank is closed"


@pytest.mark.parametrize(
    ("members", "retryable", "after"),
    [
        ([KeyError("a"), SyntaxError("b")], True, None),
        ([SyntaxError("a"), SyntaxError("b")], False, None),
        ([Fail("a"), KeyError("b")], False, None),
        ([Retry("a", after=timedelta(seconds=7)), Retry("b", after=timedelta(seconds=9))], True, timedelta(seconds=9)),
        ([ExceptionGroup("inner", [Fail("a")]), ExceptionGroup("inner", [Fail("b")])], False, None),
        ([ExceptionGroup("inner", [Fail("a"), KeyError("b")]), KeyError("c")], False, None),
        ([ExceptionGroup("inner", [SyntaxError("a"), KeyError("b")]), SyntaxError("c")], True, None),
    ],
)
def test_the_members_of_a_group_decide_about_a_retry(
    members: list[Exception], *, retryable: bool, after: timedelta | None
) -> None:
    failure = classify(ExceptionGroup("both", members))

    assert (failure.retryable, failure.retry_after) == (retryable, after)


def test_groups_in_groups_are_described_however_deep() -> None:
    error: Exception = ValueError("innermost")
    for _ in range(2_000):
        error = ExceptionGroup("group", [error, KeyError("beside")])

    failure = classify(error)

    assert failure.message.startswith("ExceptionGroup: group")
    assert "caused by KeyError: 'beside'" in failure.message


def test_a_rule_about_groups_decides_before_the_members() -> None:
    group = ExceptionGroup("both", [KeyError("a"), KeyError("b")])

    assert not classify(group, Rules(fail_on=frozenset({ExceptionGroup}))).retryable
    assert not classify(group, Rules(fail_on=frozenset({KeyError}))).retryable
    assert classify(group, Rules(fail_on=frozenset({KeyError}), retry_on=frozenset({"ExceptionGroup"}))).retryable


@pytest.mark.parametrize(
    ("raised", "decided"),
    [
        (Fail("gone", code="gone"), Failure(message="gone", code="gone", retryable=False)),
        (Retry("busy", after=timedelta(1)), Failure(message="busy", code="retry", retry_after=timedelta(1))),
    ],
)
def test_what_a_task_of_a_group_decides_alone_is_decided(raised: Exception, decided: Failure) -> None:
    async def decide() -> None:
        raise raised

    async def send(_: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(decide())

    assert failing(send) == decided


def test_a_snooze_in_a_task_group_is_a_snooze() -> None:
    def send() -> None:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [Snooze(timedelta(seconds=5))])])

    assert run_function(send) == SnoozeRequested(timedelta(seconds=5))


class HostileGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise SystemExit("hostile")


def test_a_group_that_cannot_be_read_is_described_all_the_same() -> None:
    failure = classify(HostileGroup("both", [KeyError("a")]))

    assert failure.message == "the exception raised another one when its text was read"
    assert failure.code == "HostileGroup"


def test_causes_that_form_a_circle_end() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first

    assert classify(first).message == "ValueError: first; caused by KeyError: 'second'"
