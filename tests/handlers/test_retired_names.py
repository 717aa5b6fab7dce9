"""Functions that executors no longer register: accepted for ten minutes, then unknown at every way in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.features.conftest import Bench
from tests.fixtures import ManualClock
from tests.handlers.conftest import Deployed
from tests.handlers.test_enqueue_recurring import event as occurrence
from tidemill import Queue, UnknownTaskError
from tidemill.clock import ServerClock
from tidemill.control.declarer import DECLARATION_INTERVAL_SEC, Declarer, declare_types
from tidemill.registry import Registry

SECOND = timedelta(seconds=1)
GRACE = timedelta(minutes=10)
JOB: dict[str, Any] = {"name": "report", "payload": {}}


class Stopwatch:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def types(*names: str) -> Registry:
    registry = Registry()
    for name in names:
        registry.task(name, http=True)(lambda payload: payload)
    return registry


def declare(db: Database[Any], *names: str, now: datetime) -> None:
    declare_types(db, types(*names), package="jobs", release="1", now=now)


def retire(db: Database[Any], *, ago: timedelta) -> None:
    """Register ``report`` and ``noop``, and then, *ago*, ``noop`` alone."""
    now = ServerClock(db).now()
    declare(db, "report", "reports", now=now - 2 * GRACE)
    declare(db, "reports", now=now - ago)


WAYS: dict[str, Callable[[Deployed, Database[Any]], object]] = {
    "direct": lambda deployed, _: deployed.invoke("enqueue", JOB),
    "direct list": lambda deployed, _: deployed.invoke("enqueue", {"tasks": [JOB]}),
    "schedule": lambda deployed, _: deployed.invoke("enqueue", occurrence(tasks=[JOB])),
    "enqueue": lambda _, db: Queue(db).enqueue("report", {}),
    "enqueue_many": lambda _, db: Queue(db).enqueue_many([JOB]),
}


def test_over_http_a_name_that_was_retired_ten_minutes_ago_was_never_there(  # A09
    deployed: Deployed, db: Database[Any]
) -> None:
    retire(db, ago=GRACE + SECOND)

    retired, never = deployed.post(JOB), deployed.post(JOB | {"name": "repart"})

    assert (retired.status, retired.fields) == (422, {"name"})
    assert retired.body["error"]["details"] == never.body["error"]["details"]
    assert "did you mean reports?" in retired.text
    assert db.tasks.count_documents({}) == 0


def test_over_http_a_name_is_taken_while_a_deployment_may_be_rolled_back(  # A09
    deployed: Deployed, db: Database[Any]
) -> None:
    retire(db, ago=GRACE - 30 * SECOND)

    assert deployed.post(JOB).status == 202


@pytest.mark.parametrize("enqueue", WAYS.values(), ids=WAYS)
def test_every_other_way_in_refuses_it_too(  # A09
    deployed: Deployed, db: Database[Any], enqueue: Callable[[Deployed, Database[Any]], object]
) -> None:
    retire(db, ago=GRACE + SECOND)

    with pytest.raises(UnknownTaskError, match="no executor has registered a task function 'report', did you mean"):
        enqueue(deployed, db)

    assert db.tasks.count_documents({}) == 0


@pytest.mark.parametrize("enqueue", WAYS.values(), ids=WAYS)
def test_every_other_way_in_takes_it_before(  # A09
    deployed: Deployed, db: Database[Any], enqueue: Callable[[Deployed, Database[Any]], object]
) -> None:
    retire(db, ago=GRACE - 30 * SECOND)

    enqueue(deployed, db)

    assert db.tasks.distinct("name") == ["report"]


def test_a_container_that_knew_the_name_refuses_it_when_the_time_is_over(  # A09
    db: Database[Any], clock: ManualClock
) -> None:
    declare(db, "report", "reports", now=clock.now())
    declare(db, "reports", now=clock.move(SECOND))
    queue = Queue(db, clock=clock)
    queue.enqueue("report", {})

    clock.move(GRACE)

    with pytest.raises(UnknownTaskError):
        queue.enqueue("report", {})


def test_a_name_that_is_back_is_taken_by_a_container_that_read_it_as_gone(  # A09
    db: Database[Any], clock: ManualClock
) -> None:
    declare(db, "report", "reports", now=clock.now())
    declare(db, "reports", now=clock.now())
    queue = Queue(db, clock=clock)
    clock.move(GRACE)
    with pytest.raises(UnknownTaskError):
        queue.enqueue("report", {})

    declare(db, "report", "reports", now=clock.now())

    queue.enqueue("report", {})


def test_a_repeat_of_a_request_that_was_taken_is_answered_with_its_task(  # A09
    deployed: Deployed, db: Database[Any]
) -> None:
    retire(db, ago=GRACE - 30 * SECOND)
    first = deployed.post(JOB, key="k")
    retire(db, ago=GRACE + SECOND)
    deployed.cool_down()

    again = deployed.post(JOB, key="k")

    assert (first.status, again.status) == (202, 200)
    assert again.body["id"] == first.body["id"]


def test_a_worker_of_the_release_before_keeps_its_functions_in_use(  # A09
    db: Database[Any], clock: ManualClock
) -> None:
    watch = Stopwatch()
    declarer = Declarer(db, types("noop", "report"), package="jobs", release="1", monotonic=watch)
    bench = Bench(db=db, clock=clock, declarer=declarer)
    bench.execute()

    for _ in range(12):
        declare(db, "noop", now=clock.now())
        clock.move(timedelta(seconds=DECLARATION_INTERVAL_SEC))
        watch.at += DECLARATION_INTERVAL_SEC
        bench.execute()
        clock.move(timedelta(seconds=DECLARATION_INTERVAL_SEC - 1))

    Queue(db, clock=clock).enqueue("report", {})


def test_a_worker_of_the_new_release_retires_what_the_last_old_one_brought_back(  # A09
    db: Database[Any], clock: ManualClock
) -> None:
    watch = Stopwatch()
    declarer = Declarer(db, types("noop"), package="jobs", release="2", monotonic=watch)
    bench = Bench(db=db, clock=clock, declarer=declarer)
    bench.execute()
    declare(db, "noop", "report", now=clock.now())

    watch.at += DECLARATION_INTERVAL_SEC
    bench.execute()
    clock.move(GRACE)

    with pytest.raises(UnknownTaskError):
        Queue(db, clock=clock).enqueue("report", {})


def test_an_executor_declares_its_functions_only_from_time_to_time(db: Database[Any], clock: ManualClock) -> None:
    watch = Stopwatch()
    declarer = Declarer(db, types("noop"), package="jobs", release="1", monotonic=watch)
    declarer.declare_if_due(now=clock.now())
    db.task_types.drop()

    watch.at += DECLARATION_INTERVAL_SEC - 1
    declarer.declare_if_due(now=clock.now())
    assert db.task_types.count_documents({}) == 0
    watch.at += 1
    declarer.declare_if_due(now=clock.now())

    assert db.task_types.distinct("_id") == ["noop"]
