"""How commands speak: tables, facts and JSON on stdout, and text that nobody vouches for.

Only `table` needs rich, which comes with the extra ``cli``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from typing import Final, Literal, TypeAlias

from tidemill.cli.cells import wrapped
from tidemill.errors import TidemillError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no public name
Kind: TypeAlias = Literal["number", "word", "text", "id"]
"""How a column is set: numbers to the right; only text may be wrapped where a line is full, and an id that is long."""

WIDTH: Final = 100
"""Of what is printed where no terminal says how wide it is."""

MIN_TEXT: Final = 12
"""What a column of text gets where there is no room."""

MIN_ID: Final = 24
"""Of an id: those of MongoDB have as many characters."""

INSTALL: Final = "pip install rich"
ABSENT: Final = "-"
_HEAD_RULE: Final = "\n".join(["    ", "    ", " -  ", *["    "] * 5])
"""A box of rich's with nothing but a line below the headings: it leaves most of 80 columns to the data."""


class MissingExtraError(TidemillError):
    """A table is to be printed, and rich is not installed."""

    def __init__(self) -> None:
        super().__init__(f"tables need the package rich: {INSTALL}")


class OutputError(TidemillError):
    """What a command says cannot be written, though somebody may be reading."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the output cannot be written: {reason}")


def add_json_to(parser: argparse.ArgumentParser) -> None:
    """Let a command print JSON instead of text; it then finds ``json`` among its choices."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def say(text: str) -> None:
    """Print *text* as far as the encoding of stdout can.

    Raises:
        OutputError: stdout is closed, or takes no more.
    """
    if sys.stdout is None:
        raise OutputError("stdout is closed")
    encoding = sys.stdout.encoding or "utf-8"
    with _stdout_at_work():
        print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 - that is how a command speaks


def flush() -> None:
    """Write what was printed and is still held back.

    Raises:
        OutputError: stdout takes no more.
    """
    if sys.stdout is not None:
        with _stdout_at_work():
            sys.stdout.flush()


def forsake_stdout() -> None:
    """Close stdout with what it still holds, or the interpreter tries to write that at its end, and complains."""
    if sys.stdout is not None:
        with suppress(OSError):
            sys.stdout.close()
        sys.stdout = None


@contextmanager
def _stdout_at_work() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        forsake_stdout()
        raise OutputError(error.strerror or type(error).__name__) from None


def say_json(document: object) -> None:
    """Print *document*, of plain types, as JSON."""
    say(json.dumps(document, indent=2))


def table(columns: Mapping[str, Kind], rows: Iterable[Sequence[str]]) -> str:
    """Return *rows* below the headings of *columns*, as wide as the terminal allows; without colours in a pipe.

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
    drawn = Table(box=Box(_HEAD_RULE, ascii=True), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[clean(cell) for cell in row] for row in rows]
    fixed = 0
    for index, (heading, kind) in enumerate(columns.items()):
        justify: Literal["left", "right"] = "right" if kind == "number" else "left"
        # Too narrow a terminal may break a line, never cut a number into another one.
        widest = max((cell_len(row[index]) for row in cells), default=0)
        needed = None if kind == "text" else min(widest, MIN_ID) if kind == "id" else widest
        no_wrap = kind in ("number", "word")
        drawn.add_column(Text(heading), justify=justify, no_wrap=no_wrap, overflow="fold", min_width=needed)
        fixed += 1 + (MIN_TEXT if needed is None else max(needed, *map(cell_len, heading.split())))
    for row in cells:
        drawn.add_row(*map(Text, row))
    # On nothing but memory: only `say` may find that stdout takes no more.
    width = max(line_width(), fixed)
    console = Console(file=StringIO(), width=width, force_terminal=_is_terminal(), legacy_windows=False)
    with console.capture() as capture:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def facts(values: Mapping[str, str]) -> str:
    """Return one line for each of *values* behind its label; longer ones go on below their beginning."""
    margin = max(map(len, values)) + 2
    limit = max(line_width(), margin + 20)
    return "\n".join(
        wrapped(clean(value), limit=limit, first=f"{label:<{margin}}", rest=" " * margin)
        for label, value in values.items()
    )


def points(sentences: Iterable[str]) -> str:
    """Return a list of *sentences*; longer ones go on below their beginning."""
    limit = max(line_width(), 40)
    return "\n".join(wrapped(clean(one), limit=limit, first="- ", rest="  ") for one in sentences)


def line_width() -> int:
    """Return how many columns a line has."""
    return shutil.get_terminal_size((WIDTH, 0)).columns


def clean(text: str) -> str:
    """Return *text* in one line, with what would steer a terminal spelled out: anybody may have written it."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
