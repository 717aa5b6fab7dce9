"""MongoDB fails while tasks are claimed and settled: nothing is lost, charged twice, or called done."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import add, document, stored
from tests.faults import Afterwards, failing
from tests.features.conftest import BRISK, Bench
from tidemill import MissingIndexError, UnavailableError
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
SHORT = replace(BRISK, max_task_timeout=SECOND, task_timeout=SECOND, margin=SECOND / 2)


@pytest.mark.parametrize(
    "how",
    [
        {"errorCode": 10107},
        {"closeConnection": True},
        {"errorCode": 11601},
        {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
    ],
)
def test_a_stamp_or_settle_that_fails_delays_nobody_and_charges_nobody(
    bench: Bench, mine: Tasks, now: datetime, how: dict[str, Any]
) -> None:  # F10
    ids = add(bench.tasks, [document(now, payload={"n": n}) for n in range(40)])

    with failing(mine, "update", times=3, **how):
        report = bench.execute(tasks=mine)

    assert report["errors"] > 0
    assert sorted(bench.ran) == list(range(40))
    assert (report["done"], report["unknown"], report["lost"]) == (40, 0, 0)
    assert {(stored(bench.tasks, one)["status"], stored(bench.tasks, one)["attempts"]) for one in ids} == {("done", 1)}


def test_what_was_stamped_and_could_not_be_read_back_is_claimed_again_by_the_same_executor(
    bench: Bench, mongod: Mongod, now: datetime
) -> None:
    ids = add(bench.tasks, [document(now, payload={"n": n}) for n in range(3)])
    data = {"failCommands": ["find"], "appName": bench.db.name, "errorCode": 11601}

    def fail_the_next_look() -> None:
        bench.db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)

    listeners = [Afterwards("update", fail_the_next_look)]
    with MongoClient[dict[str, Any]](mongod.uri, appname=bench.db.name, event_listeners=listeners) as client:
        report = bench.execute(tasks=open_tasks(client[bench.db.name]))

    assert (report["done"], report["released"], report["errors"]) == (3, 3, 1)
    assert {(stored(bench.tasks, one)["status"], stored(bench.tasks, one)["attempts"]) for one in ids} == {("done", 1)}


@pytest.mark.parametrize("refused", [0, 17, 39])
def test_a_stamp_that_is_refused_half_way_delays_nobody_but_the_one_it_is_refused_for(
    bench: Bench, now: datetime, refused: int
) -> None:
    ids = add(bench.tasks, [document(now, note=n) for n in range(40)])
    bench.db.command("collMod", "tasks", validator={"note": {"$ne": refused}})

    report = bench.execute()

    assert report["done"] == 39
    bad = ids.pop(refused)
    assert {stored(bench.tasks, one)["status"] for one in ids} == {"done"}
    assert (stored(bench.tasks, bad)["status"], stored(bench.tasks, bad)["attempts"]) == ("pending", 0)


def test_outcomes_that_mongodb_never_confirms_are_unknown_and_left_to_their_leases(
    bench: Bench, mine: Tasks, now: datetime
) -> None:  # F10
    bench.settings = SHORT
    started: list[Any] = []

    def cut_off(payload: dict[str, Any], _ctx: Any) -> None:
        started.append(payload["n"])

    bench.task("cut_off")(cut_off)
    ids = add(bench.tasks, [document(now, name="cut_off", payload={"n": n}) for n in range(3)])
    client = mine.database.client

    def cut(_payload: dict[str, Any], _ctx: Any) -> None:
        data = {"failCommands": ["update"], "appName": bench.db.name, "closeConnection": True}
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)

    bench.task("cut")(cut)
    ids += add(bench.tasks, [document(now, name="cut")])
    try:
        report = bench.execute(tasks=mine, remaining=timedelta(seconds=4))
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")

    assert (report["claimed"], report["done"], report["unknown"]) == (4, 0, 4)
    assert {stored(bench.tasks, one)["status"] for one in ids} == {"processing"}


def test_an_execution_that_cannot_ask_for_work_says_so(bench: Bench, mine: Tasks, now: datetime) -> None:
    bench.settings = SHORT
    add(bench.tasks, [document(now)])

    with failing(mine, "aggregate", "find", times=100_000, closeConnection=True), pytest.raises(UnavailableError):
        bench.execute(tasks=mine, remaining=timedelta(seconds=2.5))


def test_an_execution_without_its_index_says_what_to_run(bench: Bench, now: datetime) -> None:
    add(bench.tasks, [document(now)])
    bench.db["tasks"].drop_index("claim")

    with pytest.raises(MissingIndexError, match="tidemill indexes"):
        bench.execute()


def test_no_operation_outlives_its_invocation(bench: Bench, mine: Tasks, now: datetime) -> None:
    bench.settings = SHORT
    client = mine.database.client
    unreachable = {"errorCode": 6, "errorLabels": ["RetryableWriteError"]}

    def cut(_payload: dict[str, Any], _ctx: Any) -> None:
        data = {"failCommands": ["update"], "appName": bench.db.name, **unreachable}
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)

    bench.task("cut")(cut)
    add(bench.tasks, [document(now, name="cut")])
    started = time.monotonic()
    try:
        report = bench.execute(tasks=mine, remaining=timedelta(seconds=4))
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")

    # The driver would repeat the settle for as long as it is let.
    assert time.monotonic() - started < 4
    assert (report["claimed"], report["unknown"]) == (1, 1)
