"""How much is where, counted from indexes and only so far."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient, monitoring
from pymongo.database import Database

from tests.builders import add, claim, document
from tests.fixtures import T0
from tidemill.documents import DEAD_LETTERS, decode
from tidemill.model import LANES, Task
from tidemill.store import counts
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)


def test_pending_tasks_are_counted_by_lane_and_by_whether_they_are_due(tasks: Tasks, now: datetime) -> None:
    later = now + SECOND
    add(tasks, [document(now) for _ in range(3)])
    add(tasks, [document(now, due_at=later, next_retry_at=later) for _ in range(2)])
    add(tasks, [document(now, lane="retry", due_at=later, next_retry_at=later, priority=n) for n in range(4)])
    add(tasks, [document(now, queue="eu"), document(now, status="done")])

    assert counts.count_due(tasks, "default", now=now) == 3
    assert counts.count_due(tasks, "default", now=later) == 9
    assert counts.count_due(tasks, "default", now=later, lanes=("retry",)) == 4
    assert counts.measure_queues(tasks, ["default"], now=now)["default"].delayed == 6
    assert counts.measure_queues(tasks, ["default"], now=later)["default"].delayed == 0
    assert counts.count_pending(tasks, "default") == 9
    assert counts.count_pending(tasks, "default", lanes=("retry",)) == 4


def test_counting_stops_one_above_its_limit(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, due_at=now - n * SECOND) for n in range(20)])

    assert counts.count_due(tasks, "default", now=now, limit=20) == 20
    assert counts.count_due(tasks, "default", now=now, limit=10) == 11
    assert counts.count_pending(tasks, "default", limit=10) == 11
    assert counts.measure_queues(tasks, ["default"], now=now - 60 * SECOND, limit=10)["default"].delayed == 11


def test_the_oldest_due_task_is_found_in_any_lane_and_priority(tasks: Tasks, now: datetime) -> None:
    assert counts.measure_queues(tasks, ["default"], now=now)["default"].oldest_due is None

    add(tasks, [document(now, priority=n % 7, due_at=now - n * SECOND) for n in range(50)])
    add(tasks, [document(now, lane="retry", priority=-3, due_at=now - 90 * SECOND)])
    add(tasks, [document(now, priority=9, due_at=now + SECOND), document(now, queue="eu", due_at=now - 99 * SECOND)])

    assert counts.measure_queues(tasks, ["default"], now=now)["default"].oldest_due == now - 90 * SECOND


def test_a_due_time_that_is_none_hides_nobody_else_s(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) | {"due_at": 5}, document(now, due_at=now - SECOND)])

    assert counts.measure_queues(tasks, ["default"], now=now)["default"].oldest_due == now - SECOND


@pytest.mark.parametrize("due_at", ["soon", None, 5])
def test_a_due_time_that_is_none_is_nobodys_age(tasks: Tasks, now: datetime, due_at: object) -> None:
    add(tasks, [document(now) | {"due_at": due_at}])

    assert counts.measure_queues(tasks, ["default"], now=now)["default"].oldest_due is None


def test_what_is_leased_is_counted_and_told_without_its_payload(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, payload={"secret": "x" * 1000}) for _ in range(5)])
    add(tasks, [document(now, queue="eu")])
    claim(tasks, now, limit=4)
    claim(tasks, now, queue="eu")

    assert counts.count_processing(tasks, "default") == 4
    assert counts.count_processing(tasks, "default", limit=2) == 3
    assert counts.count_leased_by_queue(tasks) == counts.QueueCounts(by_queue={"default": 4, "eu": 1}, is_all=True)
    assert counts.count_leased_by_queue(tasks, limit=5).is_all
    assert not counts.count_leased_by_queue(tasks, limit=4).is_all
    current = counts.list_leased(tasks, "default", limit=3)
    assert len(current) == 3
    assert all(isinstance(one, Task) and one.payload == {} for one in current)


def test_no_gauge_reads_more_than_its_share_of_an_index(
    mongod: Mongod, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    later = now + SECOND
    for _ in range(3):
        add(tasks, [document(now, priority=n % 5, due_at=now - n * SECOND) for n in range(4_000)])
    add(tasks, [document(now, due_at=later, next_retry_at=later) for _ in range(3)])
    add(tasks, [document(now, status="done") for _ in range(1_000)])
    commands = _Explainable()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        mine = open_tasks(client[db.name])
        counts.count_due(mine, "default", now=now, limit=100)
        counts.count_pending(mine, "default", limit=100)

    examined = [_keys_and_documents(db, command) for command in commands.sent]

    assert [documents for _, documents in examined] == [0] * len(examined)
    assert all(keys <= 110 for keys, _ in examined)
    assert len(examined) == 2


def test_due_tasks_of_all_queues_are_counted_up_to_a_limit(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue=f"q{n % 5}", priority=n % 3) for n in range(20)])
    add(tasks, [document(now, queue=f"q{n % 5}", lane="retry") for n in range(7)])
    add(tasks, [document(now, due_at=now + SECOND), document(now, status="processing")])

    assert counts.count_due_anywhere(tasks, "fresh", now=now) == 20
    assert counts.count_due_anywhere(tasks, "retry", now=now) == 7
    assert counts.count_due_anywhere(tasks, "fresh", now=now + SECOND) == 21
    assert counts.count_due_anywhere(tasks, "fresh", now=now, limit=20) == 20
    assert counts.count_due_anywhere(tasks, "fresh", now=now, limit=19) == 19


@pytest.mark.parametrize("others", [1, counts.QUEUES_PER_COMMAND])
def test_the_oldest_due_task_is_found_in_any_queue(tasks: Tasks, now: datetime, others: int) -> None:
    assert counts.find_oldest_due(tasks, now=now) is None
    add(tasks, [document(now, queue=f"b-{n}", due_at=now + SECOND) for n in range(others)])
    assert counts.find_oldest_due(tasks, now=now) is None

    for queue, lane, age in (("a", "fresh", 5), ("c", "retry", 9), ("b", "fresh", 7)):
        add(tasks, [document(now - n * SECOND, queue=queue, lane=lane, priority=-n) for n in range(1, age + 1)])
        assert counts.find_oldest_due(tasks, now=now) == now - {"a": 5, "c": 9, "b": 9}[queue] * SECOND


@pytest.mark.parametrize("due_at", ["soon", None, 5, [T0 - SECOND], DatetimeMS(-(10**15))])
def test_in_any_queue_a_due_time_that_is_none_hides_nobody_else_s(tasks: Tasks, now: datetime, due_at: object) -> None:
    add(tasks, [document(now, queue="odd") | {"due_at": due_at}, document(now, queue=7), document(now - SECOND)])

    assert counts.find_oldest_due(tasks, now=now) == now - SECOND


@pytest.mark.parametrize("others", [0, counts.QUEUES_PER_COMMAND - 3])
def test_sizes_of_many_queues_are_those_of_each(tasks: Tasks, now: datetime, others: int) -> None:
    names = ["a", "$b", "c.d", *(f"empty-{n}" for n in range(others)), "empty", "later", "odd"]
    add(tasks, [document(now - n * SECOND, queue="a", priority=n % 3, lane=LANES[n % 2]) for n in range(9)])
    add(tasks, [document(now - n * SECOND, queue="$b") for n in range(3)])
    add(tasks, [document(now, queue="c.d", lane="retry", due_at=now + n * SECOND) for n in range(-2, 3)])
    add(tasks, [document(now, queue="later", due_at=now + SECOND, next_retry_at=now + SECOND)])
    add(tasks, [document(now, queue="odd") | {"due_at": "soon"}, document(now, queue="odd", lane="third")])

    found = counts.measure_queues(tasks, names, now=now, limit=4)

    assert list(found) == names
    assert {size for name, size in found.items() if name.startswith("empty")} == {counts.QueueSizes()}
    for name in ("a", "$b", "c.d", "later", "odd"):
        assert found[name] == counts.QueueSizes(
            fresh=counts.count_pending(tasks, name, lanes=("fresh",), limit=4),
            retry=counts.count_pending(tasks, name, lanes=("retry",), limit=4),
            delayed=min(tasks.count_documents({"queue": name, "due_at": {"$gt": now}}), 5),
            oldest_due=min(_due(tasks, name, now=now), default=None),
        )
    assert counts.count_pending_by_queue(tasks, names, lane="retry", limit=4) == {
        name: found[name].retry for name in names
    }
    assert counts.measure_queues(tasks, [], now=now) == {}


def test_dead_letters_are_counted_up_to_a_limit(dead: Tasks) -> None:
    assert counts.count_dead_letters(dead) == 0

    add(dead, [{"_id": {"task": n, "redrives": 0}, "redriven_at": T0 if n % 2 else None} for n in range(9)])

    assert counts.count_dead_letters(dead) == 9
    assert counts.count_dead_letters(dead, limit=4) == 4


def test_no_gauge_of_all_queues_reads_more_than_its_share_of_an_index(
    db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    limit, places = 100, 10 * 2 * 5  # queues, lanes, priorities
    for lane in LANES:
        add(tasks, [_spread(now - n * SECOND, n, lane=lane) for n in range(4_000)])
        add(tasks, [_spread(now + SECOND, n, lane=lane) for n in range(1_000)])
    add(tasks, [document(now, status="done") for _ in range(1_000)])
    add(open_tasks(db, DEAD_LETTERS), [{"_id": {"task": n, "redrives": 0}} for n in range(1_000)])
    db.command("profile", 2)

    counts.measure_queues(tasks, [f"q{n}" for n in range(10)], now=now, limit=limit)
    counts.count_due_anywhere(tasks, "fresh", now=now, limit=limit)
    counts.find_oldest_due(tasks, now=now)
    counts.count_dead_letters(open_tasks(db, DEAD_LETTERS), limit=limit)

    db.command("profile", 0)
    sizes, due, queues, oldest, letters = (
        one for one in db["system.profile"].find({"command.aggregate": {"$exists": True}})
    )
    assert sizes["keysExamined"] <= 10 * 3 * limit + 10 * places
    assert due["keysExamined"] <= limit + places
    assert queues["keysExamined"] + oldest["keysExamined"] <= 10 + 3 * places
    assert letters["keysExamined"] <= limit
    assert [one["docsExamined"] for one in (sizes, due, queues, oldest, letters)] == [0] * 5


def _spread(at: datetime, n: int, *, lane: str) -> dict[str, Any]:
    return document(at, queue=f"q{n % 10}", priority=n // 10 % 5, lane=lane)


class _Explainable(monitoring.CommandListener):
    """Keeps the commands that read."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name == "aggregate":
            hidden = {"lsid", "$db", "$clusterTime", "readConcern", "$readPreference", "txnNumber"}
            self.sent.append({name: value for name, value in event.command.items() if name not in hidden})

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


def _keys_and_documents(db: Database[Any], command: dict[str, Any]) -> tuple[int, int]:
    plan: dict[str, Any] = db.command("explain", command, verbosity="executionStats")
    cursor = plan["stages"][0]["$cursor"] if "stages" in plan else plan
    return cursor["executionStats"]["totalKeysExamined"], cursor["executionStats"]["totalDocsExamined"]


def _due(tasks: Tasks, queue: str, *, now: datetime) -> list[datetime]:
    found = [decode(raw)["due_at"] for raw in tasks.find({"queue": queue, "lane": {"$in": list(LANES)}})]
    return [at for at in found if isinstance(at, datetime) and at <= now]
