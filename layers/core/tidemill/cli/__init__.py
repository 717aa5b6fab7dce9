"""The command line: operate a deployment on a MongoDB URI, look up presets, run simulations and a worker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from tidemill.cli import output
from tidemill.errors import TidemillError
from tidemill.text import describe_missing_extra

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
"""Exit statuses that a shell reports for a process ended by SIGINT or SIGPIPE."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    0: done. 1: failed; stderr has the reason in one sentence. 2: wrong usage; stderr has the usage.
    130: interrupted. 141: the reader of stdout closed the pipe.
    """
    try:
        return _report_failure(sys.argv[1:] if words is None else words)
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


def _report_failure(words: Sequence[str]) -> int:
    try:
        from tidemill.cli.commands import run_command  # noqa: PLC0415 - it needs click, which may be missing

        status = run_command(words)
        output.flush()
    except TidemillError as error:
        output.warn(str(error))
        return 1
    except ModuleNotFoundError as error:
        sentence = describe_missing_extra("this command", error.name)
        if sentence is None:
            raise
        output.warn(sentence)
        return 1
    return status
