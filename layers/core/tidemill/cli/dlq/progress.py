"""How far long work has come: a bar on stderr where that is a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Step: TypeAlias = Callable[[int], None]
"""Is told how many more are done."""


def is_watched() -> bool:
    """Tell whether anybody would see a bar."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress(words: str, *, total: int | None) -> Iterator[Step]:
    """Show how many of *total* are done; ``None``: nobody knows how many there are."""
    try:
        from rich.console import Console  # noqa: PLC0415 - all but the bar works without the extra `cli`
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    except ModuleNotFoundError:
        yield _unseen
        return
    if not is_watched():
        yield _unseen
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done: bar.advance(task, done)


def _unseen(_: int) -> None:
    """Show nothing."""
