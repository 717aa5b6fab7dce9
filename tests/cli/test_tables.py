"""How commands speak: widths, and text that anybody may have written."""

from __future__ import annotations

import io
import pathlib
import sys

import pytest

from tidemill.cli import output


def test_what_would_steer_a_terminal_is_spelled_out_in_one_line() -> None:
    assert output.clean("red \x1b[31m\nnext\tline \x07 \u202e café") == "red \\x1b[31m next line \\x07 \\u202e café"


def test_the_cells_of_a_table_are_text_and_no_markup() -> None:
    table = output.format_table({"n": "number", "note": "text"}, [("7", "[bold]:smile: \x1b[31m")])

    assert table.splitlines() == ["n  note", "-- ----------------------", "7  [bold]:smile: \\x1b[31m"]


@pytest.mark.parametrize("columns", ["80", "100"])
def test_a_table_keeps_to_the_width_and_wraps_nothing_but_text(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    table = output.format_table(
        {"id": "word", "note": "text", "n": "number"}, [("0123456789" * 4, "many words " * 30, "12345")]
    )

    assert max(map(len, table.splitlines())) <= int(columns)
    assert "0123456789" * 4 in table
    assert "12345" in table


@pytest.mark.parametrize("columns", ["1", "20", "40"])
def test_no_terminal_is_narrow_enough_to_cut_a_number(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    table = output.format_table(
        {"queue": "text", **dict.fromkeys(("fresh", "retry", "oldest due"), "number")},
        [("a-queue-of-many-letters", "123456", "300", "1d 14h")],
    )

    assert [number for number in ("123456", "300", "1d 14h") if number not in table] == []


def test_a_long_fact_goes_on_below_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    lines = output.format_facts(
        {"name": "noop", "last error": "a receiver that answers 503 again and again"}
    ).splitlines()

    assert lines == [
        "name        noop",
        "last error  a receiver that answers 503",
        "            again and again",
    ]


def test_a_long_point_goes_on_below_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    assert output.format_points(["short", "a sentence that is longer than a terminal\x1b"]).splitlines() == [
        "- short",
        "- a sentence that is longer than a",
        "  terminal\\x1b",
    ]


def test_what_the_encoding_lacks_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    output.print_text("café")
    sys.stdout.flush()

    assert raw.getvalue() == b"caf\\xe9\n"


def test_a_table_is_made_where_stdout_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    full = pathlib.Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closing it fails
    full.write("what was said before")
    monkeypatch.setattr(sys, "stdout", full)

    made = output.format_table({"queue": "text"}, [("default",)])

    monkeypatch.undo()
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert made.splitlines()[0] == "queue"


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_only_a_terminal_gets_colour_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    piped = output.format_table({"queue": "text"}, [("default",)])
    monkeypatch.setattr(sys, "stdout", _Terminal())
    shown = output.format_table({"queue": "text"}, [("default",)])

    assert piped.splitlines()[0] == "queue"
    assert "\x1b[1m" in shown
