"""Executors with functions that do not end: processes of their own, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.features.isolation.runs import PACKAGE, Trace


@dataclass(frozen=True, kw_only=True)
class Executor:
    """An executor, its helper, and the processes of its functions with what these have started."""

    pid: int
    helper: int
    forks: list[int]
    functions: list[int]
    output: IO[bytes]


@contextmanager
def an_executor(
    folder: Path, names: Sequence[str], *, kind: str = "alone", package: str = PACKAGE
) -> Iterator[Executor]:
    """Run one of each function of *names* in an executor, until the block ends."""
    traces = [Trace(folder / name) for name in names]
    arguments = [word for name in names for word in (name, str(folder / name))]
    for name in names:
        (folder / name).mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.features.isolation.an_executor", kind, package, *arguments],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as process:
        assert process.stdout is not None
        helper, *forks = map(int, process.stdout.readline().split())
        functions = [pid for trace in traces for pid in trace.pids()]
        try:
            yield Executor(pid=process.pid, helper=helper, forks=forks, functions=functions, output=process.stdout)
        finally:
            for pid in (process.pid, *forks, helper, *functions):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def kill(*pids: int) -> None:
    """Kill these, in this order."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
