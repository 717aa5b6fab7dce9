"""Whoever watches an execution knows its counts at each step, and at the end however that comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from tests.builders import add, document
from tests.features.conftest import LIFE, Bench
from tests.fixtures import ManualClock
from tidemill import UnavailableError
from tidemill.clock import Clock
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import execute


def executed(bench: Bench, watch: Callable[[Report], None], clock: Clock | None = None) -> Report:
    """Run one task at a time."""
    runtime = Runtime(
        tasks=bench.tasks,
        registry=bench.registry,
        settings=bench.settings,
        clock=clock or bench.clock,
        options=OptionsReader(bench.db).options,
        watch=watch,
    )
    return execute(runtime, ExecutionOptions(owner="A", remaining=LIFE, concurrency=1, batch_size=1))


def test_the_counts_are_shown_while_a_task_runs(bench: Bench, now: datetime) -> None:
    may_end, claimed = threading.Event(), list[int]()
    bench.task("waits")(lambda _payload, _ctx: may_end.wait(20))
    add(bench.tasks, [document(now, name="waits"), document(now)])

    def watch(report: Report) -> None:
        claimed.append(report["claimed"])
        may_end.set()  # which nobody else does

    report = executed(bench, watch)

    assert report["done"] == 2
    assert claimed == sorted(claimed)
    assert (claimed[0], claimed[-1]) == (1, 2)


def test_they_are_shown_where_the_first_step_breaks_off(bench: Bench, now: datetime) -> None:
    class Broken(ManualClock):
        """A clock whose server goes away once the task was claimed."""

        def now(self) -> datetime:
            if bench.tasks.count_documents({"status": "processing"}):
                raise UnavailableError("MongoDB is away")
            return super().now()

    add(bench.tasks, [document(now)])
    claimed: list[int] = []

    with pytest.raises(UnavailableError):
        executed(bench, lambda report: claimed.append(report["claimed"]), clock=Broken())

    assert claimed[-1] == 1
