"""The command line: what an operator does by hand on a MongoDB URI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pymongo
from pymongo.database import Database

from tidemill import bootstrap, control, indexes
from tidemill.clock import ServerClock
from tidemill.errors import TidemillError
from tidemill.store import translated

PATIENCE_SEC = 4.0
"""How long a command waits for a MongoDB that does not answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 failed with one sentence, 2 not understood."""
    chosen = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = chosen.command
    try:
        command(chosen)
    except TidemillError as error:
        print(f"tidemill: {error}", file=sys.stderr)  # noqa: T201 - that is how a command speaks
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemill",
        description="Operate a Tidemill queue. MONGODB_URI and MONGODB_DATABASE say where it is.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    making = commands.add_parser("indexes", help="make the indexes that are missing, at any size")
    making.set_defaults(command=_make_indexes)
    declaring = commands.add_parser("declare", help="let HTTP enqueue into a queue")
    declaring.add_argument("queue", help="its name: letters, digits, _ . and -")
    declaring.set_defaults(command=_declare)
    return parser


def _make_indexes(_: argparse.Namespace) -> None:
    db = _database()
    retention = bootstrap.chosen().retention
    with translated():
        lacking = indexes.missing(db)
        with pymongo.timeout(None):  # on millions of tasks it takes as long as it takes
            for index in lacking:
                _say(f"making {index.name} of {index.collection}")
                indexes.create(db, (index,), retention=retention)
            indexes.create(db, retention=retention)
    _say(f"{len(indexes.INDEXES)} indexes are there, {len(lacking)} of them new")


def _declare(chosen: argparse.Namespace) -> None:
    db = _database()
    control.declare_queue(db, chosen.queue, now=ServerClock(db).now())
    _say(f"queue {chosen.queue} is declared")


def _database() -> Database[Any]:
    return bootstrap.database("cli", timeout_sec=PATIENCE_SEC)


def _say(text: str) -> None:
    print(text)  # noqa: T201 - that is how a command speaks
