"""Lines of JSON for ``tidemill enqueue --many``: a task each, read in batches of a thousand and checked before."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from tidemill.cli.output import clean, warn
from tidemill.errors import DuplicateKeyError, InvalidRequestError, TidemillError
from tidemill.http.events import MAX_BODY_BYTES, parse_json_object
from tidemill.http.models import HttpError
from tidemill.requests.tasks import MAX_TASKS, CheckedTasks, check_tasks

MAX_FAULTS: Final = 20
"""Faults that are printed before reading stops."""

_INDEX: Final = re.compile(r"(?:tasks\.)?(\d+)(?:\.(.+))?")


@dataclass(slots=True, kw_only=True)
class Batch:
    """Up to a thousand tasks, with the number of the line of each, from 1; *faults* are those of other lines."""

    numbers: list[int] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def check(self) -> CheckedTasks:
        """Return the validated tasks.

        Raises:
            InvalidRequestError: Tasks are not allowed; each field begins with an index.
        """
        return check_tasks(self.tasks)

    def describe(self, error: InvalidRequestError | DuplicateKeyError) -> list[str]:
        """Return a sentence for each problem of *error*, with the number of its line."""
        return [self._name_line(f"{problem.field}: {problem.message}") for problem in error.problems] or [str(error)]

    def describe_answer(self, text: str) -> str:
        """Return the problems that a function wrote as *text*, with the numbers of their lines."""
        return "; ".join(map(self._name_line, text.split("; ")))

    @property
    def place(self) -> str:
        """The lines of this batch, as a message names them."""
        return f"lines {self.numbers[0]} to {self.numbers[-1]}"

    def _name_line(self, problem: str) -> str:
        path, _, message = problem.partition(": ")
        found = _INDEX.fullmatch(path)
        if found is None or int(found[1]) >= len(self.numbers):
            return problem
        below = f"{found[2]}: " if found[2] else ""
        return f"line {self.numbers[int(found[1])]}: {below}{message}"


@contextmanager
def open_lines(name: str) -> Iterator[BinaryIO]:
    """Open the file *name*, or stdin for ``-``, which is copied to a file: the lines are read twice.

    Raises:
        TidemillError: There is no such file, or it cannot be read.
    """
    with ExitStack() as stack:
        try:
            if name == "-":
                lines: Any = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(sys.stdin.buffer, lines)
            else:
                lines = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise TidemillError(f"cannot read {clean(name)} ({error.strerror})") from None
        yield lines


def read_batches(lines: BinaryIO, *, max_tasks: int = MAX_TASKS, max_bytes: int = sys.maxsize) -> Iterator[Batch]:
    """Yield the tasks of *lines* from its beginning, in batches of at most *max_tasks* and *max_bytes* of JSON.

    A single line may be larger than *max_bytes*. Empty lines are skipped.
    """
    lines.seek(0)
    batch, size, number = Batch(), 0, 0
    while line := lines.readline(MAX_BODY_BYTES + 1):
        number += 1
        if len(line) > MAX_BODY_BYTES:
            batch.faults.append(f"line {number}: must not be larger than {MAX_BODY_BYTES // 1024**2} MB")
            break  # what follows may be the rest of it
        if not line.strip():
            continue
        try:
            task = read_object(line)
        except TidemillError as error:
            batch.faults.append(f"line {number}: {error}")
            continue
        if len(batch.tasks) == max_tasks or (batch.tasks and size + len(line) > max_bytes):
            yield batch
            batch, size = Batch(), 0
        batch.numbers.append(number)
        batch.tasks.append(task)
        size += len(line)
    if batch.tasks or batch.faults:
        yield batch


def read_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object in UTF-8, by the rules of the HTTP API.

    Raises:
        TidemillError: It is none; the message repeats nothing of it.
    """
    try:
        return parse_json_object(text.decode())
    except UnicodeDecodeError:
        raise TidemillError("must be UTF-8") from None
    except HttpError as error:
        problem = str(error).removeprefix("the body ")
        raise TidemillError(problem + _locate_fault(text.decode().rstrip())) from None


def _locate_fault(text: str) -> str:
    """Return the place at which *text* stops being JSON, or nothing if it is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            line = f"line {error.lineno} " if error.lineno > 1 else ""
            return f" (from {line}character {error.colno} on: {error.msg[:1].lower()}{error.msg[1:]})"
    return ""


def check_lines(batches: Iterator[Batch], check: Callable[[CheckedTasks], object]) -> int:
    """Check all *batches* before anything is stored; return the number of tasks.

    Raises:
        TidemillError: Lines are at fault; each fault was printed on stderr.
    """
    count = 0
    faults: list[str] = []
    for batch in batches:
        count += len(batch.tasks)
        faults += _find_faults(batch, check)
        if len(faults) >= MAX_FAULTS:
            break
    for fault in faults[:MAX_FAULTS]:
        warn(fault)
    if faults:
        raise TidemillError("nothing was stored: correct the lines above, and try again")
    if not count:
        raise TidemillError("nothing was stored: there is no line with a task")
    return count


def _find_faults(batch: Batch, check: Callable[[CheckedTasks], object]) -> Sequence[str]:
    """Return the faults of *batch* in the order of its lines."""
    faults = list(batch.faults)
    try:
        if batch.tasks:
            check(batch.check())
    except InvalidRequestError as error:
        faults += batch.describe(error)
    return sorted(faults, key=_read_number)


def _read_number(fault: str) -> int:
    found = re.match(r"line (\d+):", fault)
    return int(found[1]) if found else sys.maxsize
