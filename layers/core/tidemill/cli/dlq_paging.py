"""Operations on many dead letters: their options, the calls page by page, progress, and the sum of all responses.

Without rich none of them begins: a summary that cannot be printed would come too late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeAlias, TypeVar

import click
from click import argument, option
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidemill.admin.requests import MAX_DEAD_LETTERS
from tidemill.admin.responses import Page
from tidemill.aws.lambda_functions import NotInvokedError
from tidemill.cli.commands import parse_time, parse_whole
from tidemill.cli.operations import Event, RefusedByFunctionError, call_operation
from tidemill.cli.output import OutputError, flush, warn
from tidemill.dead_letters.documents import MAX_REDRIVES
from tidemill.errors import InvalidRequestError, SettingsError, TaskNotFoundError, TidemillError
from tidemill.text import iso_timestamp

MAX_TOTAL: Final = 10**9
"""Upper limit of ``--limit``."""

ChangeT = TypeVar("ChangeT", bound=Page)


_TIMES: Final = "30m, 6h or 7d ago, or a UTC time like 2026-07-01T09:00"
FILTER_OPTIONS: Final = (
    option("--fingerprint", metavar="F", help="Only this group, as `tidemill dlq ls` shows it."),
    option("--name", metavar="NAME", help="Only this task function."),
    option("--queue", metavar="QUEUE", help="Only this queue."),
    option("--since", type=parse_time, metavar="TIME", help=f"Moved to the dead letters at or after TIME: {_TIMES}."),
    option("--until", type=parse_time, metavar="TIME", help="Moved to the dead letters before TIME."),
)
"""Options for `read_filters`."""

SELECTION_OPTIONS: Final = (
    argument("ids", nargs=-1, metavar="[ID ...]"),
    *FILTER_OPTIONS,
    option("--all", "is_all", is_flag=True, help="All dead letters; required without IDs and filters."),
    option(
        "--redrives",
        type=parse_whole(0, MAX_REDRIVES),
        metavar="N",
        help="Only with one ID: dead letter after N redrives of the task. Default: the newest open one.",
    ),
    option("--dry-run", is_flag=True, help="Show what would happen, and change nothing."),
    option("--limit", type=parse_whole(1, MAX_TOTAL), metavar="N", help="At most N dead letters, oldest first."),
)
"""Options for `read_selection`."""


def read_filters(filters: Mapping[str, str | datetime | None]) -> Event:
    """Return the given *filters* as fields of an operation."""
    return {
        name: iso_timestamp(value) if isinstance(value, datetime) else value
        for name, value in filters.items()
        if value is not None
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Dead letters to change: those that *parts*, fields of operations, select; at most *limit* of them."""

    parts: tuple[Event, ...]
    has_ids: bool
    is_dry_run: bool
    limit: int | None

    def build_events(self, op: str, **options: Any) -> list[Event]:  # noqa: ANN401 - fields of several types
        """Return the request of each operation that the selection needs."""
        return [{"op": op, **options, **part} for part in self.parts]


def read_selection(
    *, ids: tuple[str, ...], is_all: bool, redrives: int | None, dry_run: bool, limit: int | None,
    **filters: str | datetime | None,
) -> Selection:  # fmt: skip
    """Return the selection in the options of a command.

    Raises:
        UsageError: The selection is missing or contradictory.
    """
    given = read_filters(filters)
    if not (ids or given or is_all):
        raise click.UsageError(
            "say which dead letters: IDs, or --fingerprint, --name, --queue, --since or --until, or --all"
        )
    if bool(ids) + bool(given) + is_all > 1:
        raise click.UsageError("IDs, filters and --all exclude each other")
    if redrives is not None and len(ids) != 1:
        raise click.UsageError("--redrives needs exactly one ID")
    number = {} if redrives is None else {"redrives": redrives}
    parts: list[Event] = [{"id": task_id, **number} for task_id in dict.fromkeys(ids)]
    return Selection(
        parts=tuple(parts) or (given or {"all": True},), has_ids=bool(ids), is_dry_run=dry_run, limit=limit
    )


Step: TypeAlias = Callable[[int], None]
"""Function that adds a number of dead letters to the progress."""


def is_stderr_terminal() -> bool:
    """Return whether stderr is a terminal, which can show a progress bar."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def show_progress(words: str, *, total: int | None) -> Iterator[Step]:
    """Show a progress bar up to *total*, which is ``None`` if unknown."""
    if not is_stderr_terminal():
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done: bar.advance(task, done)


CONTINUE_HINT: Final = "run the same command to continue"
_FATAL_ERRORS: Final = (SettingsError, NotInvokedError)
"""Errors that every later call would meet, too."""

_HARMLESS_CODES: Final = ("not_found", "not_allowed", "invalid_event")
"""Error codes of the function for calls that changed nothing."""


class Total(Generic[ChangeT]):
    """Sum of the responses to all calls so far.

    Attributes:
        kind: The kind of the responses.
        response: The sum, ``None`` before the first response.
        failed: Number of refused events.
        unanswered: Upper bound of dead letters that may have been changed by the unanswered call.
        began_at: Time of the first response.
    """

    def __init__(self, kind: type[ChangeT], count: Callable[[ChangeT], int]) -> None:
        self.kind = kind
        self.response: ChangeT | None = None
        self.failed = 0
        self.unanswered = 0
        self.began_at: datetime | None = None
        self._count = count

    @property
    def count(self) -> int:
        """Number of changed dead letters."""
        return 0 if self.response is None else self._count(self.response)

    def call(self, event: Event, *, limit: int) -> tuple[ChangeT, int]:
        """Call *event*, which changes up to *limit* dead letters, and add its response up.

        Returns:
            The response, and the number of dead letters that it changed.
        """
        self.unanswered = limit
        response = call_operation(event, self.kind)
        self.unanswered = 0
        self.began_at = self.began_at or response.now
        self.response = response if self.response is None else self.response.merge(response)
        return response, self._count(response)


def run_pages(events: Sequence[Event], total: Total[ChangeT], *, limit: int | None, step: Step) -> None:
    """Call each of *events* until nothing is left of it, or *limit* dead letters are changed.

    If one of several events is refused, the remaining events are still called.

    Raises:
        TidemillError: The only event was refused, or a call got no answer.
    """
    for event in events:
        try:
            _run(event, total, limit=limit, step=step)
        except TidemillError as error:
            if len(events) == 1 or not _is_harmless(error) or isinstance(error, _FATAL_ERRORS):
                raise
            warn(str(error))
            total.failed, total.unanswered = total.failed + 1, 0


def _run(event: Event, total: Total[ChangeT], *, limit: int | None, step: Step) -> None:
    position: Event = {}
    while limit is None or total.count < limit:
        size = MAX_DEAD_LETTERS if limit is None else min(limit - total.count, MAX_DEAD_LETTERS)
        response, changed = total.call(event | {"limit": size} | position, limit=1 if "id" in event else size)
        step(changed)
        if response.next is None:
            return
        position = {"cursor": response.next}


@contextmanager
def report_partial_result(
    total: Total[ChangeT], verb: str, *, ends: Callable[[], Sequence[str]] = lambda: [CONTINUE_HINT]
) -> Iterator[None]:
    """On an error report the changes so far, certain and possible, and the sentences of *ends* about the rest."""
    try:
        yield
    except (KeyboardInterrupt, TidemillError) as error:
        if _is_harmless(error):
            total.unanswered = 0
        so_far = f"stopped early: {total.count} {verb}"
        if total.unanswered:
            warn("; ".join([f"{so_far} for certain, up to {total.unanswered} more may have been", *ends()]))
        elif total.response is not None:
            warn("; ".join([f"{so_far} so far", *ends()]))
        raise


@contextmanager
def fall_back_to_stderr(lines: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Print *lines*, a summary of the changes, on stderr if stdout cannot be written."""
    try:
        yield
        flush()
    except (OutputError, BrokenPipeError):
        for line in lines():
            warn(line)
        raise


def hint_to_continue(selection: Selection) -> str:
    """Return a hint to the command that processes the rest."""
    return CONTINUE_HINT if selection.limit is None else f"{CONTINUE_HINT}; --limit counts from 0 again"


def _is_harmless(error: BaseException) -> bool:
    """Return whether a call that ended with *error* certainly changed nothing."""
    if isinstance(error, RefusedByFunctionError):
        return error.code in _HARMLESS_CODES
    return isinstance(error, (TaskNotFoundError, InvalidRequestError, *_FATAL_ERRORS))
