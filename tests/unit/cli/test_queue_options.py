"""`tidemill queue set`: what its options make of what a queue had chosen, and in words."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.cli.queue_options import changed, choices, in_words
from tidemill.errors import InvalidRequestError
from tidemill.policies import Adaptive, Budget, Pressure, QueueOptions

ALL = QueueOptions(
    paused=True,
    selection="oldest_first",
    retry_share=0.5,
    max_in_flight_retries=7,
    pressure=Pressure(adaptive=Adaptive(scale=3, max_sec=9), budget=Budget(per_minute=4, factor=5)),
)


@pytest.mark.parametrize("options", [QueueOptions(), ALL])
def test_what_is_not_given_stays(options: QueueOptions) -> None:
    assert changed(options, {}) == options


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"selection": "retries_first"}, QueueOptions(selection="retries_first")),
        ({"retry_share": 0.0}, QueueOptions(retry_share=0.0)),
        ({"max_in_flight_retries": 3}, QueueOptions(max_in_flight_retries=3)),
        ({"adaptive": "on"}, QueueOptions(pressure=Pressure(adaptive=Adaptive()))),
        ({"adaptive.scale": 5}, QueueOptions(pressure=Pressure(adaptive=Adaptive(scale=5)))),
        ({"budget": "on", "budget.factor": 3.0}, QueueOptions(pressure=Pressure(budget=Budget(factor=3.0)))),
        ({"budget": "off"}, QueueOptions()),
    ],
)
def test_what_is_given_is_set(given: dict[str, Any], options: QueueOptions) -> None:
    assert changed(QueueOptions(), given) == options


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"selection": "deployment"}, "selection"),
        ({"retry_share": "deployment"}, "retry_share"),
        ({"max_in_flight_retries": "none"}, "max_in_flight_retries"),
    ],
)
def test_a_choice_can_be_taken_back(given: dict[str, Any], field: str) -> None:
    assert getattr(changed(ALL, given), field) is None


def test_switching_on_what_is_on_keeps_its_numbers() -> None:
    after = changed(ALL, {"adaptive": "on", "budget": "on", "budget.per_minute": 8})

    assert after.pressure == Pressure(adaptive=Adaptive(scale=3, max_sec=9), budget=Budget(per_minute=8, factor=5))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"retry_share": 2.0}, "--retry-share: must be a number from 0 to 1"),
        ({"retry_share": float("nan")}, "--retry-share: must be a number from 0 to 1"),
        ({"max_in_flight_retries": 0}, "--max-in-flight-retries: must be a whole number from 1 to 1000000"),
        ({"adaptive.scale": 0}, "--adaptive-scale: must be a whole number from 1 to 1000000"),
        ({"adaptive.max_sec": -1.0}, "--adaptive-cap: must be a number above 0, up to 7 days"),
        ({"budget.per_minute": 0}, "--budget-per-minute: must be a whole number from 1 to 1000000"),
        ({"budget.factor": 0.5}, "--budget-factor: must be a number from 1 to 1000"),
        ({"budget": "off", "budget.factor": 2.0}, "--budget: off does not go with numbers"),
    ],
)
def test_what_is_not_allowed_is_named_by_its_option(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        changed(QueueOptions(), given)

    assert str(refused.value) == sentence


def test_only_choices_are_put_into_words() -> None:
    assert choices(QueueOptions()) == {}
    assert choices(ALL) == {
        "selection": "oldest_first",
        "retry share": "0.5",
        "retries in flight": "at most 7",
        "adaptive back-off": "one more wait per 3 ready tasks, up to 9 s",
        "retry budget": "4 a minute, then waits are 5 times as long",
    }


def test_a_share_of_nothing_is_a_choice() -> None:
    assert choices(QueueOptions(retry_share=0)) == {"retry share": "0"}


def test_in_words_the_rest_is_left_to_the_deployment_or_off() -> None:
    assert in_words(QueueOptions()) == {
        "selection": "the deployment's",
        "retry share": "the deployment's",
        "retries in flight": "any number",
        "adaptive back-off": "off",
        "retry budget": "off",
        "paused": "no",
    }
    assert list(in_words(ALL)) == list(in_words(QueueOptions()))
