"""Database of a command, the command ``indexes``, and calls of operations: in this process or by the operate function.

Both ways give the same responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast

import click
import pymongo
from click import option
from pydantic import ValidationError
from pymongo.database import Database

from tidemill import indexes
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.admin.requests import MAX_LIMIT
from tidemill.admin.responses import Page, Response
from tidemill.aws import lambda_functions
from tidemill.bootstrap import deployment
from tidemill.cli.commands import Command, is_json_wanted, parse_setting, parse_whole, read_function
from tidemill.cli.output import MAX_ID, clean, print_json, print_text, shorten, warn
from tidemill.clock import ServerClock
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import CredentialsError, InvalidRequestError, Problem, RefusedError, TidemillError
from tidemill.store.connection import translate_errors
from tidemill.store.index_obstacles import explain_obstacles
from tidemill.store.mark import refuse_foreign
from tidemill.text import format_duration

Event: TypeAlias = dict[str, Any]
"""Request of an operation, in plain JSON types."""

_ResponseT = TypeVar("_ResponseT", bound=Response)
_PageT = TypeVar("_PageT", bound=Page)

MAX_PAGES: Final = 10
"""Bound of the pages read by one command: a page may examine many documents without a match."""

MAX_ROWS: Final = MAX_PAGES * MAX_LIMIT
"""Upper limit of ``--limit``."""

_SEARCH_TIMEOUT_SEC: Final = 300.0
"""Limit of the search for documents that stand against an index, also in a large collection."""


def open_database() -> Database[Any]:
    """Return the database that MONGODB_URI, MONGODB_DATABASE and TIDEMILL_PREFIX name.

    Writes no mark of ownership, so that a mistyped name creates no database.

    Raises:
        SettingsError: The settings are missing or invalid, or the collections belong to another program.
        UnavailableError: MongoDB did not answer.
    """
    db = deployment().connect("cli")
    refuse_foreign(db, adopts=deployment().settings.adopt_as is not None)
    return db


_RETENTION: Final = parse_setting("RETENTION_DAYS", lambda settings: settings.retention.tasks)
_RETAINED: Final = {
    "tasks": ("done and cancelled tasks", "RETENTION_DAYS"),
    "dead_letters": ("dead letters that may be removed", "DEAD_LETTER_RETENTION_DAYS"),
}
"""Documents that expire, and the variable of their retention."""


@click.command(
    "indexes",
    cls=Command,
    help="Create missing indexes, in collections of any size.",
    example="tidemill indexes --retention-days 14",
)
@option(
    "--retention-days",
    "tasks",
    type=_RETENTION,
    metavar="N",
    help="Change the retention of done and cancelled tasks; a shorter one removes some at once.",
)
@option(
    "--dead-letter-retention-days",
    "dead_letters",
    type=_RETENTION,
    metavar="N",
    help="Change the retention of exported dead letters, or of all with EXPIRE_UNEXPORTED.",
)
def create_indexes(**options: timedelta | None) -> None:
    """Create missing indexes, and change the retention where *options* say so."""
    # This shell's variables may differ from the deployment's: they apply to new indexes and change no existing index.
    db = deployment().database("cli")
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    retention = replace(deployment().settings.retention, **changes)
    refusals: list[RefusedError] = []
    with translate_errors():
        missing = indexes.find_missing(db)
        with pymongo.timeout(None):  # an index of millions of tasks takes minutes
            for index in missing:
                lifetime = format_duration(timedelta(seconds=index.seconds(retention))) if index.expires else ""
                print_text(
                    f"creating {index.name} of {index.collection}{lifetime and f', entries kept for {lifetime}'}"
                )
                refusals += _create_index(db, index, retention)
            for name, value in changes.items():
                is_of_dead = name == "dead_letters"
                changed = tuple(index for index in indexes.INDEXES if (index.collection == DEAD_LETTERS) == is_of_dead)
                indexes.create(db, changed, retention=retention)
                retained, variable = _RETAINED[name]
                print_text(f"{retained} are kept for {format_duration(value)}, until reclaim sets its {variable}")
    if refusals:
        raise RefusedError(refusals[0].code, "; ".join(map(str, refusals)))
    print_text(f"{len(indexes.INDEXES)} indexes exist, {len(missing)} of them new")


def _create_index(db: Database[Any], index: indexes.Index, retention: indexes.Retention) -> list[RefusedError]:
    """Create *index*; return the refusal if MongoDB refuses it, so that the other indexes are still made."""
    try:
        with translate_errors():
            indexes.create(db, (index,), retention=retention)
    except CredentialsError:
        raise
    except RefusedError as error:
        obstacles = explain_obstacles(db, (index,), timeout_sec=_SEARCH_TIMEOUT_SEC)
        sentence = obstacles[0] if obstacles else f"{index.name} of {index.collection}: {error}"
        return [RefusedError(error.code, sentence)]
    return []


class RefusedByFunctionError(TidemillError):
    """The operate function refused an operation; ``code`` is the code of its error."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def call_operation(event: Event, kind: type[_ResponseT]) -> _ResponseT:
    """Return the response to *event*, of the *kind* that its operation has; print its warnings on stderr.

    Raises:
        TidemillError: The operation failed, in this process or in the function.
    """
    request, function = read_operation(event), read_function()
    response = cast("_ResponseT", operate(request, _connect())) if function is None else _invoke(function, event, kind)
    for warning in response.warnings:
        warn(warning)
    return response


def call_pages(event: Event, kind: type[_PageT], *, limit: int | None = None, cursor: str | None = None) -> _PageT:
    """Return one response with the rows of several pages: up to *limit* in `MAX_PAGES` calls, or all without a limit.

    Raises:
        TidemillError: The call for a page failed.
    """
    page = call_operation(_build_page_event(event, limit=limit, cursor=cursor), kind)
    calls = 1
    while page.next is not None and (limit is None or (page.row_count < limit and calls < MAX_PAGES)):
        left = None if limit is None else limit - page.row_count
        page = page.merge(call_operation(_build_page_event(event, limit=left, cursor=page.next), kind))
        calls += 1
    return page


def _build_page_event(event: Event, *, limit: int | None, cursor: str | None) -> Event:
    size = {} if limit is None else {"limit": min(MAX_LIMIT, limit)}
    return event | size | ({} if cursor is None else {"cursor": cursor})


ID_HELP: Final = "ID is an ObjectId, a text or a number. Put an ID that begins with - last, after --."


PAGING_OPTIONS: Final = (
    option(
        "--limit",
        type=parse_whole(1, MAX_ROWS),
        default="20",
        metavar="N",
        help=f"List at most N, up to {MAX_ROWS}. Default: 20.",
    ),
    option("--cursor", metavar="CURSOR", help="Continue an earlier list."),
)
"""Options for `call_pages`."""


def print_answer(event: Event, kind: type[_ResponseT], describe: Callable[[_ResponseT], str]) -> None:
    """Call *event* and print its response: as JSON if that is asked for, else in the words of *describe*.

    Raises:
        TidemillError: The operation failed, in this process or in the function.
    """
    response = call_operation(event, kind)
    if not print_json_if_asked(response):
        print_text(describe(response))


def print_rows(page: _PageT, ids: Sequence[str], format_rows: Callable[[_PageT], str], *, nothing: str) -> None:
    """Print the rows of *page*, or *nothing* if there are none, and the option that continues the list.

    A note follows the rows if one of their *ids* is cut on this terminal.
    """
    if print_json_if_asked(page):
        return
    if ids:
        print_text(format_rows(page))
    elif page.next is None:
        print_text(f"{nothing} in {page.database}")
    if any(shorten(clean(text), MAX_ID) != clean(text) for text in ids):
        print_text("\nlong ids are cut: --json prints whole ids")
    if page.next is not None:
        state = "there are more" if ids else "no match so far"
        print_text(f"\n{state}: continue with the same options and --cursor {page.next}")


def print_json_if_asked(response: Response) -> bool:
    """Return whether ``--json`` was given, after printing *response* as JSON in that case."""
    if is_json_wanted():
        print_json(response.document())
    elif response.truncated:
        warn("the answer was too large: a part of it is left out")
    return is_json_wanted()


def _connect() -> AdminContext:
    db = open_database()
    return AdminContext(db=db, clock=ServerClock(db), retry=deployment().settings.retry, put=deployment().put)


def _invoke(function: str, event: Event, kind: type[_ResponseT]) -> _ResponseT:
    answer = lambda_functions.invoke_function(function, event)
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        raise _decode_error(answer["error"])
    unexpected = lambda_functions.InvokeError(f"unexpected answer from {function}: is it the operate function?")
    if not isinstance(answer, dict) or not {"database", "now"} <= answer.keys():
        raise unexpected
    try:
        return kind.model_validate(answer)
    except ValidationError:
        raise unexpected from None


def _decode_error(error: Event) -> TidemillError:
    details = error.get("details")
    problems = [
        Problem(str(detail.get("field")), str(detail.get("message")))
        for detail in (details if isinstance(details, list) else [])
        if isinstance(detail, dict)
    ]
    if problems:
        return InvalidRequestError(problems)
    return RefusedByFunctionError(str(error.get("message")), code=str(error.get("code")))
