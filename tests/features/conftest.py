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

from tests.fixtures import ManualClock
from tidemill.clock import Clock
from tidemill.control.declarer import Declarer
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import execute
from tidemill.executor.lifetime import TIMING, Timing
from tidemill.executor.prefetch import Prefetch
from tidemill.policy.retry import resolve_policy
from tidemill.reclaim import ReclaimContext, reclaim
from tidemill.registry import Registry
from tidemill.runner.process_protocol import IsolatedRunner
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks

LIFE = timedelta(seconds=120)

BRISK = Settings(linger=timedelta(0))
"""An executor that leaves at once when it ran dry."""


class FixedPrefetch(Prefetch):
    """Claims so many tasks beyond the free slots, whatever was measured."""

    def __init__(self, count: int, timing: Timing) -> None:
        super().__init__(timing)
        self._count = count

    def size_within_slots(self, *, slots: int, at: float) -> int:  # noqa: ARG002 - the same for any
        return self._count

    def size(self, *, slots: int, most: int, at: float) -> int:  # noqa: ARG002
        return min(self._count, most)


@dataclass(kw_only=True)
class Bench:
    """A queue with task functions, run by hand. ``ran`` tells which payloads' ``n`` were run, in order.

    With ``prefetch`` its executors claim so many tasks beyond their free slots, however slow the tasks are.
    """

    db: Database[Any]
    clock: ManualClock
    registry: Registry = field(default_factory=Registry)
    settings: Settings = field(default_factory=lambda: BRISK)
    isolation: IsolatedRunner | None = None
    timing: Timing = TIMING
    prefetch: int | None = None
    declarer: Declarer | None = None
    ran: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.task("noop")(lambda _payload, _ctx: None)

    @property
    def tasks(self) -> Tasks:
        return open_tasks(self.db)

    def make_prefetch(self, timing: Timing) -> Prefetch:
        return Prefetch(timing) if self.prefetch is None else FixedPrefetch(self.prefetch, timing)

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
            timing=self.timing,
            make_prefetch=self.make_prefetch,
            declarer=self.declarer,
        )
        return execute(runtime, ExecutionOptions(owner=owner, remaining=remaining, **order))

    def reclaim(
        self, *, dead_owner: str | None = None, adopt_as: str | None = None, until: float | None = None
    ) -> dict[str, int]:
        """Run reclaim once."""
        reclaim_context = ReclaimContext(
            tasks=self.tasks,
            clock=self.clock,
            policy=lambda task: resolve_policy(task, registered=None, deployment=self.settings.retry),
            options=OptionsReader(self.db).options,
            adopt_as=adopt_as,
            rng=random.Random(7),
        )
        deadline = reclaim_context.monotonic() + 60 if until is None else until
        return reclaim(reclaim_context, until=deadline, dead_owner=dead_owner)


@pytest.fixture
def bench(db: Database[Any], clock: ManualClock) -> Bench:
    return Bench(db=db, clock=clock)
