"""Lines of a worker: its start, its end, its warnings, and one for each failed attempt; as text or as JSON.

Warnings and failed attempts go to stderr, so that stdout is left to what functions print. Lines of JSON all go to
stdout, as in Lambda.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from queue import Full, Queue
from typing import Final, Self, TextIO

from tidemill.cli.output import OutputError, clean, print_stderr, print_text, warn
from tidemill.executor.outcomes import is_failure, log_fields
from tidemill.model import Failed, Failure, Malformed, Retried, Snoozed, Task
from tidemill.policy.failures import truncate_text
from tidemill.store.settle import Settlement
from tidemill.store.tasks import format_id
from tidemill.text import format_duration, format_error, format_time, iso_timestamp

MAX_LINE_MESSAGE_CHARS: Final = 500
"""Characters of the message of a failure in its line. The task has more of it."""

MAX_WORD_CHARS: Final = 100
"""Characters of an id or a name in a line: documents may be edited by hand."""

MAX_WAITING_LINES: Final = 1000
"""Lines that wait for a reader of stderr. Further lines are dropped and counted: the worker never waits for it."""

LAST_LINES_SEC: Final = 2.0
"""Longest wait at the end for the reader of the last lines."""

SERVICE: Final = "tidemill-work"


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

    def print_stderr(self, text: str) -> None:
        """Print *text* on stderr as it is; ignore a closed stderr."""
        print_stderr(text, stream=self._stderr)


class WorkerLog:
    """Context in which the lines of a worker are printed on *streams*.

    A thread of its own prints the lines of failed attempts: a reader that stops must not stop the worker. At the end
    it has a moment for the last ones.

    Args:
        as_json: Print each line as JSON, with the fields of the function ``execute``.
        verbose: Print the traceback of each failed attempt, too.
    """

    def __init__(self, streams: OwnStreams, *, as_json: bool = False, verbose: bool = False) -> None:
        self._streams = streams
        self._as_json = as_json
        self._verbose = verbose
        self._lines: Queue[str | None] = Queue(MAX_WAITING_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._print_lines, name="tidemill-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(Full):
            self._lines.put(None, timeout=LAST_LINES_SEC)
            self._thread.join(LAST_LINES_SEC)

    def inform(self, event: str, sentence: str, **fields: object) -> None:
        """Print *sentence*, or the word for *event* and *fields* as JSON."""
        self._streams.print(format_json("INFO", event, fields) if self._as_json else sentence)

    def warn(self, sentence: str) -> None:
        """Print a warning."""
        if self._as_json:
            self._streams.print(format_json("WARNING", "warning", {"reason": clean(sentence)}))
        else:
            self._streams.warn(sentence)

    def report_attempt(self, settlement: Settlement, *, now: datetime, count_tries: Callable[[Task], int]) -> None:
        """Print the line of a failed attempt; do nothing after any other. It never waits.

        *count_tries* returns the number of attempts that a task has in all.
        """
        if not is_failure(settlement):
            return
        failure = _find_failure(settlement)
        traceback = failure.traceback if failure is not None and self._verbose else ""
        if self._as_json:
            fields = log_fields(settlement) | {"next_retry_at": iso_timestamp(_find_next_try(settlement))}
            if self._verbose:
                fields |= {"error_message": "" if failure is None else failure.message, "stack": traceback}
            line = format_json("WARNING", "attempt", fields)
        else:
            line = "\n".join((format_attempt(settlement, now=now, count_tries=count_tries), *_indent(traceback)))
        try:
            self._lines.put_nowait(line)
        except Full:
            self._dropped += 1

    def _print_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            self._streams.print(line) if self._as_json else self._streams.print_stderr(line)
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self.warn(f"{dropped} lines of failed attempts were dropped, because this output was not read")


def format_json(level: str, message: str, fields: Mapping[str, object]) -> str:
    """Return a line of JSON, with the names that the functions use, behind a newline: half a line may be printed."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"level": level, "message": message, "timestamp": at, "service": SERVICE, **fields}
    return "\n" + json.dumps(line, default=str)


def format_attempt(settlement: Settlement, *, now: datetime, count_tries: Callable[[Task], int]) -> str:
    """Return one line about a failed attempt: time, task, attempt, cause, and the time of the next attempt."""
    failure, task = _find_failure(settlement), settlement.task
    cause = "its worker vanished" if failure is None else format_error(failure.code, failure.message)
    return (
        f"{format_time(now)} UTC {_describe_attempt(task, count_tries)} {'lost' if settlement.lost else 'failed'}: "
        f"{_describe_task(task)}: {_shorten(cause, MAX_LINE_MESSAGE_CHARS)}; {_describe_next_try(settlement, now=now)}"
    )


def _describe_attempt(task: Task | Malformed, count_tries: Callable[[Task], int]) -> str:
    if isinstance(task, Malformed):
        return "a document"
    return f"attempt {task.attempts} of {count_tries(task)}"


def _describe_task(task: Task | Malformed) -> str:
    task_id = f"task {_shorten(format_id(task.id), MAX_WORD_CHARS)}"
    if isinstance(task, Malformed):
        return task_id
    return f"{task_id}, {_shorten(task.name, MAX_WORD_CHARS)}, queue {_shorten(task.queue, MAX_WORD_CHARS)}"


def _describe_next_try(settlement: Settlement, *, now: datetime) -> str:
    at = _find_next_try(settlement)
    if at is not None:
        return f"next attempt at {format_time(at)} UTC, in {format_duration(max(at - now, at - at))}"
    reason = settlement.outcome.reason if isinstance(settlement.outcome, Failed) else "cancelled"
    return f"no further attempt ({reason})"


def _find_next_try(settlement: Settlement) -> datetime | None:
    match settlement.outcome:
        case Retried(next_retry_at=at) | Snoozed(until=at):
            return at
    return None


def _find_failure(settlement: Settlement) -> Failure | None:
    return settlement.outcome.failure if isinstance(settlement.outcome, Retried | Failed) else None


def _shorten(text: str, limit: int) -> str:
    return truncate_text(clean(text), limit)


def _indent(traceback: str) -> list[str]:
    return [f"    {clean_line}" for line in traceback.splitlines() if (clean_line := _clean_line(line))]


def _clean_line(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return " " * indent + clean(line)


def _copy_stream(stream: TextIO) -> TextIO:
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # it is closed, or there is no file behind it
        return stream
    return open(descriptor, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123


def discard_stdout() -> None:
    """Redirect stdout to the null device, also for task functions."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open until the end
