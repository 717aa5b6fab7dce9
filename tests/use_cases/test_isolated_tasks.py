"""Which tasks get a process of their own, and what becomes of them when it cannot be had."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from tidemill.conclusions import Conclusion, Crashed, Overran, Returned

from tests.builders import add, document, stored
from tests.use_cases.conftest import Bench
from tidemill.errors import IsolationError
from tidemill.isolation import IsolatedRun


@dataclass
class Cell:
    """Stands for processes: concludes every run as it is told to, and keeps the names."""

    conclusion: Conclusion | IsolationError
    names: list[str] = field(default_factory=list)

    def run(self, order: IsolatedRun, *, cancelled: threading.Event) -> Conclusion:
        assert not cancelled.is_set()
        self.names.append(order.name)
        if isinstance(self.conclusion, IsolationError):
            raise self.conclusion
        return self.conclusion

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


def test_one_that_was_killed_at_its_timeout_has_timed_out(bench: Bench, now: datetime) -> None:
    bench.isolation = Cell(Overran())
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    [task_id] = add(bench.tasks, [document(now, name="apart", crashes=1)])

    report = bench.execute()

    found = stored(bench.tasks, task_id)
    assert (report["timed_out"], report["retried"], report["leftovers"]) == (1, 1, 0)
    assert (found["error"]["code"], found["crashes"]) == ("timeout", 0)


@pytest.mark.parametrize("crashes", [0, 1])
def test_without_a_process_it_is_given_back_and_not_claimed_again(bench: Bench, now: datetime, crashes: int) -> None:
    cell = bench.isolation = Cell(IsolationError("no process can be had"))
    bench.task("apart", isolate=True)(lambda _payload, _ctx: None)
    [task_id] = add(bench.tasks, [document(now, name="apart", crashes=crashes)])
    add(bench.tasks, [document(now) for _ in range(5)])

    report = bench.execute()

    found: dict[str, Any] = stored(bench.tasks, task_id)
    assert (report["done"], report["released"], report["errors"]) == (5, 1, 1)
    assert (found["status"], found["attempts"], found["crashes"]) == ("pending", 0, crashes)
    assert len(cell.names) == 1
