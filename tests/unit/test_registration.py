"""The options of a registration: what they may be, and how it is told that they cannot."""

from __future__ import annotations

import math
import types
from datetime import timedelta
from typing import Any

import pytest

from tests.ids import shown
from tidemill import PRESETS, Backoff, Fail, Retry, RetryPolicy, Snooze, TaskTimeoutError
from tidemill.errors import RegistrationError
from tidemill.policy.failures import COMMON, Rules
from tidemill.registry import Registry, TaskType

EXPECTED_PRESETS = "default, standard, conservative, aggressive, one_shot, quadrupling, patient"
NO_KINDS = "must hold exception classes, or their names without the module"


class UnaskedError(TypeError):
    """A class of an exception for the tests."""


def noop(_: dict[str, Any]) -> None:
    """Does nothing."""


def registered(**options: Any) -> TaskType:
    registry = Registry()
    registry.task("noop", **options)(noop)
    [found] = registry
    return found


def refused(**options: Any) -> str:
    registry = Registry()
    with pytest.raises(RegistrationError) as caught:
        registry.task("noop", **options)(noop)
    assert len(registry) == 0
    return str(caught.value)


def test_without_options_everything_is_left_to_the_deployment() -> None:
    found = registered()

    assert (found.timeout, found.retry, found.rules) == (None, None, COMMON)
    assert (found.http, found.isolate) == (False, False)


@pytest.mark.parametrize("timeout", [0.1, 1, 30.5, 880])
def test_a_timeout_is_given_in_seconds(timeout: float) -> None:
    assert registered(timeout=timeout).timeout == timedelta(seconds=timeout)


@pytest.mark.parametrize(
    "timeout", [0, -1, 0.05, 881, 10**9, 10**400, math.nan, math.inf, True, "30", timedelta(seconds=30)]
)
def test_a_timeout_that_no_executor_could_keep_is_refused(timeout: object) -> None:  # F04, F47
    assert refused(timeout=timeout) == "the timeout of 'noop' must be 0.1 to 880 seconds"


@pytest.mark.parametrize("name", PRESETS)
def test_a_retry_is_the_name_of_a_preset(name: str) -> None:
    assert registered(retry=name).retry == PRESETS[name]


def test_a_retry_is_a_policy() -> None:
    policy = RetryPolicy(max_retries=1, backoff=Backoff(strategy="fibonacci", jitter="none"))

    assert registered(retry=policy).retry is policy


@pytest.mark.parametrize(
    "retry", [3, 0, True, "", "Conservative", "conservativ", " standard", {"max_retries": 3}, ["standard"], Backoff()]
)
def test_a_retry_that_is_no_policy_is_refused(retry: object) -> None:
    message = refused(retry=retry)

    assert message == f"the retry of 'noop' must be the name of a preset ({EXPECTED_PRESETS}), or a RetryPolicy"


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (ValueError, {ValueError}),
        ("ValueError", {"ValueError"}),
        ("Größe", {"Größe"}),
        (TaskTimeoutError, {TaskTimeoutError}),
        (KeyboardInterrupt, {KeyboardInterrupt}),
        ((), set()),
        ([], set()),
        ([ValueError, "KeyError"], {ValueError, "KeyError"}),
        ((ValueError, ValueError), {ValueError}),
        ({"KeyError", KeyError}, {"KeyError", KeyError}),
        ({"KeyError": 1}.keys(), {"KeyError"}),
    ],
    ids=shown,
)
def test_exceptions_are_listed_by_class_or_by_name_one_or_several(given: Any, kinds: set[Any]) -> None:
    assert registered(fail_on=given).rules == Rules(fail_on=frozenset(kinds))
    assert registered(retry_on=given).rules == Rules(retry_on=frozenset(kinds))


@pytest.mark.parametrize(
    "kinds",
    [
        "", " ", "a b", "requests.ConnectionError", "ValueError, KeyError", "1", "Value-Error", "ValueError\n",
        None, 5, True, int, dict, object, type, noop, ValueError("x"), Exception(), types,
        [None], [5], [""], ["a.b"], [ValueError("x")], [[ValueError]], [ValueError, int], b"ValueError",
        {"Value Error": 1}, ExceptionGroup("x", [ValueError()]),
    ],
    ids=shown,
)  # fmt: skip
@pytest.mark.parametrize("option", ["fail_on", "retry_on"])
def test_what_is_no_exception_is_refused_with_the_name_of_the_option(option: str, kinds: object) -> None:
    assert refused(**{option: kinds}) == f"the {option} of 'noop' {NO_KINDS}"


@pytest.mark.parametrize(
    ("fail_on", "retry_on", "both"),
    [
        (ValueError, ValueError, "ValueError"),
        ("ValueError", ["ValueError"], "ValueError"),
        (ValueError, "ValueError", "ValueError"),
        (["UnaskedError", KeyError], [UnaskedError, OSError], "UnaskedError"),
        ([KeyError, "ValueError"], ["KeyError", ValueError, UnaskedError], "KeyError, ValueError"),
    ],
)
def test_what_cannot_be_both_final_and_tried_again_is_refused(fail_on: Any, retry_on: Any, both: str) -> None:
    message = refused(fail_on=fail_on, retry_on=retry_on)

    assert message == f"{both} cannot be in both fail_on and retry_on of 'noop'"


def test_a_class_and_its_base_may_be_in_either_list() -> None:
    assert registered(fail_on=TypeError, retry_on=UnaskedError).rules == Rules(
        fail_on=frozenset([TypeError]), retry_on=frozenset([UnaskedError])
    )


def test_two_classes_that_are_called_alike_may_be_in_different_lists() -> None:
    of_a_client = type("ConnectionError", (Exception,), {})

    rules = registered(fail_on=ConnectionError, retry_on=of_a_client).rules

    assert rules == Rules(fail_on=frozenset([ConnectionError]), retry_on=frozenset([of_a_client]))


@pytest.mark.parametrize("option", ["http", "isolate"])
@pytest.mark.parametrize("value", ["no", 1, None, 0])
def test_what_is_on_or_off_is_true_or_false(option: str, value: object) -> None:
    assert refused(**{option: value}) == f"the {option} of 'noop' must be True or False"


@pytest.mark.parametrize("option", ["fail_on", "retry_on"])
@pytest.mark.parametrize("kind", [Retry, Fail, Snooze, type("OurFail", (Fail,), {})])
def test_what_decides_for_itself_is_in_no_list(option: str, kind: type[Exception]) -> None:
    assert "cannot hold Retry, Fail or Snooze, which decide for themselves" in refused(**{option: [ValueError, kind]})
