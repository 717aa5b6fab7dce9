"""The counts of one execution."""

from __future__ import annotations

import pytest

from tests.fixtures import T0
from tidemill.executor.context import COUNT_NAMES, Report
from tidemill.model import Cancelled, Failed, Failure, Outcome, Retried, Snoozed, Succeeded

BROKE = Failure(message="ValueError: no", code="ValueError")


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Succeeded(result=1), "done"),
        (Retried(failure=BROKE, next_retry_at=T0), "retried"),
        (Failed(failure=BROKE, reason="exhausted"), "failed"),
        (Snoozed(until=T0), "snoozed"),
        (Cancelled(), "cancelled"),
    ],
)
def test_every_outcome_has_a_count(outcome: Outcome, name: str) -> None:
    report = Report()

    report.count_outcome(outcome)
    report.count_outcome(outcome)

    assert report.as_dict() == dict.fromkeys(COUNT_NAMES, 0) | {name: 2}


def test_a_report_has_every_count_zeros_included() -> None:
    assert set(Report().as_dict().values()) == {0}
    assert tuple(Report().as_dict()) == COUNT_NAMES
