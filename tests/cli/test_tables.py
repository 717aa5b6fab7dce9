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


SIZES = ("fresh", "retry", "delayed", "processing", "oldest due")
QUEUES = (
    ("default", "12", "3", "0", "16", "1d 14h", "open"),
    ("eu-central-billing", "123456", "300", "0", "16", "-", "paused"),
)


def show_queues() -> list[str]:
    """Return the lines of a table of two queues."""
    return output.format_table(
        {"queue": "text", **dict.fromkeys(SIZES, "number"), "state": "word"}, QUEUES
    ).splitlines()


@pytest.mark.parametrize("columns", ["1", "20", "30", "40", "60", "79"])
def test_a_narrow_terminal_gets_fewer_columns_of_whole_words(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    # A06
    monkeypatch.setenv("COLUMNS", columns)

    heading, _, *rows = show_queues()

    shown = heading.split("  ")[0].split() + [name for name in (*SIZES, "state") if name in heading]
    assert heading.split()[-1] == ("..." if int(columns) < 73 else "state")
    assert [row.split() for row in rows] == [
        " ".join(cell for name, cell in zip(("queue", *SIZES, "state"), queue, strict=True) if name in shown).split()
        for queue in QUEUES
    ]
    assert max(map(len, [heading, *rows])) <= max(int(columns), len("eu-central-billing  ..."))


def test_the_columns_that_fit_are_shown_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # A06
    monkeypatch.setenv("COLUMNS", "40")

    assert show_queues() == [
        "queue                fresh  retry  ...",
        "------------------- ------- ------ ---",
        "default                 12      3",
        "eu-central-billing  123456    300",
    ]


def test_a_text_is_broken_between_its_words_and_a_word_of_any_length_in_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # A06
    monkeypatch.setenv("COLUMNS", "40")

    rows = [("many short words one after another", "7"), ("x" * 60, "8")]
    lines = output.format_table({"note": "text", "n": "number"}, rows).splitlines()[2:]

    assert lines == [
        "many short words one after another     7",
        "x" * 37 + "  8",
        "x" * 23,
    ]


def test_a_heading_is_broken_between_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # A06
    monkeypatch.setenv("COLUMNS", "20")

    lines = output.format_table({"task": "word", "oldest due": "number"}, [("0123456789", "1d 2h")]).splitlines()

    assert [line.split() for line in lines] == [
        ["oldest"],
        ["task", "due"],
        ["-----------", "--------"],
        ["0123456789", "1d", "2h"],
    ]


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
