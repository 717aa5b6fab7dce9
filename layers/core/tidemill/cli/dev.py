"""``tidemill dev``: MongoDB, an executor, sweeps and the HTTP API in one command, with the tasks of this folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click import option

from tidemill.cli.commands import Command, parse_setting, parse_text, parse_whole
from tidemill.errors import TidemillError


@click.command(
    "dev",
    cls=Command,
    help="Run everything on this machine: MongoDB, your tasks, the HTTP API.",
    note=(
        "Without MONGODB_URI it starts a MongoDB of its own, whose data stay in .tidemill. After a change of a Python "
        "file the next tasks run with the new code."
    ),
    example="tidemill dev --port 8001",
)
@option(
    "--tasks",
    "package",
    type=parse_setting("TASK_PACKAGE", lambda settings: settings.task_package),
    metavar="PACKAGE",
    help="Package of task modules in the current directory. Default: TASK_PACKAGE, or tasks.",
)
@option("--port", type=parse_whole(0, 65535), default="8000", metavar="N", help="Port of the HTTP API. Default: 8000.")
@option(
    "--bind",
    "host",
    type=parse_text(r"[0-9.]+", "must be an IPv4 address of this machine"),
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address to listen on; 0.0.0.0 for all, without a password. Default: 127.0.0.1.",
)
@option(
    "--data",
    type=click.Path(path_type=Path),
    default=".tidemill",
    metavar="DIR",
    help="Folder for the data of its MongoDB. Default: .tidemill.",
)
@option("--fresh", is_flag=True, help="Delete the data of earlier starts.")
@option("--embedded", is_flag=True, help="Start a MongoDB of its own, even if MONGODB_URI is set.")
@option("--remote", is_flag=True, help="Use MONGODB_URI even if it names another machine.")
@option("--no-reload", "reload", is_flag=True, flag_value=False, default=True, help="Ignore changes of files.")
@option("--verbose", is_flag=True, help="Show the log lines of the HTTP API, too.")
def dev(**options: Any) -> None:  # noqa: ANN401 - those of Options
    """Serve until a signal."""
    if os.name != "posix":
        raise TidemillError("`tidemill dev` needs Linux, macOS or, on Windows, WSL: run it in a WSL terminal")
    from tidemill.dev.program import Options, run  # noqa: PLC0415 - it needs what Windows lacks

    try:
        run(Options(**options))
    except KeyboardInterrupt:
        raise TidemillError("stopped before it was ready") from None
