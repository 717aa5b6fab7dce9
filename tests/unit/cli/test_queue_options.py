"""`tidemill ops queue set`: which operation its options make, and what a queue has chosen in words."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.admin.api import read_operation
from tidemill.cli.queues import build_changes, describe_options, describe_own_options, name_options_in_errors
from tidemill.errors import InvalidRequestError
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions

NOTHING = QueueOptions()
ALL = QueueOptions(
    paused=True,
    selection="oldest_first",
    retry_share=0.5,
    max_in_flight_retries=7,
    pressure=Pressure(adaptive=Adaptive(scale=3, max_sec=9), budget=Budget(per_minute=4, factor=5)),
)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, {}),
        ({"selection": "retries_first"}, {"selection": "retries_first"}),
        ({"selection": "deployment"}, {"selection": None}),
        ({"retry_share": 0.0}, {"retry_share": 0.0}),
        ({"retry_share": "deployment"}, {"retry_share": None}),
        ({"max_in_flight_retries": 3}, {"max_in_flight_retries": 3}),
        ({"max_in_flight_retries": "none"}, {"max_in_flight_retries": None}),
        ({"adaptive": "on"}, {"adaptive": {}}),
        ({"adaptive": "off"}, {"adaptive": None}),
        ({"adaptive_scale": 5}, {"adaptive": {"scale": 5}}),
        ({"adaptive": "on", "adaptive_max_sec": 9.5}, {"adaptive": {"max_sec": 9.5}}),
        ({"budget": "on", "budget_factor": 3.0}, {"budget": {"factor": 3.0}}),
        ({"budget": "off"}, {"budget": None}),
    ],
)
def test_what_is_given_becomes_the_fields_of_an_operation(given: dict[str, Any], fields: dict[str, Any]) -> None:
    assert build_changes(given) == fields


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"retry_share": 2.0}, "--retry-share: must be a number from 0 to 1"),
        ({"retry_share": float("nan")}, "--retry-share: must be a number from 0 to 1"),
        ({"max_in_flight_retries": 0}, "--max-in-flight-retries: must be a whole number from 1 to 1000000"),
        ({"adaptive_scale": 0}, "--adaptive-scale: must be a whole number from 1 to 1000000"),
        ({"adaptive_max_sec": -1.0}, "--adaptive-cap: must be a number above 0, up to 7 days"),
        ({"budget_per_minute": 0}, "--budget-per-minute: must be a whole number from 1 to 1000000"),
        ({"budget_factor": 0.5}, "--budget-factor: must be a number from 1 to 1000"),
        ({"budget": "off", "budget_factor": 2.0}, "--budget: off does not go with numbers"),
    ],
)
def test_what_is_not_allowed_is_named_by_its_option(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as refused, name_options_in_errors():
        read_operation({"op": "queue.set", "queue": "eu", **build_changes(given)})

    assert str(refused.value) == sentence


def test_only_choices_are_put_into_words() -> None:
    assert describe_own_options(NOTHING) == {}
    assert describe_own_options(ALL) == {
        "selection": "oldest_first",
        "retry share": "0.5",
        "retries in flight": "at most 7",
        "adaptive back-off": "delay x (1 + due tasks / 3), up to 9 s",
        "retry budget": "delay x 5 after 4 retries in a minute",
    }


def test_a_share_of_nothing_is_a_choice() -> None:
    assert describe_own_options(QueueOptions(retry_share=0)) == {"retry share": "0"}


def test_in_words_the_rest_is_left_to_the_deployment_or_off() -> None:
    assert describe_options(NOTHING) == {
        "selection": "the deployment's",
        "retry share": "the deployment's",
        "retries in flight": "any number",
        "adaptive back-off": "off",
        "retry budget": "off",
        "paused": "no",
    }
    assert list(describe_options(ALL)) == list(describe_options(NOTHING))
