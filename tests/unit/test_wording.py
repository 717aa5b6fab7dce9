"""Times and spans of time in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.fixtures import T0
from tidemill import text as tidemill_text

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(milliseconds=12), "12ms"),
        (timedelta(seconds=1), "1s"),
        (timedelta(seconds=4.24), "4.2s"),
        (timedelta(seconds=59.9), "59.9s"),
        (timedelta(seconds=59.96), "1m"),
        (timedelta(seconds=303), "5m 3s"),
        (timedelta(minutes=30), "30m"),
        (timedelta(seconds=3599.7), "1h"),
        (2 * HOUR + timedelta(seconds=9), "2h"),
        (51 * HOUR, "2d 3h"),
        (timedelta(days=9000), "9000d"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(length: timedelta, text: str) -> None:
    assert tidemill_text.format_duration(length) == text


def test_times_are_told_in_utc_wherever_they_come_from() -> None:
    elsewhere = datetime(2031, 7, 1, 11, 0, 0, 250_000, tzinfo=timezone(2 * HOUR))

    assert tidemill_text.format_time(elsewhere) == "2031-07-01 09:00:00"
    assert tidemill_text.format_time(elsewhere, timespec="milliseconds") == "2031-07-01 09:00:00.250"
    assert tidemill_text.iso_timestamp(elsewhere) == "2031-07-01T09:00:00.250Z"


@pytest.mark.parametrize(("now", "distance"), [(T0 - HOUR, "in 1h"), (T0 + HOUR, "1h ago"), (T0, "0s ago")])
def test_a_time_says_how_far_away_it_is(now: datetime, distance: str) -> None:
    assert tidemill_text.format_time_and_distance(T0, now=now) == f"2031-07-01 09:00:00 UTC ({distance})"
