"""What task functions leave behind of their runs: lines in files, one for each process, so that nothing is lost."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import ObjectId

from tidemill import TaskContext

FOLDER: Final = "TIDEMILL_CHAOS_TRACES"
"""The variable that says where the files are,"""

BOX: Final = "TIDEMILL_CHAOS_BOX"
"""the one that names the container, whose children have it, too,"""

BOX_PID: Final = "TIDEMILL_CHAOS_BOX_PID"
"""and the one that says which process that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a task's function.

    Attributes:
        attempt: The number of the attempt, as the function was told.
        box: The name of the container it ran in.
        is_child: It ran in a process of its own, whose parent that container is.
        began, ended: On the monotonic clock of the machine; ``None`` where it did not come to its end.
        began_at: The same on the wall clock.
    """

    task: ObjectId
    attempt: int
    box: str
    is_child: bool
    began: float
    began_at: float
    ended: float | None = None


@contextmanager
def traced(ctx: TaskContext) -> Iterator[None]:
    """Leave a line at the begin, and one at the end, however it ends; but for a process that is killed."""
    run = uuid.uuid4().hex
    _leave({
        "run": run,
        "task": str(ctx.task_id),
        "attempt": ctx.attempt,
        "box": os.environ[BOX],
        "is_child": os.environ[BOX_PID] != str(os.getpid()),
        "began": time.monotonic(),
        "began_at": time.time(),
    })  # fmt: skip
    try:
        yield
    finally:
        _leave({"run": run, "ended": time.monotonic()})


def runs(folder: Path) -> list[Run]:
    """Return all runs that left something in *folder*, the first one first."""
    return together(line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())


def together(lines: Iterable[str]) -> list[Run]:
    """Return the runs that *lines* tell of, the first one first."""
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for line in lines:
        told = json.loads(line)
        found[told.pop("run")].update(told)
    return sorted((_run(told) for told in found.values()), key=lambda run: run.began)


def _run(told: Mapping[str, Any]) -> Run:
    return Run(**{**told, "task": ObjectId(told["task"])})


def _leave(line: Mapping[str, Any]) -> None:
    path = Path(os.environ[FOLDER], f"{os.getpid()}.jsonl")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)
