"""Has an operation carried out, here or by the operate function, which answer the same."""

from __future__ import annotations

import argparse
import re
from typing import Any, TypeAlias

from tidemill import aws, bootstrap
from tidemill.cli.database import database
from tidemill.cli.tables import Commands, say_json
from tidemill.cli.watch import complain
from tidemill.clock import ServerClock
from tidemill.errors import InvalidRequestError, Problem, TidemillError
from tidemill.operations import Desk, operate, read

Document: TypeAlias = dict[str, Any]
"""JSON."""


class RefusedByFunctionError(TidemillError):
    """The operate function did not do what it was asked for, and says why, also with a word: ``code``."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def add_action(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    """Add one operation, which may be asked of a function, and whose answer may be printed as it is."""
    parser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    add_function_to(parser, default=argparse.SUPPRESS)
    return parser


def add_function_to(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Let the function be named before or behind the operation."""
    parser.add_argument(
        "--function",
        type=_function,
        default=default,
        metavar="NAME",
        help="ask the operate function of this name or ARN; without it: MONGODB_URI and MONGODB_DATABASE",
    )


def _function(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_:$.-]+", text):
        raise argparse.ArgumentTypeError("must be the name or the ARN of a function")
    return text


def answered(chosen: argparse.Namespace, event: Document) -> Document:
    """Return the answer to *event*; what an operator should know beside it is said on stderr.

    Raises:
        TidemillError: There is none; the message says why, wherever it was asked for.
    """
    request = read(event)
    answer = operate(request, _desk()) if chosen.function is None else _asked(chosen.function, event)
    for warning in answer.get("warnings", ()):
        complain(str(warning))
    return answer


def all_of(chosen: argparse.Namespace, event: Document, field: str) -> Document:
    """Return one answer with the *field* of all pages.

    Raises:
        TidemillError: One of them was not answered.
    """
    answer = answered(chosen, event)
    found, is_truncated = list(answer[field]), "truncated" in answer
    while answer.get("next") is not None:
        answer = answered(chosen, event | {"cursor": answer["next"]})
        found, is_truncated = found + answer[field], is_truncated or "truncated" in answer
    return answer | {field: found} | ({"truncated": True} if is_truncated else {})


def said(chosen: argparse.Namespace, answer: Document) -> bool:
    """Print *answer* where JSON was asked for, and tell whether it was."""
    if chosen.json:
        say_json(answer)
    elif answer.get("truncated"):
        complain("the answer was too large: a part of it is left out")
    return bool(chosen.json)


def _desk() -> Desk:
    db = database()
    return Desk(db=db, clock=ServerClock(db), retry=bootstrap.chosen().retry, put=bootstrap.put())


def _asked(function: str, event: Document) -> Document:
    answer = aws.invoked(function, event)
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        raise _refusal(answer["error"])
    if not isinstance(answer, dict) or not {"database", "now"} <= answer.keys():
        raise aws.InvokeError(f"{function} answers something else: is it the operate function?")
    return answer


def _refusal(error: Document) -> TidemillError:
    details = error.get("details")
    problems = [
        Problem(str(one.get("field")), str(one.get("message")))
        for one in (details if isinstance(details, list) else [])
        if isinstance(one, dict)
    ]
    if problems:
        return InvalidRequestError(problems)
    return RefusedByFunctionError(str(error.get("message")), code=str(error.get("code")))
