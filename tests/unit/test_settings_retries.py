"""``RETRY_POLICY``: how a deployment retries where neither a task nor its registration says."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.make import backoffs
from tidemill import PRESETS, Backoff, RetryPolicy, SettingsError
from tidemill.policy.retry import DEFAULT
from tidemill.settings import from_environment

NO_POLICY = (
    "RETRY_POLICY must be the name of a preset (default, standard, conservative, aggressive, one_shot, quadrupling, "
    "patient), or a JSON object with its numbers"
)
SECRET = "S3cr3t"


def policy(text: str) -> RetryPolicy:
    return from_environment({"RETRY_POLICY": text}).retry


def refused(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        policy(text)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_without_it_the_default_holds() -> None:
    assert from_environment({}).retry == DEFAULT


@pytest.mark.parametrize("name", PRESETS)
def test_it_may_name_a_preset(name: str) -> None:
    assert policy(name) == policy(f" {name}\n") == PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_it_may_hold_the_numbers_of_a_policy(name: str) -> None:
    preset = PRESETS[name]

    assert policy(json.dumps({"max_retries": preset.max_retries} | asdict(preset.backoff))) == preset


@given(backoffs(), st.integers(0, 1000))
def test_it_may_hold_any_policy_there_can_be(backoff: Backoff, max_retries: int) -> None:
    text = json.dumps({"max_retries": max_retries} | asdict(backoff))

    assert policy(text) == RetryPolicy(max_retries=max_retries, backoff=backoff)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", DEFAULT),
        ('{"max_retries": 0}', RetryPolicy(max_retries=0)),
        ('{"max_retries": null}', DEFAULT),
        ('\t{ "base_sec": 1 }\n', RetryPolicy(backoff=Backoff(base_sec=1))),
        ('{"strategy": "linear", "jitter": "none"}', RetryPolicy(backoff=Backoff(strategy="linear", jitter="none"))),
    ],
)
def test_what_is_left_out_is_as_in_the_default(text: str, expected: RetryPolicy) -> None:
    assert policy(text) == expected


@pytest.mark.parametrize(
    "text", ["Standard", "standard,", "moon", "3", "null", "true", "[]", '"standard"', "[{}]", "}"]
)
def test_what_is_neither_is_told_what_there_is(text: str) -> None:
    assert refused(text) == NO_POLICY


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("strategy", [SECRET, "", None, 1, True, "Linear"]),
        ("base_sec", [0, -1, float("nan"), float("inf"), SECRET, "5", None, True, [1], 10**9, 10**400]),
        ("factor", [0, 0.99, -2, float("nan"), float("-inf"), SECRET, None, True, 1001]),
        ("max_sec", [0, -1, 4.9, float("nan"), float("inf"), SECRET, None, True, 10**9]),
        ("jitter", [SECRET, "", None, 1, True, "FULL"]),
        ("jitter_factor", [0, -0.2, 1.1, float("nan"), SECRET, None, True]),
        ("max_retries", [-1, 1001, 1.0, float("nan"), SECRET, True, 10**30]),
        ("cap_sec", [5]),
    ],
)
def test_a_number_that_cannot_be_is_told_by_its_name_and_never_shown(field: str, values: list[Any]) -> None:  # F80
    for value in values:
        message = refused(json.dumps({field: value}))

        assert message.startswith(f"RETRY_POLICY {field} ")
        assert message.count("RETRY_POLICY") == 1
        assert SECRET not in message


def test_everything_wrong_with_it_is_told_at_once() -> None:
    message = refused('{"base_sec": -1, "jitter": "moon", "max_retries": -1}')

    assert message == (
        "RETRY_POLICY max_retries Input should be greater than or equal to 0; base_sec Input should be greater than 0; "
        "jitter Input should be 'none', 'full', 'decorrelated' or 'proportional'"
    )


@pytest.mark.parametrize(
    "text",
    ["{", "{]", f"{{{SECRET}", f'{{"{SECRET}', '{"a": 1}}', "{'base_sec': 1}", "{" * 10_000, "{\udcff}", "{\x00}"],
)
def test_json_that_cannot_be_read_is_told_without_what_it_says(text: str) -> None:
    message = refused(text)

    assert message.startswith("RETRY_POLICY ")
    assert SECRET not in message
    assert len(message) < 300


def test_a_name_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="RETRY_POLICY has a name twice"):
        from_environment({"RETRY_POLICY": '{"max_retries": 3, "max_retries": 5}'})
