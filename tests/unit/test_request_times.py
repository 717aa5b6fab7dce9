"""Times in a request: one instant, whatever machine reads it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from tidemill import InvalidRequestError
from tidemill.requests.tasks import new_task

AN_HOUR_AGO = timezone(timedelta(hours=-1))
OTHER: list[Any] = [
    "20260701", "2026-W27-3", "20260701T090000Z", "2026-07-01 09:00:00Z", "2026-07-01T09:00Z",
    "2026-07-01T09:00:00+0530", "2026-07-01T09:00:00 Z", " 2026-07-01T09:00:00Z", "2026-07-01T09:00:00Z\n",
    "2026-07-01T09:00:00,5Z", "٢٠٢٦-07-01T09:00:00Z", "", "now", "garbage", "2026-07-01T24:00:00Z",
    "2026-07-01T09:00:00.1234567890Z", "\ud83c", "x" * 1_000_000, 1767225600, 1767225600000, 1e9, True,
    b"2026-07-01T09:00:00Z", [], {"$gt": 0},
]  # fmt: skip
NOT_A_TIME = "must be a date and time with an offset, as in 2026-07-01T09:00:00Z"


class OfNoZone(tzinfo):
    """A zone that knows no offset, which makes a datetime a naive one."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def moment(value: Any, *, field: str = "not_before") -> datetime:
    found = getattr(new_task(name="noop", payload={}, **{field: value}), field)
    assert isinstance(found, datetime)
    return found


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone this process believes to be in."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("field", ["not_before", "expires_at"])
@pytest.mark.parametrize(
    ("value", "instant"),
    [
        ("2026-07-01T09:00:00Z", datetime(2026, 7, 1, 9, 0, tzinfo=UTC)),
        ("2026-07-01t09:00:00z", datetime(2026, 7, 1, 9, 0, tzinfo=UTC)),
        ("2026-07-01T09:00:00+05:30", datetime(2026, 7, 1, 3, 30, tzinfo=UTC)),
        ("2026-07-01T09:00:00-00:00", datetime(2026, 7, 1, 9, 0, tzinfo=UTC)),
        ("2026-07-01T23:59:59.999999999-23:59", datetime(2026, 7, 2, 23, 58, 59, 999000, tzinfo=UTC)),
        ("2026-07-01T09:00:00.1Z", datetime(2026, 7, 1, 9, 0, 0, 100000, tzinfo=UTC)),
        ("2026-07-01T09:00:00.123999Z", datetime(2026, 7, 1, 9, 0, 0, 123000, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime(2026, 7, 1, 9, 0, tzinfo=AN_HOUR_AGO), datetime(2026, 7, 1, 10, 0, tzinfo=UTC)),
        (datetime(2026, 7, 1, 9, 0, 0, 123999, tzinfo=UTC), datetime(2026, 7, 1, 9, 0, 0, 123000, tzinfo=UTC)),
    ],
)
def test_a_time_with_an_offset_is_one_instant_in_whole_milliseconds(  # F30, F31
    value: object, instant: datetime, field: str
) -> None:
    found = moment(value, field=field)

    assert found == instant
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, "") for value in OTHER),
        *((value, "; there is no such time") for value in (
            "2026-00-01T00:00:00Z", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-04-31T00:00:00Z",
            "2026-07-01T09:60:00Z", "2026-06-30T23:59:60Z", "0000-01-01T00:00:00Z", "2026-07-01T09:00:00+24:00",
            "2026-07-01T09:00:00+99:99", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
        )),
        ("2026-07-01T09:00:00", "; this one has no offset, end it with Z or an offset like +02:00"),
        ("2026-07-01", "; this is a date without a time"), (date(2026, 7, 1), "; this is a date without a time"),
        (timedelta(hours=1), "; this is a duration, for which there is the delay"),
        *((value, "; this datetime has no time zone, give it one: datetime(..., tzinfo=UTC)") for value in (
            datetime(2026, 7, 1), datetime(2026, 7, 1, tzinfo=OfNoZone()),  # noqa: DTZ001
        )),
        *((value, "; this one is beyond the calendar in UTC") for value in (
            datetime.max.replace(tzinfo=AN_HOUR_AGO), datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        )),
    ],
)  # fmt: skip
def test_nothing_else_is_a_time_and_the_answer_says_what_is_wrong_with_it(value: object, reason: str) -> None:  # F30
    with pytest.raises(InvalidRequestError) as caught:
        moment(value)

    assert [(one.field, one.message) for one in caught.value.problems] == [("not_before", NOT_A_TIME + reason)]


def test_defaults_are_not_made_when_the_package_is_imported() -> None:  # F34
    early = new_task(name="noop", payload={})

    assert (early.not_before, early.expires_at) == (None, None)


def test_the_zone_of_the_environment_at_import_changes_nothing() -> None:  # F30
    code = """
from tidemill.requests.tasks import new_task
print(new_task(name="noop", payload={}, not_before="2026-07-01T09:00:00+05:30").not_before)"""

    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout.strip() == "2026-07-01 03:30:00+00:00"
