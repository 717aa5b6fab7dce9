"""Standard output beside foreign code: what we print arrives, whole, whatever a task function does to it."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter


class Output(io.TextIOBase):
    """Standard output as it was before any function closed it or put something in its place."""

    def write(self, text: str) -> int:
        """Write *text*, or drop it where nothing is left of standard output."""
        stdout()(text)
        return len(text)


class Apart(LambdaPowertoolsFormatter):
    """Begins lines with a newline: a function may have printed half a line, which would spoil this one.

    For the empty line that this makes where none has, see `tidemill.metrics.counting`. An invocation that claimed
    nothing has none, unless it is the first: modules may print as they are imported.
    """

    _is_first = True

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*."""
        is_idle = getattr(record, "claimed", None) == 0 and not self._is_first
        self._is_first = False
        return super().format(record) if is_idle else "\n" + super().format(record)


@cache
def stdout() -> Callable[[str], None]:
    """Return what writes lines to standard output, also once a function has closed it or put another in its place.

    A function that closes every descriptor closes this one, too, and the next file or socket is given its number: what
    is no longer standard output gets nothing, and a line that nothing is left for is dropped.
    """
    try:
        descriptor = os.dup(1)
    except OSError:
        return lambda _: None
    output = _behind(descriptor)

    def write(line: str) -> None:
        left = next((one for one in (descriptor, 1) if _behind(one) == output), None)
        if left is not None:
            _write(left, line.encode())

    return write


def _write(descriptor: int, rest: bytes) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _behind(descriptor: int) -> tuple[int, int] | None:
    """Return what tells the file, pipe or socket behind a descriptor from others; ``None`` where it is closed."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    return None
