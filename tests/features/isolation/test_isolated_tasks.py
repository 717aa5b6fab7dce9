"""Which tasks get a process of their own, and what becomes of them when it cannot be had."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tidemill.errors import IsolationError
from tidemill.runner.process_protocol import RunSpec
from tidemill.runner.results import Crashed, Lost, Returned, RunResult, TimedOut


@dataclass
class Cell:
    """Stands for processes: concludes every run as it is told to, and keeps the names."""

    result: RunResult | IsolationError
    names: list[str] = field(default_factory=list)
    before: Callable[[threading.Event], object] = bool

    def run(
        self,
        spec: RunSpec,
        *,
        cancelled: threading.Event,
        take_note: Callable[[str], object],  # noqa: ARG002 - it takes none
    ) -> RunResult:
        assert not cancelled.is_set()
        self.names.append(spec.name)
        self.before(cancelled)
        if isinstance(self.result, IsolationError):
            raise self.result
        return self.result

    def close(self) -> None:
        raise NotImplementedError


def test_what_asks_for_it_and_what_once_lost_its_worker_is_isolated(bench: Bench, now: datetime) -> None:
    cell = bench.isolation = Cell(Returned(result="from outside"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    add(bench.tasks, [document(now), document(now, crashes=1), document(now, name="apart")])

    report = bench.execute()

    assert (report["done"], sorted(cell.names), len(bench.ran)) == (3, ["apart", "noop"], 1)
    assert {raw["result"] for raw in bench.db["tasks"].find()} == {None, "from outside"}


def test_the_death_of_its_process_is_one_failed_attempt_and_counted(bench: Bench, now: datetime) -> None:
    bench.isolation = Cell(Crashed("its process was killed by SIGSEGV"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    retried, dead = add(bench.tasks, [document(now, name="apart", max_retries=left) for left in (1, 0)])

    report = bench.execute()

    assert (report["retried"], report["failed"]) == (1, 1)
    found = stored(bench.tasks, retried)
    assert (found["status"], found["attempts"], found["crashes"]) == ("pending", 1, 1)
    assert "SIGSEGV" in found["error"]["message"]
    assert (stored(bench.tasks, dead)["status"], stored(bench.tasks, dead)["reason"]) == ("failed", "worker_lost")


def test_the_loss_of_its_process_with_others_is_refunded_once_and_then_a_failure(bench: Bench, now: datetime) -> None:
    bench.isolation = Cell(Lost("its process was lost with the helper process"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    fresh, suspect = add(bench.tasks, [document(now, name="apart", max_retries=0, crashes=n) for n in (0, 1)])

    report = bench.execute()

    assert (report["snoozed"], report["failed"], report["errors"]) == (1, 1, 0)
    found, dead = stored(bench.tasks, fresh), stored(bench.tasks, suspect)
    assert (found["status"], found["attempts"], found["crashes"]) == ("pending", 0, 1)
    assert found["due_at"] - now <= timedelta(seconds=10)
    assert [line["status"] for line in found["attempt_log"]] == ["lost"]
    assert (dead["status"], dead["reason"], dead["attempts"], dead["crashes"]) == ("failed", "worker_lost", 1, 2)


def test_a_task_that_was_to_be_cancelled_ends_as_that_where_its_process_was_lost(bench: Bench, now: datetime) -> None:
    cell = bench.isolation = Cell(Lost("its process was lost with the helper process"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    [task_id] = add(bench.tasks, [document(now, name="apart")])

    def ask_to_stop(cancelled: threading.Event) -> None:
        bench.db["tasks"].update_one({"_id": task_id}, {"$set": {"cancel_requested_at": now}})
        assert cancelled.wait(10)

    cell.before = ask_to_stop

    assert bench.execute()["cancelled"] == 1
    assert stored(bench.tasks, task_id)["status"] == "cancelled"


def test_one_that_was_killed_at_its_timeout_has_timed_out(bench: Bench, now: datetime) -> None:
    bench.isolation = Cell(TimedOut())
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    [task_id] = add(bench.tasks, [document(now, name="apart", crashes=1)])

    report = bench.execute()

    found = stored(bench.tasks, task_id)
    assert (report["timed_out"], report["retried"], report["leftovers"]) == (1, 1, 0)
    assert (found["error"]["code"], found["crashes"]) == ("timeout", 0)


@pytest.mark.parametrize("crashes", [0, 1])
def test_without_a_process_it_is_put_off_and_charged_nothing(bench: Bench, now: datetime, crashes: int) -> None:
    bench.isolation = Cell(IsolationError("no process can be had"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    [task_id] = add(bench.tasks, [document(now, name="apart", crashes=crashes)])

    report = bench.execute()

    found: dict[str, Any] = stored(bench.tasks, task_id)
    assert (report["snoozed"], report["errors"]) == (1, 1)
    assert report.not_started == str(IsolationError("no process can be had"))
    assert "task_not_started" not in report.as_dict()
    assert (found["status"], found["attempts"], found["crashes"]) == ("pending", 0, crashes)
    assert timedelta(seconds=15) <= found["due_at"] - now <= timedelta(seconds=60)


def test_where_no_process_can_be_had_nothing_else_has_to_wait(bench: Bench, now: datetime) -> None:
    cell = bench.isolation = Cell(IsolationError("no process can be had"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    apart = add(bench.tasks, [document(now, name="apart", priority=1) for _ in range(100)])
    add(bench.tasks, [document(now) for _ in range(20)])

    report = bench.execute(concurrency=4)

    assert (report["done"], report["snoozed"]) == (20, 100)
    assert len(cell.names) <= 8  # those that were on their way when it was known
    assert len({stored(bench.tasks, one)["due_at"] for one in apart}) > 50
