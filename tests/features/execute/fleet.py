"""Executors that are launched are counted, and run by hand."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.features.conftest import LIFE, Bench
from tidemill.clock import Clock
from tidemill.control.fleet import ExecutorSlots
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.invocation import run_invocation
from tidemill.executor.scaling import Launcher, LaunchError
from tidemill.requests.events import Source
from tidemill.store.connection import Tasks

MOST = 60
"""So many invocations in a row are a chain that does not end."""


@dataclass(kw_only=True)
class Fleet:
    """The executors of a deployment. ``launched`` are those that were started and have not come yet."""

    bench: Bench
    max_executors: int = 1
    launched: int = 0
    can_summon: bool = True
    reports: list[Report] = field(default_factory=list)

    @property
    def executor_slots(self) -> ExecutorSlots:
        return ExecutorSlots(self.bench.db, limit=self.max_executors)

    def launch(self) -> None:
        """What Lambda is called for."""
        if not self.can_summon:
            raise LaunchError("Lambda refused (TooManyRequestsException)")
        self.launched += 1

    def come(
        self,
        *,
        source: Source = "backlog",
        remaining: timedelta = LIFE,
        tasks: Tasks | None = None,
        clock: Clock | None = None,
        **order: Any,
    ) -> Report:
        """Run one invocation."""
        runtime = self.runtime(tasks=tasks, clock=clock)
        wanted = ExecutionOptions(owner=f"owner-{uuid.uuid4().hex}", remaining=remaining, source=source, **order)
        executor_slots = ExecutorSlots(runtime.tasks.database, limit=self.max_executors)
        report = run_invocation(runtime, wanted, executor_slots=executor_slots, launcher=Launcher(self.launch))
        self.reports.append(report)
        return report

    def let_all_come(self, **order: Any) -> int:
        """Run who was launched, and whom they summon, until nobody is; return how many that were."""
        came = 0
        while self.launched:
            self.launched -= 1
            self.come(**order)
            came += 1
            assert came < MOST
        return came

    def runtime(
        self,
        *,
        tasks: Tasks | None = None,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Runtime:
        tasks = self.bench.tasks if tasks is None else tasks
        return Runtime(
            tasks=tasks,
            registry=self.bench.registry,
            settings=self.bench.settings,
            clock=clock or self.bench.clock,
            options=OptionsReader(tasks.database, monotonic=monotonic).options,
            rng=random.Random(7),
            monotonic=monotonic,
            timing=self.bench.timing,
            make_prefetch=self.bench.make_prefetch,
        )
