"""Output of a worker, on streams that task functions cannot take away."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Self, TextIO

from tidemill.cli.output import OutputError, print_text, warn


class OwnStreams:
    """Context in which the worker prints to copies of stdout and stderr: task functions may close or replace theirs.

    What functions print is written line by line, also to a file or a pipe. At the end the copies take the place of
    ``sys.stdout`` and ``sys.stderr``.
    """

    def __enter__(self) -> Self:
        self._given = (sys.stdout, sys.stderr)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        self._stdout, self._stderr = map(_copy_stream, self._given)
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in self._given:
            with suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def print(self, line: str) -> None:
        """Print *line* on stdout; if stdout takes no more, drop it and what is printed later."""
        try:
            print_text(line, stream=self._stdout)
            self._stdout.flush()
        except OutputError:
            discard_stdout()
            self._stdout = sys.stdout

    def warn(self, sentence: str) -> None:
        """Print *sentence* on stderr; ignore a closed stderr."""
        warn(sentence, stream=self._stderr)


def _copy_stream(stream: TextIO) -> TextIO:
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # it is closed, or there is no file behind it
        return stream
    return open(descriptor, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123


def discard_stdout() -> None:
    """Redirect stdout to the null device, also for task functions."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open until the end
