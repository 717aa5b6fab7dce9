"""What a person sees while it plays: a live table, or a plain line now and then where stdout is spoken for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.aws import NEWS
from demo.feed import LINES
from demo.ledger import FINAL
from demo.play import Show, View

WIDTH = 100
"""Columns where the output is no terminal."""

PLACES = ("pending", "processing", "failed", "dead letter", "done", "cancelled")
STYLES = {"processing": "yellow", "failed": "red", "dead letter": "magenta", "done": "green"}


@contextmanager
def live(console: Console) -> Iterator[Show]:
    """Keep the table up to date until the block ends; not on a terminal, show the last one only."""
    with Live(console=console, auto_refresh=False) as screen:
        yield lambda view: screen.update(rendered(view), refresh=True)


@contextmanager
def plain(output: TextIO) -> Iterator[Show]:
    """Print how far it is whenever that has changed, and the latest news."""
    printed = ""

    def show(view: View) -> None:
        nonlocal printed
        ended = sum(row.where[place] for row in view.rows for place in FINAL)
        line = f"{ended} of {sum(row.tasks for row in view.rows)} accepted tasks have ended"
        line = "; ".join([line, *list(view.aws.news)[-1:]])
        if line != printed:
            printed = line
            print(f"{view.aws.elapsed:5.1f} s  {line}", file=output, flush=True)

    yield show


def rendered(view: View) -> RenderableType:
    """Return the table, the executors, their deaths, and the attempts that ended last."""
    return Group(
        _table(view), _executors(view), *_lines(view.aws.news, NEWS), Text("Attempts"), *_lines(view.attempts, LINES)
    )


def _lines(texts: Collection[str], count: int) -> list[Text]:
    """Return *texts* and empty lines, *count* in all, so that nothing below them moves."""
    return [
        Text(text, style="dim", no_wrap=True, overflow="ellipsis") for text in [*texts, *[""] * (count - len(texts))]
    ]


def _table(view: View) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, padding=0)
    totals = {place: sum(row.where[place] for row in view.rows) for place in PLACES}
    table.add_column("tasks that", "all", no_wrap=True)
    table.add_column("tasks", str(sum(row.tasks for row in view.rows)), justify="right")
    for place in PLACES:
        table.add_column(place.replace(" ", "\n"), _number(totals[place]), justify="right", style=STYLES.get(place))
    table.add_column("must end as", no_wrap=True)
    for row in view.rows:
        numbers = [_number(row.where[place]) for place in PLACES]
        table.add_row(row.behaviour, _number(row.tasks), *numbers, row.ends)
    return table


def _executors(view: View) -> Text:
    counts = view.aws.counts
    return Text(
        f"{view.aws.elapsed:5.1f} s  executors: {view.aws.running} at work, {counts['started']} started, "
        f"{counts['killed']} killed, {counts['recycled']} recycled; reclaim took {counts['reclaimed']} tasks back"
    )


def _number(count: int) -> str:
    return str(count) if count else ""
