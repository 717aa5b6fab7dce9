"""How commands speak: widths, times, spans, and text that anybody may have written."""

from __future__ import annotations

import io
import sys
from datetime import datetime, timedelta, timezone

import pytest

from tests.conftest import T0
from tidemill.cli import tables

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
    assert tables.span(length) == text


def test_times_are_told_in_utc_wherever_they_come_from() -> None:
    elsewhere = datetime(2031, 7, 1, 11, 0, 0, 250_000, tzinfo=timezone(2 * HOUR))

    assert tables.moment(elsewhere) == "2031-07-01 09:00:00"
    assert tables.moment(elsewhere, timespec="milliseconds") == "2031-07-01 09:00:00.250"
    assert tables.stamp(elsewhere) == "2031-07-01T09:00:00.250Z"


@pytest.mark.parametrize(("now", "distance"), [(T0 - HOUR, "in 1h"), (T0 + HOUR, "1h ago"), (T0, "0s ago")])
def test_a_time_says_how_far_away_it_is(now: datetime, distance: str) -> None:
    assert tables.moment_from(T0, now=now) == f"2031-07-01 09:00:00 UTC ({distance})"


def test_what_would_steer_a_terminal_is_spelled_out_in_one_line() -> None:
    assert tables.clean("red \x1b[31m\nnext\tline \x07 \u202e café") == "red \\x1b[31m next line \\x07 \\u202e café"


def test_the_cells_of_a_table_are_text_and_no_markup() -> None:
    table = tables.table({"n": "number", "note": "text"}, [("7", "[bold]:smile: \x1b[31m")])

    assert table.splitlines() == ["n  note", "-- ----------------------", "7  [bold]:smile: \\x1b[31m"]


@pytest.mark.parametrize("columns", ["80", "100"])
def test_a_table_keeps_to_the_width_and_wraps_nothing_but_text(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    table = tables.table(
        {"id": "word", "note": "text", "n": "number"}, [("0123456789" * 4, "many words " * 30, "12345")]
    )

    assert max(map(len, table.splitlines())) <= int(columns)
    assert "0123456789" * 4 in table
    assert "12345" in table


@pytest.mark.parametrize("columns", ["1", "20", "40"])
def test_no_terminal_is_narrow_enough_to_cut_a_number(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    table = tables.table(
        {"queue": "text", **dict.fromkeys(("fresh", "retry", "oldest due"), "number")},
        [("a-queue-of-many-letters", "123456", "300", "1d 14h")],
    )

    assert [number for number in ("123456", "300", "1d 14h") if number not in table] == []


def test_a_long_fact_goes_on_below_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    lines = tables.facts({"name": "noop", "last error": "a receiver that answers 503 again and again"}).splitlines()

    assert lines == [
        "name        noop",
        "last error  a receiver that answers 503",
        "            again and again",
    ]


def test_what_the_encoding_lacks_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    tables.say("café")
    sys.stdout.flush()

    assert raw.getvalue() == b"caf\\xe9\n"


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_only_a_terminal_gets_colour_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    piped = tables.table({"queue": "text"}, [("default",)])
    monkeypatch.setattr(sys, "stdout", _Terminal())
    shown = tables.table({"queue": "text"}, [("default",)])

    assert piped.splitlines()[0] == "queue"
    assert "\x1b[1m" in shown
