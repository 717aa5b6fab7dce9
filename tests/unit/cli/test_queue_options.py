"""`tidemill ops queue set`: which operation its options make, and what a queue has chosen in words."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.cli.queues import build_changes
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
