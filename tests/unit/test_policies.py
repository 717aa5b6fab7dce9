"""What people choose about retries and queues: a value that cannot be wrong, or an error that names the field."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from decimal import Decimal
from typing import Any

import pytest

from tests.ids import shown
from tidemill import Backoff, RetryPolicy
from tidemill.model import (
    JITTERS,
    MAX_BACKOFF_SEC,
    MAX_COUNT,
    MAX_FACTOR,
    SELECTIONS,
    STRATEGIES,
    Adaptive,
    Budget,
    Pressure,
    QueueOptions,
)

NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, 10**400, True, "5", None, Decimal(5), 5j, [5]]
NO_WORDS: list[Any] = ["", "moon", "FULL", "Exponential", None, 1, True, ["full"], b"full"]
NO_COUNTS: list[Any] = [0, -1, MAX_COUNT + 1, 10**400, 1.0, True, "3", math.nan]


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Backoff() == Backoff(
        strategy="exponential", base_sec=5, factor=2, max_sec=1800, jitter="full", jitter_factor=0.2
    )
    assert RetryPolicy() == RetryPolicy(max_retries=10, backoff=Backoff())
    assert Adaptive() == Adaptive(scale=10, max_sec=60)
    assert Budget() == Budget(per_minute=100, factor=2)
    assert Pressure() == Pressure(adaptive=None, budget=None)
    assert QueueOptions() == QueueOptions(
        paused=False, selection=None, retry_share=None, max_in_flight_retries=None, pressure=Pressure()
    )


@pytest.mark.parametrize(
    "fields",
    [
        *({"strategy": word} for word in STRATEGIES),
        *({"jitter": word} for word in JITTERS),
        {"base_sec": 5e-324},
        {"base_sec": MAX_BACKOFF_SEC, "max_sec": MAX_BACKOFF_SEC},
        {"base_sec": 1800},
        {"factor": 1},
        {"factor": MAX_FACTOR},
        {"jitter_factor": 5e-324},
        {"jitter_factor": 1},
    ],
    ids=shown,
)
def test_a_backoff_at_the_end_of_its_ranges_can_be_built(fields: dict[str, Any]) -> None:
    assert Backoff(**fields) != Backoff() or fields in ({"strategy": "exponential"}, {"jitter": "full"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("strategy", value) for value in NO_WORDS),
        *(("jitter", value) for value in NO_WORDS),
        *(("base_sec", value) for value in [*NO_NUMBERS, 0, -1, -0.0, 1800.1]),
        *(("factor", value) for value in [*NO_NUMBERS, 0, -2, 0.99, MAX_FACTOR + 1]),
        *(("max_sec", value) for value in [*NO_NUMBERS, 0, -1, 4.99, MAX_BACKOFF_SEC + 1]),
        *(("jitter_factor", value) for value in [*NO_NUMBERS, 0, -0.1, 1.01]),
    ],
    ids=shown,
)
def test_an_impossible_backoff_names_the_field(field: str, value: Any) -> None:
    named = "max_sec" if value == 1800.1 else field  # a base above the cap: the cap is what is told

    with pytest.raises(ValueError, match=f"^{named} must be "):
        Backoff(**{field: value})


@pytest.mark.parametrize("retries", [-1, 1001, True, 1.0, "3", None, 10**30, math.nan])
def test_an_impossible_number_of_retries_names_the_field(retries: Any) -> None:
    with pytest.raises(ValueError, match=r"^max_retries must be a whole number from 0 to 1000$"):
        RetryPolicy(max_retries=retries)


@pytest.mark.parametrize("retries", [0, 1000])
def test_none_and_a_thousand_retries_can_be_chosen(retries: int) -> None:
    assert RetryPolicy(max_retries=retries).max_retries == retries


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (Adaptive, "scale", [*NO_COUNTS, None]),
        (Adaptive, "max_sec", [*NO_NUMBERS, 0, -1, MAX_BACKOFF_SEC + 1]),
        (Budget, "per_minute", [*NO_COUNTS, None]),
        (Budget, "factor", [*NO_NUMBERS, 0.99, -2, MAX_FACTOR + 1]),
        (QueueOptions, "paused", [None, 0, 1, "yes"]),
        (QueueOptions, "selection", [word for word in NO_WORDS if word is not None]),
        (QueueOptions, "retry_share", [*(one for one in NO_NUMBERS if one is not None), -0.01, 1.01]),
        (QueueOptions, "max_in_flight_retries", NO_COUNTS[1:]),
    ],
)
def test_an_impossible_choice_of_a_queue_names_the_field(kind: Any, field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{field} must be "):
            kind(**{field: value})


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (RetryPolicy, "backoff"),
        (Pressure, "adaptive"),
        (Pressure, "budget"),
        (QueueOptions, "pressure"),
    ],
)
@pytest.mark.parametrize("value", [{}, {"scale": 10}, "standard", 5, True, RetryPolicy(), Backoff])
def test_a_part_of_another_kind_names_the_field(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be "):
        kind(**{field: value})


@pytest.mark.parametrize(
    "options",
    [
        *({"selection": word} for word in SELECTIONS),
        {"retry_share": 0},
        {"retry_share": 1},
        {"max_in_flight_retries": 0},
        {"max_in_flight_retries": MAX_COUNT},
        {"paused": True},
        {"pressure": Pressure(adaptive=Adaptive(scale=1, max_sec=5e-324), budget=Budget(per_minute=1, factor=1))},
        {"pressure": Pressure(adaptive=Adaptive(scale=MAX_COUNT, max_sec=MAX_BACKOFF_SEC))},
    ],
    ids=shown,
)
def test_a_queue_may_choose_up_to_the_ends_of_the_ranges(options: dict[str, Any]) -> None:
    assert QueueOptions(**options) != QueueOptions()


@pytest.mark.parametrize("value", [Backoff(), RetryPolicy(), Adaptive(), Budget(), Pressure(), QueueOptions()])
def test_what_was_chosen_does_not_change_any_more(value: object) -> None:
    [field, *_] = type(value).__dataclass_fields__  # type: ignore[attr-defined]

    with pytest.raises(FrozenInstanceError):
        setattr(value, field, getattr(value, field))
