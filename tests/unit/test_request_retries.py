"""How a task may be asked to be retried: a preset, a policy, or its numbers."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ids import shown
from tests.unit.make import backoffs
from tests.unit.requesting import refused, wanted
from tidemill import PRESETS, Backoff, RetryPolicy
from tidemill.model import JITTERS, STRATEGIES

NUMBER = "Input should be a valid number"
WHOLE = "Input should be a valid integer"
FINITE = "Input should be a finite number"
STRATEGY = "Input should be 'exponential', 'linear', 'fixed' or 'fibonacci'"
JITTER = "Input should be 'none', 'full', 'decorrelated' or 'proportional'"
NO_RETRY = (
    "must be the name of a preset (default, standard, conservative, aggressive, one_shot, quadrupling, patient), "
    "or an object with its numbers"
)
BELOW_BASE = "must not be below base_sec; left out, they are 1800 and 5"
NUMBERS = ["base_sec", "factor", "max_sec", "jitter_factor"]

NO_PRESETS: list[Any] = [[], 3, True, "", "moon", "Standard", " default", b"default", ["default"], Backoff()]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(("retry", value, NO_RETRY) for value in NO_PRESETS),
        *((f"retry.{name}", value, NUMBER) for name in NUMBERS for value in (True, "5", None, [5], 10**400)),
        *((f"retry.{name}", value, FINITE) for name in NUMBERS for value in (math.nan, math.inf, -math.inf)),
        ("retry.base_sec", 0, "Input should be greater than 0"),
        ("retry.base_sec", -1, "Input should be greater than 0"),
        ("retry.base_sec", 10**9, "Input should be less than or equal to 604800"),
        ("retry.factor", 0.99, "Input should be greater than or equal to 1"),
        ("retry.factor", -2, "Input should be greater than or equal to 1"),
        ("retry.factor", 1001, "Input should be less than or equal to 1000"),
        ("retry.max_sec", 0, "Input should be greater than 0"),
        ("retry.max_sec", 10**9, "Input should be less than or equal to 604800"),
        ("retry.max_sec", 4.9, BELOW_BASE),
        ("retry.jitter_factor", 0, "Input should be greater than 0"),
        ("retry.jitter_factor", -0.2, "Input should be greater than 0"),
        ("retry.jitter_factor", 1.01, "Input should be less than or equal to 1"),
        *(("retry.strategy", value, STRATEGY) for value in ("", "moon", "Linear", None, 1, True, ["linear"])),
        *(("retry.jitter", value, JITTER) for value in ("", "moon", "FULL", None, 1, True, ["full"])),
        ("retry.max_retries", -1, "Input should be greater than or equal to 0"),
        ("retry.max_retries", 1001, "Input should be less than or equal to 1000"),
        ("retry.max_retries", True, WHOLE),
        ("retry.max_retries", 3.0, WHOLE),
        ("retry.cap_sec", 5, "there is no such field, did you mean max_sec?"),
    ],
)  # fmt: skip
def test_what_is_no_policy_is_one_error_that_names_the_field(field: str, value: object, message: str) -> None:  # F47
    _, _, option = field.partition(".")

    assert refused(retry={option: value} if option else value) == {field: message}


def test_retry_options_fill_up_from_the_default_policy() -> None:
    options = wanted(retry={"base_sec": 60, "max_retries": 3}).retry

    assert options is not None
    assert options.backoff() == Backoff(base_sec=60, factor=2.0, max_sec=1800)


@pytest.mark.parametrize("options", [{}, {"max_retries": 3}, {"max_retries": None}])
def test_options_that_say_nothing_of_the_wait_leave_it_to_the_registration(options: dict[str, Any]) -> None:
    task = wanted(retry=options)

    assert task.retry is not None
    assert (task.retry.backoff(), task.retries()) == (None, options.get("max_retries"))


NUMBER_FIELDS = st.fixed_dictionaries(
    {},
    optional={name: st.floats() | st.integers() for name in NUMBERS}
    | {"strategy": st.sampled_from([*STRATEGIES, "moon"]), "jitter": st.sampled_from([*JITTERS, "moon"])},
)


@given(NUMBER_FIELDS)
def test_options_are_accepted_if_and_only_if_they_make_a_policy(options: dict[str, Any]) -> None:
    try:
        backoff = Backoff(**options)
    except ValueError:
        assert all(name.startswith("retry.") for name in refused(retry=options))
        return

    accepted = wanted(retry=options).retry
    assert accepted is not None
    assert accepted.backoff() == (backoff if options else None)


@pytest.mark.parametrize(
    "options", [{"base_sec": 5, "max_sec": 1}, {"max_sec": 1}, {"base_sec": 1801}, {"base_sec": 604_800}], ids=shown
)
def test_a_cap_below_the_base_is_one_error_that_names_the_cap(options: dict[str, Any]) -> None:
    assert refused(retry=options) == {"retry.max_sec": BELOW_BASE}


def test_a_base_that_is_wrong_is_not_told_once_more_as_a_cap_below_it() -> None:
    assert list(refused(retry={"base_sec": math.nan, "max_sec": 1})) == ["retry.base_sec"]
    assert list(refused(retry={"base_sec": 10**9})) == ["retry.base_sec"]


def test_everything_wrong_with_a_policy_is_told_in_one_error() -> None:
    wrong = {"strategy": "moon", "base_sec": -1, "factor": 0, "jitter": "moon", "jitter_factor": 2, "max_retries": -1}

    assert set(refused(retry=wrong)) == {f"retry.{name}" for name in wrong}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_or_given_as_its_policy_or_in_its_numbers(name: str) -> None:
    policy = PRESETS[name]
    numbers = {"max_retries": policy.max_retries} | asdict(policy.backoff)

    by_name, by_policy, by_numbers = (wanted(retry=one) for one in (name, policy, numbers))

    assert by_name == by_policy == by_numbers
    assert by_name.retry is not None
    assert (by_name.retries(), by_name.retry.backoff()) == (policy.max_retries, policy.backoff)


@given(backoffs(), st.integers(0, 1000))
def test_whatever_policy_can_be_built_can_be_asked_for(backoff: Backoff, max_retries: int) -> None:
    task = wanted(retry=RetryPolicy(max_retries=max_retries, backoff=backoff))

    assert task.retry is not None
    assert (task.retries(), task.retry.backoff()) == (max_retries, backoff)


@pytest.mark.parametrize(
    ("fields", "retries"),
    [
        ({}, None),
        ({"max_retries": 0}, 0),
        ({"retry": {}}, None),
        ({"retry": {"max_retries": 5}}, 5),
        ({"retry": {"max_retries": 5}, "max_retries": 0}, 0),
        ({"retry": "standard"}, 3),
        ({"retry": "one_shot"}, 0),
        ({"retry": "one_shot", "max_retries": 2}, 2),
        ({"retry": RetryPolicy(max_retries=7)}, 7),
    ],
)
def test_the_nearer_number_of_retries_holds(fields: dict[str, Any], retries: int | None) -> None:
    assert wanted(**fields).retries() == retries
