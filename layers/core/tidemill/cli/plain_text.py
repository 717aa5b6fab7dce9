"""Tables and spans as plain text that reads the same in a file and on any terminal."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Final

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

WIDTH: Final = 100


def table(*headings: str, justify: JustifyMethod = "left") -> Table:
    """Return an empty table with these columns."""
    made = Table(box=box.ASCII, show_edge=False)
    for words in headings:
        made.add_column(words, justify=justify)
    return made


def printed(rows: Table) -> str:
    """Return a table as lines of text."""
    # On no terminal at all: what is printed depends on nothing but the data.
    console = Console(file=StringIO(), width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(rows)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def sec(span: timedelta) -> str:
    """Return *span* in seconds."""
    return f"{round(span.total_seconds(), 1):g} s"
