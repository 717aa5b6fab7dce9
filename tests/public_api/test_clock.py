"""A clock that tells what the test says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tidemill.testing import ManualClock


def test_it_tells_the_time_it_was_given_in_utc_and_whole_milliseconds() -> None:
    clock = ManualClock(datetime(2031, 7, 1, 11, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=2))))

    assert clock.now() == datetime(2031, 7, 1, 9, 0, 0, 123_000, tzinfo=UTC)
    assert clock.now().tzinfo is UTC


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    start = clock.now()
    while datetime.now(UTC) < start + timedelta(milliseconds=5):
        pass

    assert clock.now() == start
    assert clock.move(timedelta(hours=1)) == clock.now() == start + timedelta(hours=1)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2031, 7, 1))  # noqa: DTZ001 - that is the point
