"""One numbering of attempts: the first run is 1 for the function, in the execution log, and in what people read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, claim, document, stored
from tests.features.admin.test_operations import do
from tests.features.conftest import Bench
from tests.features.dead_letters.graveyard import opened
from tests.fixtures import ManualClock
from tidemill import Retry, Snooze
from tidemill.admin.context import AdminContext
from tidemill.http.models import build_task_answer
from tidemill.model import Task
from tidemill.policy.retry import DEFAULT


@pytest.fixture
def numbers(bench: Bench) -> list[int]:
    """The numbers that runs of the function ``counted`` saw; its first two runs fail."""
    seen: list[int] = []

    def counted(_payload: dict[str, Any], ctx: Any) -> None:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise Retry("not yet", after=timedelta(0))

    bench.task("counted")(counted)
    return seen


@pytest.fixture
def context(db: Database[Any], clock: ManualClock) -> AdminContext:
    return AdminContext(db=db, clock=clock, retry=DEFAULT)


def logged(bench: Bench, task_id: Any) -> list[int]:
    return [line["attempt"] for line in stored(bench.tasks, task_id)["attempt_log"]]


def test_function_log_show_list_and_answer_count_from_one(  # A01
    bench: Bench, context: AdminContext, numbers: list[int]
) -> None:
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="counted", max_retries=5)])

    bench.execute()

    shown = do(context, "task.show", id=str(task_id))["task"]
    [listed] = do(context, "task.list")["tasks"]
    assert numbers == logged(bench, task_id) == [1, 2, 3]
    assert [line["attempt"] for line in shown["attempt_log"]] == [1, 2, 3]
    assert (shown["attempts"], shown["attempts_allowed"], listed["attempts"]) == (3, 6, 3)
    task = context.queue.get(task_id)
    assert isinstance(task, Task)
    assert build_task_answer(task).attempts == 3


def test_the_first_run_after_a_lost_worker_is_the_first(bench: Bench, numbers: list[int]) -> None:  # A01
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="counted")])
    claim(bench.tasks, bench.clock.now(), owner="gone")
    bench.reclaim(dead_owner="gone")
    bench.clock.move(MINUTE)

    bench.execute()

    assert numbers == [1, 2, 3]
    assert logged(bench, task_id) == [1, 1, 2, 3]  # the lost one is in the log, and is not counted
    assert stored(bench.tasks, task_id)["attempt_log"][0]["note"].endswith("; not counted")


def test_a_snooze_spends_no_number(bench: Bench) -> None:  # A01
    seen: list[int] = []

    def snoozes_once(_payload: dict[str, Any], ctx: Any) -> None:
        seen.append(ctx.attempt)
        if len(seen) == 1:
            raise Snooze(bench.clock.now() + MINUTE)

    bench.task("snoozes")(snoozes_once)
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="snoozes")])
    bench.execute()
    bench.clock.move(MINUTE)
    bench.execute()

    assert seen == [1, 1]
    assert logged(bench, task_id) == [1]


def test_the_first_run_after_a_redrive_is_the_first(bench: Bench, numbers: list[int]) -> None:  # A01
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="counted", max_retries=0)])
    bench.execute()

    with opened(bench.db, bench.clock) as graveyard:
        graveyard.archive()
        replace(graveyard, registered=frozenset({"counted"})).redrive()
    bench.execute()

    assert numbers == [1, 1]
    assert logged(bench, task_id) == [1]
