"""Database of a command, the command ``indexes``, and calls of operations: in this process or by the operate function.

Both ways give the same answers.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

import pymongo
from pymongo.database import Database

from tidemill import indexes
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.admin.requests import MAX_LIMIT
from tidemill.aws import launcher
from tidemill.bootstrap import deployment
from tidemill.cli.output import Commands, print_json, print_text
from tidemill.cli.signals import warn
from tidemill.clock import ServerClock
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import InvalidRequestError, Problem, SettingsError, TidemillError
from tidemill.settings import from_environment
from tidemill.store.connection import translate_errors
from tidemill.store.mark import refuse_foreign
from tidemill.text import format_duration

MAX_PAGES: Final = 10
"""Bound of the pages read by one command: a page may examine many documents without a match."""

MAX_ROWS: Final = MAX_PAGES * MAX_LIMIT
"""Upper limit of ``--limit``."""


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


def open_marked_database() -> Database[Any]:
    """Return the same database with the mark of ownership, for a command that creates indexes.

    Raises:
        SettingsError: As in `open_database`.
        UnavailableError: MongoDB did not answer.
    """
    return deployment().database("cli")


_RETAINED: Final = {"tasks": "done and cancelled tasks", "dead_letters": "dead letters that may be removed"}
_VARIABLES: Final = {"tasks": "RETENTION_DAYS", "dead_letters": "DEAD_LETTER_RETENTION_DAYS"}


def add_to(commands: Commands) -> None:
    """Add ``indexes``."""
    parser = commands.add_parser("indexes", help="create missing indexes, in collections of any size")
    parser.add_argument(
        "--retention-days",
        type=_parse_days,
        metavar="N",
        help="change the retention of done and cancelled tasks; a shorter one removes some at once",
    )
    parser.add_argument(
        "--dead-letter-retention-days",
        type=_parse_days,
        metavar="N",
        help="change the retention of exported dead letters, or of all with EXPIRE_UNEXPORTED",
    )
    parser.set_defaults(command=_create_indexes)


def _parse_days(text: str) -> timedelta:
    try:
        return from_environment({"RETENTION_DAYS": text}).retention.tasks
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("RETENTION_DAYS ")) from None


def _create_indexes(arguments: argparse.Namespace) -> None:
    # This shell's variables may differ from the deployment's: they apply to new indexes and change no existing index.
    db = open_marked_database()
    options = {"tasks": arguments.retention_days, "dead_letters": arguments.dead_letter_retention_days}
    changes = {name: value for name, value in options.items() if value is not None}
    retention = replace(deployment().settings.retention, **changes)
    with translate_errors():
        missing = indexes.find_missing(db)
        with pymongo.timeout(None):  # an index of millions of tasks takes minutes
            for index in missing:
                lifetime = format_duration(timedelta(seconds=index.seconds(retention))) if index.expires else ""
                print_text(
                    f"creating {index.name} of {index.collection}{lifetime and f', entries kept for {lifetime}'}"
                )
                indexes.create(db, (index,), retention=retention)
            for name, value in changes.items():
                indexes.create(db, _select_indexes(name), retention=retention)
                kept = f"{_RETAINED[name]} are kept for {format_duration(value)}"
                print_text(f"{kept}, until reclaim sets its {_VARIABLES[name]}")
    print_text(f"{len(indexes.INDEXES)} indexes exist, {len(missing)} of them new")


def _select_indexes(name: str) -> tuple[indexes.Index, ...]:
    return tuple(index for index in indexes.INDEXES if (index.collection == DEAD_LETTERS) == (name == "dead_letters"))


Document: TypeAlias = dict[str, Any]
"""A JSON object."""


class RefusedByFunctionError(TidemillError):
    """The operate function refused an operation; ``code`` is the code of its error."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def add_action(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    """Add a command for one operation, with ``--json`` and ``--function``."""
    parser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    add_function_to(parser, default=argparse.SUPPRESS)
    return parser


def add_function_to(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Add ``--function``, which may stand before or after the name of the operation."""
    parser.add_argument(
        "--function",
        type=_parse_function,
        default=default,
        metavar="NAME",
        help="name or ARN of the operate function to call; default: connect to MONGODB_URI",
    )


def _parse_function(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_:$.-]+", text):
        raise argparse.ArgumentTypeError("must be the name or the ARN of a function")
    return text


def call_operation(arguments: argparse.Namespace, event: Document) -> Document:
    """Return the answer to *event*; print its warnings on stderr.

    Raises:
        TidemillError: The operation failed, in this process or in the function.
    """
    request = read_operation(event)
    answer = (
        operate(request, _connect()).document() if arguments.function is None else _invoke(arguments.function, event)
    )
    for warning in answer.get("warnings", ()):
        warn(str(warning))
    return answer


def call_all_pages(arguments: argparse.Namespace, event: Document, field: str) -> Document:
    """Return one answer with the *field* of all pages joined.

    Raises:
        TidemillError: The call for a page failed.
    """
    answer = call_operation(arguments, event)
    rows, is_truncated = list(answer[field]), "truncated" in answer
    while answer.get("next") is not None:
        answer = call_operation(arguments, event | {"cursor": answer["next"]})
        rows, is_truncated = rows + answer[field], is_truncated or "truncated" in answer
    return answer | {field: rows} | ({"truncated": True} if is_truncated else {})


def add_limit_to(parser: argparse.ArgumentParser) -> None:
    """Add ``--limit`` and ``--cursor``, which `call_pages` obeys."""
    parser.add_argument(
        "--limit", type=_parse_limit, default=20, metavar="N", help=f"list at most N, up to {MAX_ROWS}; default: 20"
    )
    parser.add_argument("--cursor", metavar="CURSOR", help="continue an earlier list")


def _parse_limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MAX_ROWS}")
    return int(text)


def call_pages(arguments: argparse.Namespace, event: Document, field: str) -> Document:
    """Return one answer with the *field* of several pages, from ``--cursor`` and up to ``--limit``."""
    position = {} if arguments.cursor is None else {"cursor": arguments.cursor}
    answer: Document = {}
    rows: list[Document] = []
    for _ in range(MAX_PAGES):
        answer = call_operation(arguments, event | position | {"limit": min(MAX_LIMIT, arguments.limit - len(rows))})
        rows += answer[field]
        if answer["next"] is None or len(rows) >= arguments.limit:
            break
        position = {"cursor": answer["next"]}
    return answer | {field: rows}


def print_json_if_asked(arguments: argparse.Namespace, answer: Document) -> bool:
    """Return whether ``--json`` was given, after printing *answer* as JSON in that case."""
    if arguments.json:
        print_json(answer)
    elif answer.get("truncated"):
        warn("the answer was too large: a part of it is left out")
    return bool(arguments.json)


def _connect() -> AdminContext:
    db = open_database()
    return AdminContext(db=db, clock=ServerClock(db), retry=deployment().settings.retry, put=deployment().put)


def _invoke(function: str, event: Document) -> Document:
    answer = launcher.invoke_function(function, event)
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        raise _decode_error(answer["error"])
    if not isinstance(answer, dict) or not {"database", "now"} <= answer.keys():
        raise launcher.InvokeError(f"unexpected answer from {function}: is it the operate function?")
    return answer


def _decode_error(error: Document) -> TidemillError:
    details = error.get("details")
    problems = [
        Problem(str(detail.get("field")), str(detail.get("message")))
        for detail in (details if isinstance(details, list) else [])
        if isinstance(detail, dict)
    ]
    if problems:
        return InvalidRequestError(problems)
    return RefusedByFunctionError(str(error.get("message")), code=str(error.get("code")))
