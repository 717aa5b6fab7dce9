"""Output of the commands: text cut and wrapped by its width in cells, tables, facts and JSON on stdout.

Texts may come from anybody: `clean` escapes what steers a terminal. Only `format_table` needs rich, from the extra
``cli``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from typing import Final, Literal, TypeAlias

from tidemill.errors import TidemillError


def measure_width(text: str) -> int:
    """Return the width in cells of *text*, a single line."""
    return len(text) if text.isascii() else sum(map(_count_char_cells, text))


def shorten(text: str, limit: int) -> str:
    """Return *text* in at most *limit* cells, cut in the middle: the end often holds the reason."""
    if measure_width(text) <= limit:
        return text
    tail = limit // 4
    end = _cut_to_width(reversed(text), tail)[::-1]
    return f"{_cut_to_width(text, limit - tail - 5)} ... {end}"


def pad(text: str, cells: int) -> str:
    """Return *text*, filled up with blanks to *cells* cells."""
    return text + " " * (cells - measure_width(text))


def wrap(text: str, *, limit: int, first: str, rest: str) -> str:
    """Return *text* in lines of *limit* cells; the first line starts with *first*, later lines with *rest*."""
    lines, start = [first], len(first)
    for whole in text.split():
        word = whole
        while word:
            gap = " " if len(lines[-1]) > start else ""
            room = limit - measure_width(lines[-1]) - len(gap)
            is_endless = measure_width(word) > limit - measure_width(rest)
            part = word if measure_width(word) <= room else _cut_to_width(word, room) if is_endless else ""
            if not part and not gap:
                part = word[0]  # not even one cell is free
            lines[-1] += gap + part if part else ""
            word = word[len(part) :]
            if word:
                lines, start = [*lines, rest], len(rest)
    return "\n".join(lines)


def _cut_to_width(text: Iterable[str], limit: int) -> str:
    """Return the longest beginning of *text* that fits into *limit* cells."""
    beginning, room = "", limit
    for char in text:
        room -= _count_char_cells(char)
        if room < 0:
            break
        beginning += char
    return beginning


def _count_char_cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no public name
Kind: TypeAlias = Literal["number", "word", "text", "id"]
"""Layout of a column: numbers are aligned right; only texts and long ids may be wrapped."""

WIDTH: Final = 100
"""Columns of a line without a terminal."""

MIN_TEXT: Final = 12
"""Least width of a column of text, in cells."""

MIN_ID: Final = 24
"""Least width of a column of ids, in cells: the length of an ObjectId."""

INSTALL: Final = "pip install rich"
ABSENT: Final = "-"
_HEAD_RULE: Final = "\n".join(["    ", "    ", " -  ", *["    "] * 5])
"""Box for rich with only a line below the headings, which leaves most of 80 columns to the data."""


class MissingExtraError(TidemillError):
    """A table needs rich, which is not installed."""

    def __init__(self) -> None:
        super().__init__(f"tables need the package rich: {INSTALL}")


class OutputError(TidemillError):
    """Stdout takes no more, though its reader has not closed the pipe."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the output cannot be written: {reason}")


def add_json_to(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to *parser*."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_text(text: str) -> None:
    """Print *text*; escape characters that the encoding of stdout lacks.

    Raises:
        OutputError: stdout is closed, or takes no more.
    """
    if sys.stdout is None:
        raise OutputError("stdout is closed")
    encoding = sys.stdout.encoding or "utf-8"
    with _translate_failed_write():
        print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 - the output of a command


def flush() -> None:
    """Write the buffered output.

    Raises:
        OutputError: stdout takes no more.
    """
    if sys.stdout is not None:
        with _translate_failed_write():
            sys.stdout.flush()


def close_stdout() -> None:
    """Close stdout and drop its buffer, which the interpreter would otherwise try to write at its end and complain."""
    if sys.stdout is not None:
        with suppress(OSError):
            sys.stdout.close()
        sys.stdout = None


@contextmanager
def _translate_failed_write() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        raise OutputError(error.strerror or type(error).__name__) from None


def print_json(document: object) -> None:
    """Print *document*, of plain types, as JSON."""
    print_text(json.dumps(document, indent=2))


def format_table(columns: Mapping[str, Kind], rows: Iterable[Sequence[str]]) -> str:
    """Return *rows* below the headings of *columns*, at most as wide as the terminal; without colours in a pipe.

    Raises:
        MissingExtraError: rich is not installed.
    """
    try:
        from rich.box import Box  # noqa: PLC0415 - `indexes` and `declare` work without the extra `cli`
        from rich.cells import cell_len  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingExtraError from None
    grid = Table(box=Box(_HEAD_RULE, ascii=True), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[clean(cell) for cell in row] for row in rows]
    fixed = 0
    for index, (heading, kind) in enumerate(columns.items()):
        justify: Literal["left", "right"] = "right" if kind == "number" else "left"
        # A narrow terminal may break a line, but a number is never cut into another number.
        widest = max((cell_len(row[index]) for row in cells), default=0)
        needed = None if kind == "text" else min(widest, MIN_ID) if kind == "id" else widest
        no_wrap = kind in ("number", "word")
        grid.add_column(Text(heading), justify=justify, no_wrap=no_wrap, overflow="fold", min_width=needed)
        fixed += 1 + (MIN_TEXT if needed is None else max(needed, *map(cell_len, heading.split())))
    for row in cells:
        grid.add_row(*map(Text, row))
    # Rendered in memory: only `say` may fail to write to stdout.
    width = max(read_line_width(), fixed)
    console = Console(file=StringIO(), width=width, force_terminal=_is_terminal(), legacy_windows=False)
    with console.capture() as capture:
        console.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def format_facts(values: Mapping[str, str]) -> str:
    """Return a line "label value" for each of *values*; longer values continue below their beginning."""
    margin = max(map(len, values)) + 2
    limit = max(read_line_width(), margin + 20)
    return "\n".join(
        wrap(clean(value), limit=limit, first=f"{label:<{margin}}", rest=" " * margin)
        for label, value in values.items()
    )


def format_points(sentences: Iterable[str]) -> str:
    """Return *sentences* as a list; longer sentences continue below their beginning."""
    limit = max(read_line_width(), 40)
    return "\n".join(wrap(clean(sentence), limit=limit, first="- ", rest="  ") for sentence in sentences)


def read_line_width() -> int:
    """Return the number of columns of a line."""
    return shutil.get_terminal_size((WIDTH, 0)).columns


def clean(text: str) -> str:
    """Return *text* in one line, with the characters escaped that could steer a terminal: its author is unknown."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
