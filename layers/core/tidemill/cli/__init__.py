"""The command line: what an operator does by hand on a MongoDB URI, and what a developer looks up without one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from tidemill.cli import dlq, indexes, ops, policies, tables, watch, work
from tidemill.errors import TidemillError

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
"""As a shell reports a process that died of SIGINT or SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    0: done. 1: failed, with one sentence on stderr. 2: not understood, with the usage on stderr. 130: interrupted.
    141: whoever read the output stopped reading.
    """
    try:
        return _run(arguments)
    except BrokenPipeError:
        tables.forsake_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    try:
        status = _obey(arguments)
        tables.flush()
    except TidemillError as error:
        watch.complain(str(error))
        return 1
    return status


def _obey(arguments: Sequence[str] | None) -> int:
    try:
        chosen = _chosen(sys.argv[1:] if arguments is None else arguments)
        command: Callable[[argparse.Namespace], None] = chosen.command
        command(chosen)
    except SystemExit as ended:  # argparse has printed what there is to say
        return int(ended.code or 0)
    return 0


def _chosen(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    try:
        "".join(arguments).encode()
    except UnicodeEncodeError:
        parser.error("the arguments must be UTF-8")
    return parser.parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemill",
        description="Operate a Tidemill queue. MONGODB_URI and MONGODB_DATABASE say where it is.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ops.add_to(commands)
    dlq.add_to(commands)
    policies.add_to(commands)
    _add_simulate_to(commands)
    work.add_to(commands)
    indexes.add_to(commands)
    return parser


def _add_simulate_to(commands: tables.Commands) -> None:
    try:
        from tidemill.cli import simulate  # noqa: PLC0415 - it cannot be imported without the extra `cli`
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        refusing = commands.add_parser("simulate", help=f"needs {tables.INSTALL}", add_help=False)
        refusing.add_argument("rest", nargs=argparse.REMAINDER)
        refusing.set_defaults(command=_refuse_without_rich)
    else:
        simulate.add_to(commands)


def _refuse_without_rich(_: argparse.Namespace) -> None:
    raise tables.MissingExtraError
