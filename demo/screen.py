"""What a person sees while it plays: a live table, or a plain line now and then where stdout is spoken for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.aws import NEWS
from demo.ledger import FINAL
from demo.play import Show, View

WIDTH = 100
PLACES = ("pending", "processing", "failed", "dead letter", "done", "cancelled")
STYLES = {"processing": "yellow", "failed": "red", "dead letter": "magenta", "done": "green"}


@contextmanager
def live(console: Console) -> Iterator[Show]:
    """Keep the table up to date until the block ends; not on a terminal, show the last one only."""
    with Live(console=console, auto_refresh=False) as screen:
        yield lambda view: screen.update(rendered(view), refresh=True)


@contextmanager
def plain(output: TextIO) -> Iterator[Show]:
    """Print a line for every second in which something changed."""
    shown: tuple[int, int] | None = None

    def show(view: View) -> None:
        nonlocal shown
        ended = sum(row.where[place] for row in view.rows for place in FINAL)
        if shown is None or (shown[0] != ended and shown[1] != int(view.aws.elapsed)):
            shown = ended, int(view.aws.elapsed)
            accepted = sum(row.tasks for row in view.rows)
            print(f"{view.aws.elapsed:5.1f} s  {ended} of {accepted} accepted tasks have ended", file=output)

    yield show


def rendered(view: View) -> RenderableType:
    """Return the table, the executors and the news."""
    news = [*view.aws.news, *[""] * (NEWS - len(view.aws.news))]
    return Group(_table(view), _executors(view), *[Text(line, style="dim", no_wrap=True) for line in news])


def _table(view: View) -> Table:
    table = Table(width=WIDTH, title_justify="left", show_footer=True)
    totals = {place: sum(row.where[place] for row in view.rows) for place in PLACES}
    table.add_column("tasks that", "all")
    table.add_column("tasks", str(sum(row.tasks for row in view.rows)), justify="right")
    for place in PLACES:
        table.add_column(place, _number(totals[place]), justify="right", style=STYLES.get(place), no_wrap=True)
    table.add_column("have to end as", no_wrap=True)
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
