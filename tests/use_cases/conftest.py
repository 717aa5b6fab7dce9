"""What tests of whole use cases share: task functions of their own, and an executor to run them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.conftest import ManualClock
from tidemill.clock import Clock
from tidemill.control import OptionsReader
from tidemill.executor import Order, Report, Runtime, execute
from tidemill.isolation import Isolation
from tidemill.reclaim import Keeper, reclaim
from tidemill.registry import Registry
from tidemill.retry import resolved
from tidemill.settings import Settings
from tidemill.store import Tasks, open_tasks

LIFE = timedelta(seconds=120)

BRISK = Settings(linger=timedelta(0))
"""An executor that leaves at once when it ran dry."""


@dataclass(kw_only=True)
class Bench:
    """A queue with task functions, run by hand. ``ran`` tells which payloads' ``n`` were run, in order."""

    db: Database[Any]
    clock: ManualClock
    registry: Registry = field(default_factory=Registry)
    settings: Settings = field(default_factory=lambda: BRISK)
    isolation: Isolation | None = None
    ran: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.task("noop")(lambda _payload, _ctx: None)

    @property
    def tasks(self) -> Tasks:
        return open_tasks(self.db)

    def task(self, name: str, **options: Any) -> Callable[[Callable[[dict[str, Any], Any], Any]], Any]:
        """Register a function whose runs are noted."""

        def register(function: Callable[[dict[str, Any], Any], Any]) -> Any:
            def noted(payload: dict[str, Any], ctx: Any) -> Any:
                with self._lock:
                    self.ran.append(payload.get("n"))
                return function(payload, ctx)

            noted.__qualname__ = f"{function.__qualname__}.{name}"
            return self.registry.task(name, **options)(noted)

        return register

    def execute(
        self,
        *,
        owner: str = "A",
        remaining: timedelta = LIFE,
        tasks: Tasks | None = None,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        **order: Any,
    ) -> Report:
        """Run one invocation."""
        runtime = Runtime(
            tasks=self.tasks if tasks is None else tasks,
            registry=self.registry,
            settings=self.settings,
            clock=clock or self.clock,
            options=OptionsReader(self.db, monotonic=monotonic).options,
            isolation=self.isolation,
            rng=random.Random(7),
            monotonic=monotonic,
        )
        return execute(runtime, Order(owner=owner, remaining=remaining, **order))

    def reclaim(
        self, *, dead_owner: str | None = None, adopt_as: str | None = None, until: float | None = None
    ) -> dict[str, int]:
        """Run reclaim once."""
        keeper = Keeper(
            tasks=self.tasks,
            clock=self.clock,
            policy=lambda task: resolved(task, registered=None, deployment=self.settings.retry),
            options=OptionsReader(self.db).options,
            adopt_as=adopt_as,
            rng=random.Random(7),
        )
        deadline = keeper.monotonic() + 60 if until is None else until
        return reclaim(keeper, until=deadline, dead_owner=dead_owner)


@pytest.fixture
def bench(db: Database[Any], clock: ManualClock) -> Bench:
    return Bench(db=db, clock=clock)
