"""Ways to run hostile functions, and to see what is left of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from tests.public_api.mongod.mongods import alive
from tests.waiting import eventually
from tidemill.errors import IsolationError
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.process_protocol import IsolatedRunner, RunSpec
from tidemill.runner.results import Returned, RunResult

PACKAGE = "tests.features.isolation.hostile_tasks"
PLAIN = "tests.features.isolation.plain_tasks"
LONG = 60.0
SECOND = timedelta(seconds=1)
PATIENT = timedelta(seconds=60)
"""Bounds a hang: on a busy machine a helper may need many seconds to import what it has to."""


Package = Callable[[str], str]
"""Makes a package of one module with this source, and returns its name."""


class MakeProcessPool(Protocol):
    """Makes a process pool that is closed at the end of the test."""

    def __call__(self, package: str = PACKAGE, **spans: timedelta) -> ProcessPool: ...


class Run(Protocol):
    def __call__(self, name: str, *, timeout: float = LONG, **payload: Any) -> RunResult: ...


def a_run_spec(name: str, payload: dict[str, Any] | None = None, *, timeout: float = LONG, **fields: Any) -> RunSpec:
    """The first run of ``hostile.name``, but for *fields*."""
    usual: dict[str, Any] = {"task_id": 1, "attempt": 1, "is_last_attempt": False}
    return RunSpec(
        name=f"hostile.{name}", payload=payload or {}, timeout=timedelta(seconds=timeout), **(usual | fields)
    )


def runner(isolation: IsolatedRunner) -> Run:
    """What runs a function by the last part of its name."""

    def run(name: str, *, timeout: float = LONG, **payload: Any) -> RunResult:
        return isolation.run(a_run_spec(name, payload, timeout=timeout), cancelled=threading.Event(), take_note=bool)

    return run


def sooner_or_later(process_pool: ProcessPool, name: str) -> RunResult:
    """What comes of the first run that is not too late to begin."""
    ends: list[RunResult | BaseException] = []

    def concludes() -> bool:
        ends.append(begin(process_pool, a_run_spec(name)).end())
        return not isinstance(ends[-1], IsolationError)

    assert eventually(concludes, within=PATIENT.total_seconds())
    assert not isinstance(ends[-1], BaseException)
    return ends[-1]


@dataclass
class Background:
    """A run on a thread: what came of it, once that is known."""

    thread: threading.Thread
    ends: list[RunResult | BaseException]

    def end(self) -> RunResult | BaseException:
        """Wait for what comes of it."""
        self.thread.join(PATIENT.total_seconds())
        assert not self.thread.is_alive(), "the run hangs"
        [end] = self.ends
        return end


def begin(isolation: IsolatedRunner, spec: RunSpec, *, cancelled: threading.Event | None = None) -> Background:
    """Run *spec* on a thread of its own."""
    ends: list[RunResult | BaseException] = []

    def run() -> None:
        try:
            ends.append(isolation.run(spec, cancelled=cancelled or threading.Event(), take_note=bool))
        except BaseException as error:  # noqa: BLE001 - that is what came of it
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return Background(thread, ends)


class Trace:
    """The file in which a function tells which processes there are."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "trace"

    @property
    def path(self) -> str:
        return str(self._file)

    def is_told(self) -> bool:
        """Whether the function has run so far."""
        return self._file.exists()

    def pids(self) -> list[int]:
        """Wait until it is told."""
        assert eventually(self.is_told, within=PATIENT.total_seconds())
        return [int(pid) for pid in self._file.read_text().split()]


def all_gone(*pids: int) -> bool:
    """Whether none of *pids* runs any more, within a while."""
    return eventually(lambda: not any(map(alive, pids)), within=PATIENT.total_seconds())


def helper_of(process_pool: ProcessPool) -> int:
    """The process id of the helper, which is the parent of every function."""
    end = sooner_or_later(process_pool, "parent")
    assert isinstance(end, Returned)
    pid: int = end.result
    return pid
