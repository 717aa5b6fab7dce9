"""Executors that are summoned, and run by hand: whoever starts one only says so."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.use_cases.conftest import LIFE, Bench
from tidemill.clock import Clock
from tidemill.control import OptionsReader, Seats
from tidemill.executor import Order, Report, Runtime
from tidemill.executor.attendance import attend
from tidemill.requests import Source
from tidemill.store import Tasks
from tidemill.summon import Summoner, SummonError

MOST = 60
"""So many invocations in a row are a chain that does not end."""


@dataclass(kw_only=True)
class Fleet:
    """The executors of a deployment. ``summoned`` are those that were started and have not come yet."""

    bench: Bench
    max_executors: int = 1
    summoned: int = 0
    can_summon: bool = True
    reports: list[Report] = field(default_factory=list)

    @property
    def seats(self) -> Seats:
        return Seats(self.bench.db, limit=self.max_executors)

    def summon(self) -> None:
        """What Lambda is called for."""
        if not self.can_summon:
            raise SummonError("Lambda refused (TooManyRequestsException)")
        self.summoned += 1

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
        wanted = Order(owner=f"owner-{uuid.uuid4().hex}", remaining=remaining, source=source, **order)
        seats = Seats(runtime.tasks.database, limit=self.max_executors)
        report = attend(runtime, wanted, seats=seats, summoner=Summoner(self.summon))
        self.reports.append(report)
        return report

    def let_all_come(self, **order: Any) -> int:
        """Run who was summoned, and whom they summon, until nobody is; return how many that were."""
        came = 0
        while self.summoned:
            self.summoned -= 1
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
        )
