"""What an operator does to queues and tasks, on a database and with the real executor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import MINUTE, add, claim_one, document, stored
from tests.conftest import ManualClock
from tests.use_cases.conftest import Bench
from tidemill import control
from tidemill.client import Queue
from tidemill.errors import InvalidRequestError, NotDelayedError, TaskNotFoundError
from tidemill.operations import Desk, operate, read
from tidemill.retry import DEFAULT
from tidemill.store import Tasks

SECRET = "s3cret-of-a-customer"


@pytest.fixture
def desk(db: Database[Any], clock: ManualClock) -> Desk:
    return Desk(db=db, clock=clock, retry=DEFAULT)


def do(desk: Desk, op: str, **fields: Any) -> dict[str, Any]:
    return operate(read({"op": op, **fields}), desk)


def listed(desk: Desk, **fields: Any) -> list[str]:
    """The ids on all pages, in order."""
    page = do(desk, "task.list", **fields)
    ids = [task["id"] for task in page["tasks"]]
    return ids if page["next"] is None else ids + listed(desk, **fields | {"cursor": page["next"]})


def test_a_paused_queue_takes_new_tasks_and_starts_none(bench: Bench, desk: Desk) -> None:
    queue = Queue(bench.db, clock=bench.clock)
    do(desk, "queue.declare", queue="eu")

    paused = do(desk, "queue.pause", queue="eu")["queue"]
    [waiting, other] = [queue.enqueue("noop", {"n": name}, queue=name) for name in ("eu", "default")]

    assert paused["paused"] is True
    assert bench.execute()["claimed"] == 1
    assert bench.ran == ["default"]
    assert (stored(bench.tasks, waiting)["status"], stored(bench.tasks, other)["status"]) == ("pending", "done")

    assert do(desk, "queue.resume", queue="eu")["queue"]["paused"] is False
    bench.execute()
    assert bench.ran == ["default", "eu"]


def test_a_paused_queue_runs_no_retries_either(bench: Bench, desk: Desk, tasks: Tasks) -> None:
    add(tasks, [document(bench.clock.now(), lane="retry", attempts=1)])
    do(desk, "queue.pause", queue="default")

    assert bench.execute()["claimed"] == 0


@pytest.mark.parametrize("op", ["queue.pause", "queue.resume", "queue.set"])
def test_a_queue_that_is_not_there_is_not_changed_and_the_sentence_says_how_to_declare_it(desk: Desk, op: str) -> None:
    fields = {"retry_share": 0.5} if op == "queue.set" else {}

    with pytest.raises(InvalidRequestError, match="run `tidemill ops queue declare us` once"):
        do(desk, op, queue="us", **fields)

    assert control.listed_queues(desk.db) == []


def test_a_change_answers_with_the_queue_as_it_is_then(desk: Desk, tasks: Tasks) -> None:
    add(tasks, [document(desk.clock.now() - MINUTE)])

    answer = do(desk, "queue.set", queue="default", retry_share=0.25, adaptive={"scale": 5})

    assert answer["queue"]["queue_size"] == 1
    assert answer["queue"]["oldest_due_age_sec"] == 60
    assert answer["queue"]["options"] == {
        "paused": False,
        "selection": None,
        "retry_share": 0.25,
        "max_in_flight_retries": None,
        "pressure": {"adaptive": {"scale": 5, "max_sec": 60.0}, "budget": None},
    }
    assert do(desk, "queue.status", queue="default")["queue"] == answer["queue"]


def test_where_no_executor_ever_was_a_change_says_so(desk: Desk) -> None:
    [warning] = do(desk, "queue.pause", queue="default")["warnings"]
    assert warning == f"no executor has ever registered its functions in {desk.db.name}: is MONGODB_DATABASE right?"

    desk.db["task_types"].insert_one({"_id": "noop"})
    assert do(desk, "queue.resume", queue="default")["warnings"] == []


def test_counts_end_where_they_end_everywhere(desk: Desk, tasks: Tasks) -> None:
    tasks.insert_many(document(desk.clock.now()) for _ in range(10_001))

    assert do(desk, "queue.list")["queues"][0]["queue_size"] == "10000+"


def test_pages_neither_repeat_nor_miss_while_tasks_come_in(desk: Desk, tasks: Tasks) -> None:  # F68
    now = desk.clock.now()
    ids = [str(one) for one in add(tasks, [document(now) for _ in range(50)])]
    first = do(desk, "task.list", limit=10)
    add(tasks, [document(now) for _ in range(7)])

    rest = listed(desk, limit=10, cursor=first["next"])

    assert [task["id"] for task in first["tasks"]] + rest == sorted(ids, reverse=True)


def test_filters_are_taken_literally(desk: Desk, tasks: Tasks) -> None:  # F72
    now = desk.clock.now()
    [dotted, _] = add(tasks, [document(now, name="a.c", queue="e.u"), document(now, name="abc", queue="exu")])

    assert listed(desk, name="a.c") == listed(desk, queue="e.u") == [str(dotted)]
    assert listed(desk, name="(a+)+$") == listed(desk, name="$ne") == []


def test_filters_go_together(desk: Desk, tasks: Tasks) -> None:
    now = desk.clock.now()
    wanted, *_ = add(
        tasks,
        [
            document(now, name="a", queue="eu", status="done"),
            document(now, name="a", queue="eu"),
            document(now, name="a", queue="us", status="done"),
            document(now, name="b", queue="eu", status="done"),
        ],
    )

    assert listed(desk, name="a", queue="eu", status="done", limit=1) == [str(wanted)]


def test_a_list_of_a_queue_that_is_not_there_says_so(desk: Desk, tasks: Tasks) -> None:
    now = desk.clock.now()
    add(tasks, [document(now, queue="ended", status="done"), document(now, queue="europe")])

    assert do(desk, "task.list", queue="eurpoe")["warnings"] == ["there is no queue eurpoe, did you mean europe?"]
    assert do(desk, "task.list", queue="europe", status="done")["warnings"] == []
    assert do(desk, "task.list", queue="ended")["warnings"] == []


def test_a_malformed_task_is_listed_and_shown_as_one(desk: Desk, tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(desk.clock.now(), name=7, payload={"card": SECRET})])

    [listed_one] = do(desk, "task.list")["tasks"]

    assert listed_one == {
        "id": str(task_id),
        "dead_letter": False,
        "malformed": "name is not what it has to be",
        "lease": None,
    }
    assert do(desk, "task.show", id=str(task_id))["task"] == listed_one | {"attempt_log": []}


def test_neither_payload_nor_result_nor_token_is_in_any_answer(desk: Desk, tasks: Tasks) -> None:  # F80, F81
    now = desk.clock.now()
    secret = {"payload": {"card": SECRET}, "idempotency_key": SECRET}
    add(tasks, [document(now, **secret)])
    task_id = str(claim_one(tasks, now).id)
    tasks.update_one({}, {"$set": {"lease.token": SECRET, "result": {"card": SECRET}}})

    for op in ("task.list", "queue.list", "stats"):
        assert SECRET not in str(do(desk, op))
    for op in ("task.show", "task.explain", "task.cancel"):
        assert SECRET not in str(do(desk, op, id=task_id))


@pytest.mark.parametrize("task_id", ["order-7", "6b0a99c7baf140d0cc3848a", "x" * 24, "a\x00b", "$ne"])
def test_an_id_that_is_no_object_id_is_text(desk: Desk, tasks: Tasks, task_id: str) -> None:
    add(tasks, [document(desk.clock.now(), _id=task_id)])

    assert do(desk, "task.show", id=task_id)["task"]["id"] == task_id


def test_24_hex_digits_are_an_object_id_in_either_case(desk: Desk, tasks: Tasks) -> None:
    task_id = ObjectId("6b0a99c7baf140d0cc3848ad")
    add(tasks, [document(desk.clock.now(), _id=task_id)])

    assert do(desk, "task.show", id=str(task_id).upper())["task"]["id"] == str(task_id)


def test_a_dead_letter_is_shown_and_explained_as_one(desk: Desk) -> None:
    task = document(desk.clock.now(), status="failed", reason="exhausted")
    letter = task | {"_id": {"task": task["_id"], "redrives": 0}, "dead_lettered_at": desk.clock.now()}
    desk.db["tasks_dlq"].insert_one(letter)

    assert do(desk, "task.show", id=str(task["_id"]))["task"]["dead_letter"] is True
    assert do(desk, "task.explain", id=str(task["_id"]))["explanation"]["is_dead_letter"] is True
    assert do(desk, "task.cancel", id=str(task["_id"]))["task"]["dead_letter"] is True
    assert do(desk, "task.list")["tasks"] == []


def test_a_delayed_task_is_hurried_and_runs_at_once(bench: Bench, desk: Desk) -> None:
    queue = Queue(bench.db, clock=bench.clock)
    task_id = queue.enqueue("noop", {"n": 1}, delay=timedelta(hours=3))
    assert bench.execute()["claimed"] == 0

    task = do(desk, "task.retry", id=str(task_id))["task"]

    assert (task["status"], task["due_at"], task["next_retry_at"]) == ("pending", "2031-07-01T09:00:00.000Z", None)
    assert bench.execute()["done"] == 1
    with pytest.raises(NotDelayedError):
        do(desk, "task.retry", id=str(task_id))


def test_a_pending_task_is_cancelled_and_once_more_nothing_changes(desk: Desk, tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(desk.clock.now())])

    first, second = (do(desk, "task.cancel", id=str(task_id)) for _ in range(2))

    assert (first["was"], first["task"]["status"]) == ("pending", "cancelled")
    assert (second["was"], second["task"]) == ("cancelled", first["task"])


def test_a_running_task_is_asked_to_stop_and_with_force_loses_its_lease(desk: Desk, tasks: Tasks) -> None:
    add(tasks, [document(desk.clock.now())])
    task_id = str(claim_one(tasks, desk.clock.now()).id)

    asked = do(desk, "task.cancel", id=task_id)
    forced = do(desk, "task.cancel", id=task_id, force=True)

    assert (asked["was"], asked["task"]["status"]) == ("processing", "processing")
    assert asked["task"]["cancel_requested_at"] is not None
    assert (forced["was"], forced["task"]["status"], forced["task"]["lease"]) == ("processing", "cancelled", None)


@pytest.mark.parametrize("op", ["task.show", "task.explain", "task.retry", "task.cancel"])
def test_a_task_that_is_not_there_is_not_found(desk: Desk, op: str) -> None:
    with pytest.raises(TaskNotFoundError, match="there is no task order-8"):
        do(desk, op, id="order-8")


def test_statistics_are_of_all_queues_or_of_one(desk: Desk) -> None:
    minute = desk.clock.now().replace(second=0, microsecond=0)
    desk.db["queue_stats"].insert_many(
        {"_id": {"queue": queue, "minute": minute, "name": "noop"}, "minute": minute, "retry_runs": 4}
        for queue in ("eu", "us")
    )

    assert [one["queue"] for one in do(desk, "stats")["statistics"]] == ["eu", "us"]
    assert [one["total_retries"] for one in do(desk, "stats", queue="us")["statistics"]] == [4]
    assert do(desk, "stats", queue="u.")["statistics"] == []
