"""A process that is a container of every function: it does what it is told on its standard input, a line each.

Its standard output and error are the log, as CloudWatch would have it; answers go where standard output went at first.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any, Final

from tests.handlers.calls import FUNCTIONS, app
from tests.handlers.warm import cool_down
from tidemill.cli import main as command
from tidemill.testing import FakeContext

LOG: Final = "log"
TERMINAL: Final = "terminal"


def main() -> None:
    """Obey until nothing more is said."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    _print_into(LOG)
    for line in sys.stdin:
        answers.write(json.dumps(_obeyed(json.loads(line))) + "\n")
        answers.flush()


def _obeyed(order: dict[str, Any]) -> dict[str, Any]:
    match order:
        case {"environment": given}:
            return _start_cold(given)
        case {"command": arguments}:
            return _commanded(arguments)
        case _:
            return _called(order["function"], order["event"])


def _called(function: str, event: Any) -> dict[str, Any]:
    """Call a handler; what it raises is told as Lambda tells it, which writes that into the log."""
    try:
        return {"returned": app(function).lambda_handler(event, FakeContext())}
    except Exception as error:  # noqa: BLE001 - whatever it is
        print(json.dumps({"errorType": type(error).__name__, "errorMessage": str(error)}), flush=True)
        return {"raised": type(error).__name__}


def _commanded(arguments: list[str]) -> dict[str, Any]:
    sys.stdout.flush()
    _print_into(TERMINAL)
    try:
        return {"status": command(arguments)}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        _print_into(LOG)


def _start_cold(environment: dict[str, str]) -> dict[str, Any]:
    """Take on *environment*, as the first call of a new container would; where it debugs, every logger says all."""
    os.environ.update(environment)
    cool_down()
    if os.environ["POWERTOOLS_DEBUG"] == "true":
        _listen_to_all()
    return {}


def _listen_to_all() -> None:
    for function in FUNCTIONS:
        app(function).logger._logger.setLevel(logging.DEBUG)
    logging.basicConfig(stream=sys.stderr, level=logging.DEBUG)
    logging.getLogger().setLevel(logging.DEBUG)


def _print_into(name: str) -> None:
    stream = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.close(stream)
