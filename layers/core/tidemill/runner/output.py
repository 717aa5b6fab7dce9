"""Standard output that task functions cannot take away or break, and the log lines of isolated functions on it."""

from __future__ import annotations

import io
import json
import logging
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import PurePath
from typing import Final

_RECORD_FIELDS: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""Fields of every record; others come from ``extra``."""


MAX_TRACEBACK_CHARS: Final = 20_000
"""Characters of a traceback, which an isolated process sends in its answer."""

_TIDEMILL: Final = f"{PurePath(__file__).parents[1]}/"


def log_as_json() -> None:
    """Let all loggers of this process write lines of JSON, from ``WARNING`` on or from their own level on.

    As in the executor, where Lambda's runtime does this: a process that it did not start has no log handler.
    """
    quiet_drivers()
    stdout()  # a copy of standard output before any task code runs
    handler = logging.StreamHandler(Output())
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)


def format_traceback(error: BaseException) -> str:
    """Return the traceback of *error* without the frames of Tidemill that called the function; never raises.

    It is cut to the newest `MAX_TRACEBACK_CHARS`.
    """
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_TIDEMILL):
            frames = frames.tb_next
        return "".join(traceback.format_exception(type(error), error, frames))[-MAX_TRACEBACK_CHARS:]
    except BaseException:  # noqa: BLE001 - a hostile object may raise anything when it is examined
        return ""


def quiet_drivers() -> None:
    """Keep payloads and secrets out of the log at any level: at DEBUG the drivers log everything they transfer."""
    for name in ("pymongo", "boto3", "botocore", "urllib3"):
        driver = logging.getLogger(name)
        driver.setLevel(max(driver.level, logging.WARNING))


class JsonFormatter(logging.Formatter):
    """Writes records with the field names of Lambda's runtime, behind a newline: half a line may have been printed."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*."""
        fields: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            "logger": record.name,
        }
        kind, error, stack = record.exc_info or (None, None, None)
        if kind is not None:
            fields["errorType"] = kind.__name__
            fields["errorMessage"] = str(error)
            fields["stackTrace"] = traceback.format_tb(stack)
            fields["location"] = f"{record.pathname}:{record.funcName}:{record.lineno}"
        extra = {name: value for name, value in vars(record).items() if name not in _RECORD_FIELDS}
        return "\n" + json.dumps(extra | fields, default=str)


class Output(io.TextIOBase):
    """Standard output as at the start, although a task function may have closed or replaced it."""

    def write(self, text: str) -> int:
        """Write *text*, or drop it if nothing is left of standard output."""
        stdout()(text)
        return len(text)


@cache
def stdout() -> Callable[[str], None]:
    """Return a writer of lines to standard output that works after a task function has closed or replaced it.

    A function that closes every descriptor also closes this copy, and the next file or socket gets its number. So a
    write first checks the file behind the descriptor, and drops the line if standard output is gone.
    """
    try:
        descriptor = os.dup(1)
    except OSError:
        return lambda _: None
    output = _identify_file(descriptor)

    def write(line: str) -> None:
        intact = next((number for number in (descriptor, 1) if _identify_file(number) == output), None)
        if intact is not None:
            _write_all(intact, line.encode())

    return write


def _write_all(descriptor: int, rest: bytes) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _identify_file(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of the file, pipe or socket behind *descriptor*; ``None`` if it is closed."""
    with suppress(OSError):
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    return None
