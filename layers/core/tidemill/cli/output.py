"""Output of the commands: tables, facts, sentences and JSON on stdout, warnings on stderr.

Texts may come from anybody: `clean` escapes what steers a terminal. A terminal gets lines of its width, and
`shorten` and `cut_end` cut long values there. Everywhere else values are never cut, and lines are only wrapped if
COLUMNS is set.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Final, Literal, TextIO, TypeAlias

from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from rich.table import Table

Kind: TypeAlias = Literal["number", "word", "text", "id"]
"""Layout of a column: numbers are aligned right; only texts, between words, and long ids may be wrapped."""

MIN_TEXT: Final = 12
"""Least width of a column of long ids, in cells."""

MAX_WHOLE_ID: Final = 24
"""Width of the longest id or word that is never wrapped, in cells: the length of an ObjectId."""

MAX_ID: Final = 48
"""Cells of an id in a row on a terminal: the length of a UUID in JSON."""

MIN_LINE: Final = 40
"""Least width of a line of facts or sentences, in cells."""

ABSENT: Final = "-"
_LEFT_OUT: Final = "..."
_GAP: Final = 2
"""Cells between two columns."""

_UNLIMITED: Final = 1_000_000
_HEAD_RULE: Final = "\n".join(["    ", "    ", " -  ", *["    "] * 5])
"""Box for rich with only a line below the headings, which leaves most of 80 columns to the data."""


class OutputError(TidemillError):
    """Stdout takes no more, though its reader has not closed the pipe."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the output cannot be written: {reason}")


def print_text(text: str, *, stream: TextIO | None = None) -> None:
    """Print *text* on stdout, or on *stream*; escape characters that its encoding lacks.

    Raises:
        OutputError: stdout is closed, or takes no more.
    """
    stream = stream or sys.stdout
    if stream is None:
        raise OutputError("stdout is closed")
    encoding = stream.encoding or "utf-8"
    with _translate_failed_write():
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def print_json(document: object) -> None:
    """Print *document* as JSON: dataclasses as objects, a duration named ``wait`` as seconds named ``wait_sec``."""
    print_text(json.dumps(_convert_to_json(document), indent=2))


def _convert_to_json(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple):
        return [_convert_to_json(element) for element in value]
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {
            f"{key}_sec" if isinstance(content, timedelta) else key: _convert_to_json(content)
            for key, content in value.items()
        }
    return value


def warn(sentence: str, *, stream: TextIO | None = None) -> None:
    """Print *sentence* on stderr, or on *stream*, in one line; ignore a closed stderr."""
    print_stderr(f"tidemill: {clean(sentence)}", stream=stream)


def print_stderr(text: str, *, end: str = "\n", stream: TextIO | None = None) -> None:
    """Print *text* on stderr, or on *stream*; ignore a closed stderr."""
    stream = stream or sys.stderr
    if stream is None:
        return  # print would write to stdout instead
    with suppress(OSError, ValueError):
        stream.write(text + end)
        stream.flush()


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


def format_table(columns: Mapping[str, Kind], rows: Iterable[Sequence[str]]) -> str:
    """Return *rows* below the headings of *columns*, at most as wide as the terminal; without colours in a pipe.

    If the terminal is too narrow for all columns with whole words, those that do not fit are left out, and a last
    heading ``...`` says so. The first column is always there.
    """
    from rich.box import Box  # noqa: PLC0415 - commands without tables work without rich, and start sooner
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=Box(_HEAD_RULE, ascii=True), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[clean(cell) for cell in row] for row in rows]
    measured = [
        _measure_column(index, heading, kind, [row[index] for row in cells])
        for index, (heading, kind) in enumerate(columns.items())
    ]
    chosen, is_complete = _fit_columns(measured, room=read_line_width() or _UNLIMITED)
    for column in chosen:
        justify: Literal["left", "right"] = "right" if column.kind == "number" else "left"
        table.add_column(Text(column.heading), justify=justify, overflow="fold", width=column.width)
    if not is_complete:
        table.add_column(Text(_LEFT_OUT))
    for row in cells:
        table.add_row(*(Text(row[column.index]) for column in chosen))
    return _render(table, least_width=_measure_line(chosen, is_complete=is_complete))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Column of a table; *least* and *width* are cells: with its words whole, and in this table."""

    index: int
    heading: str
    kind: Kind
    least: int
    width: int


def _measure_column(index: int, heading: str, kind: Kind, cells: Sequence[str]) -> _Column:
    """Return the column as wide as its longest cell. A number is never cut into another number."""
    from rich.cells import cell_len  # noqa: PLC0415

    widest = max(map(cell_len, cells), default=0)
    least = widest
    if kind == "text":
        least = min(max((cell_len(word) for cell in cells for word in cell.split()), default=0), MAX_WHOLE_ID)
    elif kind == "id" and widest > MAX_WHOLE_ID:
        least = MIN_TEXT
    least = max(least, *map(cell_len, heading.split()))
    width = max(widest, *map(cell_len, heading.splitlines()))
    return _Column(index=index, heading=heading, kind=kind, least=least, width=width)


def _fit_columns(columns: Sequence[_Column], *, room: int) -> tuple[list[_Column], bool]:
    """Return the columns that fit into *room* cells, with their widths there, and whether these are all."""
    if _measure_line(columns) <= room:
        return list(columns), True
    narrow = [replace(column, width=column.least) for column in columns]
    is_complete = _measure_line(narrow) <= room
    chosen = narrow if is_complete else narrow[:1]
    for column in () if is_complete else narrow[1:]:
        if _measure_line([*chosen, column], is_complete=False) <= room:
            chosen.append(column)
    for place, column in enumerate(chosen):
        left = max(room - _measure_line(chosen, is_complete=is_complete), 0)
        chosen[place] = replace(column, width=min(columns[column.index].width, column.width + left))
    return chosen, is_complete


def _measure_line(columns: Sequence[_Column], *, is_complete: bool = True) -> int:
    widths = [column.width for column in columns] + ([] if is_complete else [len(_LEFT_OUT)])
    return sum(widths) + _GAP * (len(widths) - 1)


def format_facts(values: Mapping[str, str]) -> str:
    """Return a line "label value" for each of *values*; longer values continue below their beginning."""
    return _format_pairs(values.items(), gap=2)


def format_points(sentences: Iterable[str]) -> str:
    """Return *sentences* as a list; longer sentences continue below their beginning."""
    return _format_pairs((("-", sentence) for sentence in sentences), gap=1)


def _format_pairs(pairs: Iterable[tuple[str, str]], *, gap: int) -> str:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in pairs:
        grid.add_row(Text(label), Text(clean(value)))
    return _render(grid, least_width=MIN_LINE)


def _render(table: Table, *, least_width: int) -> str:
    width = max(read_line_width() or _UNLIMITED, least_width)
    return render_table(table, width=width, is_terminal=is_terminal())


def render_table(table: Table, *, width: int, is_terminal: bool) -> str:
    """Return *table* as lines of text, in colour for a terminal."""
    from rich.console import Console  # noqa: PLC0415

    # Rendered in memory: only `print_text` may fail to write to stdout.
    console = Console(file=StringIO(), width=width, force_terminal=is_terminal, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def shorten(text: str, limit: int) -> str:
    """Return *text*, on a terminal cut in the middle to *limit* cells: two ids or names often differ at the end."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415

    if not is_terminal() or cell_len(text) <= limit:
        return text
    tail = limit // 4
    beginning = set_cell_size(text, limit - tail - 5).rstrip()
    end = set_cell_size(text[::-1], tail).rstrip()[::-1]
    return f"{beginning} ... {end}"


def cut_end(text: str, limit: int) -> str:
    """Return *text*, on a terminal the first *limit* cells of it: a message begins with the reason."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415

    if not is_terminal() or cell_len(text) <= limit:
        return text
    return f"{set_cell_size(text, limit - 4).rstrip()} ..."


def read_line_width() -> int | None:
    """Return the number of columns of a line: COLUMNS, or the width of the terminal, or ``None`` without both."""
    return shutil.get_terminal_size((0, 0)).columns or None


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def clean(text: str) -> str:
    """Return *text* in one line, with the characters escaped that could steer a terminal: its author is unknown."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
