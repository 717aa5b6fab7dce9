"""The command line: operate a deployment on a MongoDB URI, look up presets, run simulations and a worker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from tidemill.cli import dlq, operations, output, policies, signals, tasks, work
from tidemill.errors import TidemillError

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
"""Exit statuses that a shell reports for a process ended by SIGINT or SIGPIPE."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    0: done. 1: failed; stderr has the reason in one sentence. 2: wrong usage; stderr has the usage.
    130: interrupted. 141: the reader of stdout closed the pipe.
    """
    try:
        return _report_failure(words)
    except BrokenPipeError:
        output.close_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt as interrupt:
        _drop_frames(interrupt)
        return INTERRUPTED


def _drop_frames(error: BaseException | None) -> None:
    """Release the frames of *error* silently: half-built objects of the driver fail when they are finalized."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        while error is not None:
            error.__traceback__, error = None, error.__context__
    finally:
        sys.unraisablehook = hook


def _report_failure(words: Sequence[str] | None) -> int:
    try:
        status = _dispatch(words)
        output.flush()
    except TidemillError as error:
        signals.warn(str(error))
        return 1
    return status


def _dispatch(words: Sequence[str] | None) -> int:
    try:
        arguments = _parse(sys.argv[1:] if words is None else words)
        command: Callable[[argparse.Namespace], None] = arguments.command
        command(arguments)
    except SystemExit as error:  # argparse has printed its message
        return int(error.code or 0)
    return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = _build_parser()
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        parser.error("the arguments must be UTF-8")
    return parser.parse_args(words)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemill",
        description="Operate a Tidemill queue. MONGODB_URI, MONGODB_DATABASE and TIDEMILL_PREFIX name its collections.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    tasks.add_to(commands)
    dlq.add_to(commands)
    policies.add_to(commands)
    _add_simulate_to(commands)
    work.add_to(commands)
    operations.add_to(commands)
    return parser


def _add_simulate_to(commands: output.Commands) -> None:
    try:
        from tidemill.cli import simulate  # noqa: PLC0415 - it cannot be imported without the extra `cli`
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        parser = commands.add_parser("simulate", help=f"needs the package rich: {output.INSTALL}", add_help=False)
        parser.add_argument("rest", nargs=argparse.REMAINDER)
        parser.set_defaults(command=_refuse_without_rich)
    else:
        simulate.add_to(commands)


def _refuse_without_rich(_: argparse.Namespace) -> None:
    raise output.MissingExtraError
