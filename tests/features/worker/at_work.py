"""A worker in a thread of the test, whose time is the test's."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.features.conftest import Bench
from tests.fixtures import ManualClock
from tests.unit.make import eventually
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import work
from tidemill.executor.lifetime import WORKER_REMAINING, Worker
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)
PATIENCE = 20.0


class Time:
    """A monotonic clock that goes with the one of the database."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._start = clock.at

    def __call__(self) -> float:
        return 1000.0 + (self.clock.at - self._start).total_seconds()

    def pass_(self, seconds: float) -> None:
        self.clock.move(timedelta(seconds=seconds))


class AtWork:
    """A worker of owner ``A`` with the functions of *bench*, while it is entered."""

    def __init__(self, bench: Bench, *, tasks: Tasks | None = None, **order: Any) -> None:
        self.stop = threading.Event()
        self.report = Report()
        self.time = Time(bench.clock)
        self.worker = Worker(self.stop)
        runtime = Runtime(
            tasks=bench.tasks if tasks is None else tasks,
            registry=bench.registry,
            settings=replace(bench.settings, max_task_timeout=HOUR),
            clock=bench.clock,
            options=OptionsReader(bench.db, monotonic=self.time).options,
            isolation=bench.isolation,
            watch=self._watch,
            rng=random.Random(7),
            monotonic=self.time,
            timing=bench.timing,
            make_prefetch=bench.make_prefetch,
        )
        options = ExecutionOptions(owner="A", remaining=WORKER_REMAINING, **order)
        self._reports: list[Report] = []
        self._thread = threading.Thread(target=lambda: self._reports.append(work(runtime, options, self.worker)))

    def _watch(self, report: Report) -> None:
        self.report = report

    def __enter__(self) -> AtWork:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(PATIENCE)

    def ended(self) -> Report:
        """Ask it to stop, and return its report."""
        self.stop.set()
        assert self.until(lambda: not self._thread.is_alive())
        [report] = self._reports
        return report

    def until(self, happens: Callable[[], bool]) -> bool:
        """Let time pass, quicker than it does, until *happens*."""

        def happens_now() -> bool:
            self.time.pass_(0.05)
            return happens()

        return eventually(happens_now, within=PATIENCE)

    def lives(self, seconds: float) -> None:
        """Let so many seconds pass, one step of the worker after the other."""
        until = self.time() + seconds
        assert self.until(lambda: self.time() >= until)
