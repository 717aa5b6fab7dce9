"""Which exceptions are tried again: by their names, and by what a registration lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from tidemill import Fail, Retry, TaskTimeoutError
from tidemill.policy.failures import NOT_RETRIED, Kind, Rules, classify, is_retried


def a_class(name: str, *bases: type[BaseException]) -> type[BaseException]:
    return type(name, bases or (Exception,), {})


@pytest.mark.parametrize("name", sorted(NOT_RETRIED))
def test_a_class_of_a_telling_name_is_not_retried_nor_are_its_heirs(name: str) -> None:
    kind = a_class(name)

    assert not classify(kind("x")).retryable
    assert not classify(a_class("Mine", kind)("x")).retryable
    assert classify(a_class(f"Not{name}")("x")).retryable


class GatewayError(Exception):
    """Of a client that tasks use."""


class BusyError(GatewayError):
    """Goes away."""


class RefusedError(GatewayError):
    """Does not."""


class NotFoundError(GatewayError):
    """Has a telling name, and here it goes away too."""


class BothError(BusyError, RefusedError):
    """Inherits from two, the first of which is nearer."""


def rules(fail_on: Iterable[Kind] = (), retry_on: Iterable[Kind] = ()) -> Rules:
    return Rules(fail_on=frozenset(fail_on), retry_on=frozenset(retry_on))


@pytest.mark.parametrize(
    ("kind", "fail_on", "retry_on", "retried"),
    [
        (BusyError, [BusyError], [], False),
        (BusyError, ["BusyError"], [], False),
        (BusyError, [GatewayError], [], False),
        (BusyError, ["GatewayError"], [], False),
        (BusyError, [Exception], [], False),
        (BusyError, [RefusedError], [], True),
        (GatewayError, [BusyError, "RefusedError"], [], True),
        (NotFoundError, [], [NotFoundError], True),
        (NotFoundError, [], ["NotFoundError"], True),
        (NotFoundError, ["RefusedError"], ["NotFoundError"], True),
        (SyntaxError, [], ["SyntaxError"], True),
        (IndentationError, [], [SyntaxError], True),
        (IndentationError, [], [IndentationError], True),
        (TabError, [], [IndentationError], True),
        (SyntaxError, [], [IndentationError], False),
        (KeyboardInterrupt, ["BaseException"], [], False),
        (TaskTimeoutError, [TaskTimeoutError], [], False),
        (TaskTimeoutError, ["TaskTimeoutError"], [], False),
        # of several that apply, the nearest
        (BusyError, [GatewayError], [BusyError], True),
        (RefusedError, [GatewayError], [BusyError], False),
        (BusyError, [BusyError], [GatewayError], False),
        (RefusedError, ["BusyError"], ["GatewayError"], True),
        (BothError, [RefusedError], [BusyError], True),
        (BothError, [BusyError], [RefusedError], False),
        (NotFoundError, [], [GatewayError], False),
        (a_class("Lost", NotFoundError), [], [NotFoundError], True),
        (a_class("Lost", NotFoundError), [], ["Lost"], True),
        (a_class("Lost", NotFoundError), ["Lost"], [NotFoundError], False),
        # a name holds for every class so called, a class for itself and its heirs
        (a_class("BusyError"), ["BusyError"], [], False),
        (a_class("BusyError"), [BusyError], [], True),
        (a_class("busyerror"), ["BusyError"], [], True),
    ],
)  # fmt: skip
def test_of_what_a_registration_lists_the_nearest_class_decides(
    kind: type[BaseException], fail_on: list[Kind], retry_on: list[Kind], *, retried: bool
) -> None:
    listed = rules(fail_on, retry_on)

    assert is_retried(kind, listed) == retried
    assert classify(kind("x"), listed).retryable == retried


def test_a_function_that_says_what_it_wants_is_not_overruled_by_a_list() -> None:
    final = rules(fail_on=[Exception, Retry, "Retry"])
    tried = rules(retry_on=[Exception, Fail, "Fail"])

    assert classify(Retry("busy", after=timedelta(seconds=7)), final).retryable
    assert classify(a_class("MyRetry", Retry)("busy"), final).retryable
    assert not classify(Fail("gone"), tried).retryable
    assert not classify(a_class("MyFail", Fail)("gone"), tried).retryable
