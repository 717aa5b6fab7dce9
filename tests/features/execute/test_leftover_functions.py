"""Functions that run on past their timeout: settled, fenced, and never run a second time beside themselves."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tidemill import Retry
from tidemill.clock import ServerClock
from tidemill.model import Backoff, RetryPolicy
from tidemill.settings import Settings

pytestmark = pytest.mark.slow

AT_ONCE = RetryPolicy(max_retries=1, backoff=Backoff(strategy="fixed", base_sec=0.01, jitter="none"))
TIMEOUT_SEC = 0.2
STUCK_SEC = 1.2


class Deaf:
    """A function that no interruption reaches while it is stuck; tells how many of it were ever under way at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self.most = 0
        self.runs = 0

    def __call__(self, _payload: dict[str, Any], ctx: Any) -> str:
        with self._lock:
            self.runs += 1
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            if ctx.attempt == 1:
                time.sleep(STUCK_SEC)
        finally:
            with self._lock:
                self._under_way -= 1
        return "late"


def test_a_task_is_not_run_again_beside_its_own_leftover(bench: Bench, db: Database[Any]) -> None:
    deaf, clock = Deaf(), ServerClock(db)
    bench.settings = Settings(linger=timedelta(seconds=2))
    bench.registry.task("deaf", timeout=TIMEOUT_SEC, retry=AT_ONCE)(deaf)
    [task_id] = add(bench.tasks, [document(clock.now(), name="deaf")])

    report = bench.execute(clock=clock)

    found = stored(bench.tasks, task_id)
    assert (report["timed_out"], report["retried"], report["done"]) == (1, 1, 1)
    assert (deaf.runs, deaf.most) == (2, 1)
    assert (found["status"], found["attempts"], found["result"]) == ("done", 2, "late")
    assert [one["status"] for one in found["attempt_log"]] == ["timed_out", "succeeded"]


def test_a_later_execution_of_the_same_process_knows_of_it_too(bench: Bench, now: datetime) -> None:
    let_go = threading.Event()

    @bench.task("deaf", timeout=TIMEOUT_SEC, retry=AT_ONCE)
    def deaf(_payload: dict[str, Any], _ctx: Any) -> None:
        while True:
            try:
                let_go.wait()
            except BaseException:  # noqa: BLE001 - it will not be stopped
                continue
            return

    [task_id] = add(bench.tasks, [document(now, name="deaf")])
    first = bench.execute()
    bench.clock.move(timedelta(minutes=1))

    second = bench.execute(owner="B")
    beside = stored(bench.tasks, task_id)["status"]
    let_go.set()

    assert (first["timed_out"], first["leftovers"]) == (1, 1)
    assert (second["claimed"], beside) == (0, "pending")


def test_it_keeps_no_slot_and_no_other_task_waiting(bench: Bench, now: datetime) -> None:
    let_go = threading.Event()
    bench.registry.task("deaf", timeout=TIMEOUT_SEC)(lambda _payload, _ctx: _ignore_everything_until(let_go))
    add(bench.tasks, [document(now, name="deaf", priority=1, max_retries=0), *(document(now) for _ in range(20))])

    report = bench.execute(concurrency=1)
    let_go.set()

    assert (report["done"], report["failed"], report["leftovers"]) == (20, 1, 1)


def test_what_retries_itself_at_once_is_no_leftover(bench: Bench, now: datetime) -> None:
    @bench.task("again")
    def again(_payload: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == 1:
            raise Retry(after=timedelta(0))

    add(bench.tasks, [document(now, name="again")])

    assert bench.execute()["done"] == 1


def _ignore_everything_until(let_go: threading.Event) -> None:
    while True:
        try:
            let_go.wait()
        except BaseException:  # noqa: BLE001 - it will not be stopped
            continue
        return
