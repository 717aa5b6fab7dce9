"""Operations on many dead letters: their options, the calls page by page, progress, and the sum of all answers."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from tidemill.admin.requests import MAX_DEAD_LETTERS
from tidemill.aws.launcher import NotInvokedError
from tidemill.cli.operations import Document, RefusedByFunctionError, call_operation
from tidemill.cli.output import OutputError, flush
from tidemill.cli.signals import warn
from tidemill.errors import InvalidRequestError, SettingsError, TaskNotFoundError, TidemillError
from tidemill.text import iso_timestamp

ID_HELP: Final = "task id as `dlq ls` shows it, or as JSON; put an id that begins with - last, after --"

_TEXTS: Final = ("fingerprint", "name", "queue")
_TIMES: Final = ("since", "until")
_UNITS: Final = {
    "s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)
}  # fmt: skip


def add_filters_to(parser: argparse.ArgumentParser) -> None:
    """Add the filters of dead letters."""
    parser.add_argument("--fingerprint", metavar="F", help="only this group, as `dlq ls` shows it")
    parser.add_argument("--name", metavar="NAME", help="only this task function")
    parser.add_argument("--queue", metavar="QUEUE", help="only this queue")
    times = "30m, 6h or 7d ago, or a UTC time like 2026-07-01T09:00"
    parser.add_argument(
        "--since", type=_parse_time, metavar="TIME", help=f"moved to the dead letters at or after TIME: {times}"
    )
    parser.add_argument("--until", type=_parse_time, metavar="TIME", help="moved to the dead letters before TIME")


def add_selection_to(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the dead letters of an operation."""
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help=f"{ID_HELP}; selects the newest open dead letter of the task"
    )
    add_filters_to(parser)
    parser.add_argument(
        "--redrives", type=parse_count, metavar="N", help="with one ID: its dead letter after N redrives"
    )
    parser.add_argument("--all", action="store_true", help="select all dead letters; required without IDs and filters")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen, and change nothing")
    parser.add_argument("--limit", type=_parse_positive, metavar="N", help="at most N dead letters, oldest first")


def read_filters(arguments: argparse.Namespace) -> Document:
    """Return the filters in *arguments*, as fields of an operation."""
    texts = {name: getattr(arguments, name) for name in _TEXTS}
    times = {name: iso_timestamp(getattr(arguments, name)) for name in _TIMES}
    return {name: value for name, value in (texts | times).items() if value is not None}


def build_selections(arguments: argparse.Namespace, *, refuse: Callable[[str], object]) -> list[Document]:
    """Return the fields of each operation that the selection in *arguments* needs.

    A missing or contradictory selection is reported by *refuse*, which does not return.
    """
    filters = read_filters(arguments)
    if not (arguments.ids or filters or arguments.all):
        refuse("select dead letters: by ID, by --fingerprint, --name, --queue, --since or --until, or --all")
    if bool(arguments.ids) + bool(filters) + arguments.all > 1:
        refuse("IDs, filters and --all exclude each other")
    if arguments.redrives is not None and len(arguments.ids) != 1:
        refuse("--redrives needs exactly one ID")
    number = {} if arguments.redrives is None else {"redrives": arguments.redrives}
    if arguments.ids:
        return [{"id": task_id, **number} for task_id in dict.fromkeys(arguments.ids)]
    return [filters or {"all": True}]


def _parse_time(text: str) -> datetime:
    with suppress(ValueError, OverflowError):
        if ago := re.fullmatch("([0-9]{1,5})([smhd])", text):
            return datetime.now(UTC) - int(ago[1]) * _UNITS[ago[2]]
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    raise argparse.ArgumentTypeError("must be like 30m, 6h or 7d, or a time like 2026-07-01T09:00")


def parse_count(text: str) -> int:
    """Return *text* as a whole number."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError("must be a whole number")
    return int(text)


def _parse_positive(text: str) -> int:
    number = parse_count(text)
    if not number:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


Step: TypeAlias = Callable[[int], None]
"""Function that adds a number of dead letters to the progress."""


def is_stderr_terminal() -> bool:
    """Return whether stderr is a terminal, which can show a progress bar."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def show_progress(words: str, *, total: int | None) -> Iterator[Step]:
    """Show a progress bar up to *total*, which is ``None`` if unknown."""
    try:
        from rich.console import Console  # noqa: PLC0415 - all but the bar works without the extra `cli`
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    except ModuleNotFoundError:
        yield _show_nothing
        return
    if not is_stderr_terminal():
        yield _show_nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done: bar.advance(task, done)


def _show_nothing(_: int) -> None:
    """Do nothing: there is no progress bar."""


MAX_EXAMPLES: Final = 20
CONTINUE_HINT: Final = "run the same command to continue"
_FATAL_ERRORS: Final = (SettingsError, NotInvokedError)
"""Errors that every later call would meet, too."""

_HARMLESS_CODES: Final = ("not_found", "not_allowed", "invalid_event")
"""Error codes of the function for calls that changed nothing."""


class Answers:
    """Sum of the answers to all pages so far, with the fields of an answer.

    Attributes:
        count_field: The field that counts the changed dead letters.
        failed: Number of refused events.
        unanswered: Upper bound of dead letters that may have been changed by the unanswered call.
        began_at: Time of the first answer.
    """

    def __init__(self, count_field: str) -> None:
        self.count_field = count_field
        self.document: Document = {}
        self.failed = 0
        self.unanswered = 0
        self.began_at: str | None = None

    @property
    def count(self) -> int:
        """Number of changed dead letters."""
        return int(self.document.get(self.count_field, 0))

    def add(self, answer: Document) -> None:
        """Add *answer*: sum up numbers and counts, collect examples, replace every other field."""
        before, self.unanswered = self.document, 0
        self.began_at = self.began_at or answer["now"]
        self.document = answer | {name: _add_up(before[name], answer.get(name)) for name in before}


def run_pages(
    arguments: argparse.Namespace, events: Sequence[Document], answers: Answers, *, limit: int | None, step: Step
) -> None:
    """Call each of *events* until nothing is left of it, or *limit* dead letters are changed.

    If one of several events is refused, the remaining events are still called.

    Raises:
        TidemillError: The only event was refused, or a call got no answer.
    """
    for event in events:
        try:
            _run(arguments, event, answers, limit=limit, step=step)
        except TidemillError as error:
            if len(events) == 1 or not _is_harmless(error) or isinstance(error, _FATAL_ERRORS):
                raise
            warn(str(error))
            answers.failed, answers.unanswered = answers.failed + 1, 0


@contextmanager
def report_partial_result(
    answers: Answers, verb: str, *, ends: Callable[[], Sequence[str]] = lambda: [CONTINUE_HINT]
) -> Iterator[None]:
    """On an error report the changes so far, certain and possible, and the sentences of *ends* about the rest."""
    try:
        yield
    except (KeyboardInterrupt, TidemillError) as error:
        if _is_harmless(error):
            answers.unanswered = 0
        so_far = f"stopped early: {answers.count} {verb}"
        if answers.unanswered:
            warn("; ".join([f"{so_far} for certain, up to {answers.unanswered} more may have been", *ends()]))
        elif answers.document:
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


def hint_to_continue(arguments: argparse.Namespace) -> str:
    """Return a hint to the command that processes the rest."""
    return CONTINUE_HINT if arguments.limit is None else f"{CONTINUE_HINT}; --limit counts from 0 again"


def _is_harmless(error: BaseException) -> bool:
    """Return whether a call that ended with *error* certainly changed nothing."""
    if isinstance(error, RefusedByFunctionError):
        return error.code in _HARMLESS_CODES
    return isinstance(error, (TaskNotFoundError, InvalidRequestError, *_FATAL_ERRORS))


def _run(arguments: argparse.Namespace, event: Document, answers: Answers, *, limit: int | None, step: Step) -> None:
    position: Document = {}
    while limit is None or answers.count < limit:
        page_limit = MAX_DEAD_LETTERS if limit is None else min(limit - answers.count, MAX_DEAD_LETTERS)
        answers.unanswered = 1 if "id" in event else page_limit
        answer = call_operation(arguments, event | {"limit": page_limit} | position)
        answers.add(answer)
        step(answer[answers.count_field])
        if answer["next"] is None:
            return
        position = {"cursor": answer["next"]}


def _add_up(total: object, value: object) -> object:
    match total, value:
        case bool(), _:
            return value
        case int(), int():
            return total + value
        case dict(), dict():
            return _add_counts(total, value)
        case list(), list():
            return [*total, *value][:MAX_EXAMPLES]
    return value


def _add_counts(total: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    return {name: total.get(name, 0) + counts.get(name, 0) for name in {**total, **counts}}
