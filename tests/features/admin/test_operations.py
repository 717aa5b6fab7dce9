"""What an operator does to queues and tasks, on a database and with the real executor."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Decimal128, ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import MINUTE, add, claim_one, document, stored
from tests.commands import Commands
from tests.faults import Beforehand, failing, heard
from tests.features.conftest import Bench
from tests.fixtures import ManualClock
from tidemill.admin.api import MAX_ANSWER_BYTES, bound_answer, operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.client import Queue
from tidemill.control import queues
from tidemill.errors import InvalidRequestError, MissingIndexError, NotDelayedError, TaskNotFoundError
from tidemill.policy.retry import DEFAULT
from tidemill.store.connection import Tasks
from tidemill.testing import Mongod

SECRET = "s3cret-of-a-customer"


@pytest.fixture
def context(db: Database[Any], clock: ManualClock) -> AdminContext:
    return AdminContext(db=db, clock=clock, retry=DEFAULT)


def do(context: AdminContext, op: str, **fields: Any) -> dict[str, Any]:
    return bound_answer(operate(read_operation({"op": op, **fields}), context).document())


def listed(context: AdminContext, **fields: Any) -> list[str]:
    """The ids on all pages, in order."""
    page = do(context, "task.list", **fields)
    ids = [task["id"] for task in page["tasks"]]
    return ids if page["next"] is None else ids + listed(context, **fields | {"cursor": page["next"]})


def test_a_paused_queue_takes_new_tasks_and_starts_none(bench: Bench, context: AdminContext) -> None:
    queue = Queue(bench.db, clock=bench.clock)
    do(context, "queue.declare", queue="eu")

    paused = do(context, "queue.pause", queue="eu")["queue"]
    [waiting, other] = [queue.enqueue("noop", {"n": name}, queue=name) for name in ("eu", "default")]

    assert paused["paused"] is True
    assert bench.execute()["claimed"] == 1
    assert bench.ran == ["default"]
    assert (stored(bench.tasks, waiting)["status"], stored(bench.tasks, other)["status"]) == ("pending", "done")

    assert do(context, "queue.resume", queue="eu")["queue"]["paused"] is False
    bench.execute()
    assert bench.ran == ["default", "eu"]


def test_a_paused_queue_runs_no_retries_either(bench: Bench, context: AdminContext, tasks: Tasks) -> None:
    add(tasks, [document(bench.clock.now(), lane="retry", attempts=1)])
    do(context, "queue.pause", queue="default")

    assert bench.execute()["claimed"] == 0


@pytest.mark.parametrize("op", ["queue.pause", "queue.resume", "queue.set"])
def test_a_queue_that_is_not_there_is_not_changed_and_the_sentence_says_how_to_declare_it(
    context: AdminContext, op: str
) -> None:
    fields = {"retry_share": 0.5} if op == "queue.set" else {}

    with pytest.raises(InvalidRequestError, match="run `tidemill ops queue declare us` once"):
        do(context, op, queue="us", **fields)

    assert queues.list_configured_queues(context.db) == []


def test_a_change_answers_with_what_the_queue_then_chooses(context: AdminContext) -> None:
    answer = do(context, "queue.set", queue="default", retry_share=0.25, adaptive={"scale": 5})

    assert answer["queue"].keys() == {"queue", "paused", "options"}
    assert answer["queue"]["options"] == {
        "paused": False,
        "selection": None,
        "retry_share": 0.25,
        "max_in_flight_retries": None,
        "pressure": {"adaptive": {"scale": 5, "max_sec": 60.0}, "budget": None},
    }
    assert answer["queue"].items() <= do(context, "queue.status", queue="default")["queue"].items()


@pytest.mark.parametrize("op", ["queue.declare", "queue.pause", "queue.resume", "queue.set"])
def test_what_has_been_changed_is_told_though_nothing_else_can_be(context: AdminContext, op: str) -> None:
    context.db["task_types"].insert_one({"_id": "noop"})
    context.db["tasks"].drop_indexes()
    fields = {"retry_share": 0.5} if op == "queue.set" else {}

    answer = do(context, op, queue="default", **fields)

    assert (answer["queue"]["queue"], answer.get("warnings", [])) == ("default", [])
    with pytest.raises(MissingIndexError):
        do(context, "queue.status", queue="default")


@pytest.mark.parametrize(
    ("op", "unread", "told"),
    [
        ("queue.pause", "task_types", ["whether an executor ever was at work here is unknown: "]),
        ("task.retry", "queues", ["whether its queue is paused is unknown: "]),
        ("task.retry", "task_types", []),
        ("task.cancel", "task_types", []),
    ],
)
def test_a_look_that_fails_behind_a_change_is_no_more_than_a_warning(
    context: AdminContext, tasks: Tasks, op: str, unread: str, told: list[str]
) -> None:
    later = context.clock.now() + MINUTE
    add(tasks, [document(context.clock.now(), _id="x", due_at=later, next_retry_at=later)])
    about = {"queue": "default"} if op == "queue.pause" else {"id": "x"}

    with failing(tasks, "find", times=99, errorCode=13, namespace=f"{context.db.name}.{unread}"):
        answer = do(context, op, **about)

    assert [one.partition("MongoDB")[0] for one in answer.get("warnings", [])] == told


def test_two_operators_who_change_different_things_at_once_do_not_undo_each_other(context: AdminContext) -> None:
    do(context, "queue.set", queue="default", adaptive={"scale": 7}, budget={})

    def change() -> None:
        do(context, "queue.pause", queue="default")
        do(context, "queue.set", queue="default", adaptive={"max_sec": 9}, budget=None, retry_share=0.5)

    with heard(context.db, Beforehand("findAndModify", change)) as db:
        other = replace(context, db=db)
        answer = do(other, "queue.set", queue="default", adaptive={"scale": 3}, selection="retries_first")

    assert answer["queue"]["options"] == {
        "paused": True,
        "selection": "retries_first",
        "retry_share": 0.5,
        "max_in_flight_retries": None,
        "pressure": {"adaptive": {"scale": 3, "max_sec": 9}, "budget": None},
    }


def test_queues_are_listed_page_by_page_in_the_order_of_their_names(context: AdminContext, tasks: Tasks) -> None:
    now = context.clock.now()
    queues.declare_queue(context.db, "b", now=now)
    add(tasks, [document(now, queue=name) for name in ("a", "c", "d" * 3000, "e", "$x")])
    add(tasks, [document(now, queue="leased", status="processing", lease={"token": "t"})])

    page = do(context, "queue.list", limit=1)
    found = list(page["queues"])
    for _ in range(7):
        page = do(context, "queue.list", limit=1, cursor=page["next"])
        found += page["queues"]

    assert page["next"] is None

    assert [one["queue"] for one in found] == ["$x", "a", "b", "c", "d" * 3000, "default", "e", "leased"]
    assert [one["queue_size"] for one in found] == [1, 1, 0, 1, 1, 0, 1, 0]
    assert [one["processing"] for one in found] == [0] * 7 + [1]
    assert "current" not in found[0]
    assert do(context, "queue.list", limit=4, cursor="d")["queues"][0]["queue"] == "d" * 3000


@pytest.mark.parametrize(("op", "most"), [("queue.list", 6), ("stats", 2)])
def test_a_list_takes_as_many_commands_for_many_queues_as_for_one(
    mongod: Mongod, clock: ManualClock, tasks: Tasks, op: str, most: int
) -> None:
    now, minute = clock.now(), clock.now().replace(second=0, microsecond=0)
    add(tasks, [document(now, queue=f"q{n % 90}") for n in range(180)])
    add(tasks, [document(now, queue=f"q{n % 90}", status="processing", lease={"token": "t"}) for n in range(180)])
    tasks.database["queue_stats"].insert_many(
        {"_id": {"queue": f"q{n}", "minute": minute, "name": "x"}, "minute": minute, "retry_runs": 1} for n in range(90)
    )
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands], tz_aware=True) as client:
        context = AdminContext(db=client[tasks.database.name], clock=clock, retry=DEFAULT)
        answer = do(context, op)

    assert len(answer["queues" if op == "queue.list" else "statistics"]) >= 90
    assert len([name for name in commands.names if name in {"find", "aggregate", "getMore", "count"}]) <= most


@pytest.mark.parametrize(
    ("task_id", "shown"),
    [
        (42, "42"),
        (-7, "-7"),
        (2**62, "4611686018427387904"),
        (1.5, "1.5"),
        ("42", "42"),
        ("true", "true"),
        ("6b0a99c7baf140d0cc3848ad", "6b0a99c7baf140d0cc3848ad"),
        ("-f", "-f"),
        ("x" * 1024, "x" * 1024),
        ("\x01" * 1024, "\x01" * 1024),
        ('{"$date": 3}', '{"$date": 3}'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_task_with_an_object_id_a_text_or_a_number_is_read_and_changed_as_it_is_shown(
    context: AdminContext, tasks: Tasks, task_id: Any, shown: str
) -> None:
    later = context.clock.now() + MINUTE
    add(
        tasks, [document(context.clock.now(), _id=one, due_at=later, next_retry_at=later) for one in (task_id, "other")]
    )

    assert sorted(listed(context, limit=1)) == sorted(["other", shown])
    assert do(context, "task.show", id=shown)["task"]["id"] == shown
    assert do(context, "task.explain", id=shown)["explanation"]["task_id"] == shown
    assert do(context, "task.retry", id=shown)["task"]["next_retry_at"] is None
    with pytest.raises(NotDelayedError):
        do(context, "task.retry", id=shown)
    assert do(context, "task.cancel", id=shown)["task"]["status"] == "cancelled"
    assert [one["id"] for one in do(context, "task.list", status="cancelled")["tasks"]] == [shown]
    assert stored(tasks, "other")["status"] == "pending"


OTHER_IDS = [
    (True, "true"),
    (datetime(2031, 7, 1, tzinfo=UTC), '{"$date": "2031-07-01T00:00:00Z"}'),
    ({"tenant": 7, "n": 1}, '{"tenant": 7, "n": 1}'),
    (Binary.from_uuid(UUID(int=7)), '{"$uuid": "00000000-0000-0000-0000-000000000007"}'),
    (Decimal128("1.10"), '{"$numberDecimal": "1.10"}'),
]
NOT_ADDRESSED = "id: is neither an ObjectId, a text nor a number, so it cannot be given here; use mongosh"


@pytest.mark.parametrize(("task_id", "shown"), OTHER_IDS)
def test_a_task_with_an_id_of_another_type_is_listed_and_not_addressed(
    context: AdminContext, tasks: Tasks, task_id: Any, shown: str
) -> None:
    add(tasks, [document(context.clock.now(), _id=task_id)])

    assert listed(context, limit=1) == [shown]
    for op in ("task.show", "task.explain", "task.retry", "task.cancel", "dlq.show"):
        with pytest.raises(InvalidRequestError) as refused:
            do(context, op, id=shown)
        assert str(refused.value) == NOT_ADDRESSED


@pytest.mark.parametrize("other", [42, ObjectId("6b0a99c7baf140d0cc3848ad")])
def test_an_id_that_stands_for_two_tasks_changes_neither(context: AdminContext, tasks: Tasks, other: Any) -> None:
    add(tasks, [document(context.clock.now(), _id=task_id) for task_id in (other, str(other))])

    with pytest.raises(
        InvalidRequestError, match="id: stands for two tasks: the id of one is a text, of the other not"
    ):
        do(context, "task.cancel", id=str(other))

    assert tasks.count_documents({"status": "pending"}) == 2


def test_where_no_executor_ever_was_a_change_says_so(context: AdminContext) -> None:
    [warning] = do(context, "queue.pause", queue="default")["warnings"]
    assert warning == f"no executor has ever registered its functions in {context.db.name}: is MONGODB_DATABASE right?"

    context.db["task_types"].insert_one({"_id": "noop"})
    assert do(context, "queue.resume", queue="default")["warnings"] == []


def test_counts_end_where_they_end_everywhere(context: AdminContext, tasks: Tasks) -> None:
    tasks.insert_many(document(context.clock.now()) for _ in range(10_001))

    assert do(context, "queue.list")["queues"][0]["queue_size"] == "10000+"


def test_pages_neither_repeat_nor_miss_while_tasks_come_in(context: AdminContext, tasks: Tasks) -> None:  # F68
    now = context.clock.now()
    ids = [str(one) for one in add(tasks, [document(now) for _ in range(50)])]
    first = do(context, "task.list", limit=10)
    add(tasks, [document(now) for _ in range(7)])

    rest = listed(context, limit=10, cursor=first["next"])

    assert [task["id"] for task in first["tasks"]] + rest == sorted(ids, reverse=True)


def test_filters_are_taken_literally(context: AdminContext, tasks: Tasks) -> None:  # F72
    now = context.clock.now()
    [dotted, _] = add(tasks, [document(now, name="a.c", queue="e.u"), document(now, name="abc", queue="exu")])

    assert listed(context, name="a.c") == listed(context, queue="e.u") == [str(dotted)]
    assert listed(context, name="(a+)+$") == listed(context, name="$ne") == []


def test_filters_go_together(context: AdminContext, tasks: Tasks) -> None:
    now = context.clock.now()
    wanted, *_ = add(
        tasks,
        [
            document(now, name="a", queue="eu", status="done"),
            document(now, name="a", queue="eu"),
            document(now, name="a", queue="us", status="done"),
            document(now, name="b", queue="eu", status="done"),
        ],
    )

    assert listed(context, name="a", queue="eu", status="done", limit=1) == [str(wanted)]


def test_a_list_of_a_queue_that_is_not_there_says_so(context: AdminContext, tasks: Tasks) -> None:
    now = context.clock.now()
    add(tasks, [document(now, queue="ended", status="done"), document(now, queue="europe")])
    context.db["task_types"].insert_one({"_id": "noop"})

    assert do(context, "task.list", queue="eurpoe")["warnings"] == ["there is no queue eurpoe, did you mean europe?"]
    assert do(context, "task.list", queue="europe", status="done")["warnings"] == []
    assert do(context, "task.list", queue="ended")["warnings"] == []


def test_a_malformed_task_is_listed_and_shown_as_one(context: AdminContext, tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(context.clock.now(), name=7, payload={"card": SECRET})])

    [listed_one] = do(context, "task.list")["tasks"]

    assert listed_one == {
        "id": str(task_id),
        "dead_letter": False,
        "malformed": "name is not what it has to be",
        "lease": None,
    }
    assert do(context, "task.show", id=str(task_id))["task"] == listed_one | {"attempt_log": []}


def test_neither_payload_nor_result_nor_token_is_in_any_answer(context: AdminContext, tasks: Tasks) -> None:  # F80, F81
    now = context.clock.now()
    secret = {"payload": {"card": SECRET}, "idempotency_key": SECRET}
    add(tasks, [document(now, **secret)])
    task_id = str(claim_one(tasks, now).id)
    tasks.update_one({}, {"$set": {"lease.token": SECRET, "result": {"card": SECRET}}})

    for op in ("task.list", "queue.list", "stats"):
        assert SECRET not in str(do(context, op))
    for op in ("task.show", "task.explain", "task.cancel"):
        assert SECRET not in str(do(context, op, id=task_id))


def test_an_answer_of_more_than_its_limit_is_cut_and_says_so(context: AdminContext, tasks: Tasks) -> None:
    now = context.clock.now()
    line = {"attempt": 1, "status": "failed", "started_at": now, "duration_ms": 1, "note": "\x01" * 2_300}
    log = [line | {"attempt": number} for number in range(350)]  # each of these characters has six in JSON
    error = {"message": "x" * 200_000, "code": "c", "at": now}
    add(tasks, [document(now, _id="huge", attempt_log=log, error=error, payload={"card": SECRET})])

    answer = do(context, "task.show", id="huge")

    assert answer["truncated"] is True
    assert len(json.dumps(answer)) <= MAX_ANSWER_BYTES
    attempts = [one["attempt"] for one in answer["task"]["attempt_log"]]
    assert (attempts[0], attempts[-1], attempts == sorted(attempts)) == (0, 349, True)
    assert answer["task"]["error"]["message"].startswith("xxx")
    assert SECRET not in json.dumps(answer)


@pytest.mark.parametrize("task_id", ["order-7", "6b0a99c7baf140d0cc3848a", "x" * 24, "a\x00b", "$ne"])
def test_an_id_that_is_no_object_id_is_text(context: AdminContext, tasks: Tasks, task_id: str) -> None:
    add(tasks, [document(context.clock.now(), _id=task_id)])

    assert do(context, "task.show", id=task_id)["task"]["id"] == task_id


def test_a_dead_letter_is_found_by_a_number(context: AdminContext) -> None:
    task = document(context.clock.now(), status="failed", reason="exhausted")
    letter = task | {"_id": {"task": 42, "redrives": 0}, "dead_lettered_at": context.clock.now()}
    context.db["tasks_dlq"].insert_one(letter)

    for op in ("task.show", "task.cancel"):
        assert (do(context, op, id="42")["task"]["id"], do(context, op, id="42")["task"]["dead_letter"]) == ("42", True)
    assert do(context, "task.explain", id="42")["explanation"]["task_id"] == "42"


def test_a_dead_letter_is_shown_and_explained_as_one(context: AdminContext) -> None:
    task = document(context.clock.now(), status="failed", reason="exhausted")
    letter = task | {"_id": {"task": task["_id"], "redrives": 0}, "dead_lettered_at": context.clock.now()}
    context.db["tasks_dlq"].insert_one(letter)

    assert do(context, "task.show", id=str(task["_id"]))["task"]["dead_letter"] is True
    assert do(context, "task.explain", id=str(task["_id"]))["explanation"]["is_dead_letter"] is True
    assert do(context, "task.cancel", id=str(task["_id"]))["task"]["dead_letter"] is True
    assert do(context, "task.list")["tasks"] == []


def test_a_delayed_task_is_hurried_and_runs_at_once(bench: Bench, context: AdminContext) -> None:
    queue = Queue(bench.db, clock=bench.clock)
    task_id = queue.enqueue("noop", {"n": 1}, delay=timedelta(hours=3))
    assert bench.execute()["claimed"] == 0

    task = do(context, "task.retry", id=str(task_id))["task"]

    assert (task["status"], task["due_at"], task["next_retry_at"]) == ("pending", "2031-07-01T09:00:00.000Z", None)
    assert bench.execute()["done"] == 1
    with pytest.raises(NotDelayedError):
        do(context, "task.retry", id=str(task_id))


def test_a_pending_task_is_cancelled_and_once_more_nothing_changes(context: AdminContext, tasks: Tasks) -> None:
    [task_id] = add(tasks, [document(context.clock.now())])

    first, second = (do(context, "task.cancel", id=str(task_id)) for _ in range(2))

    assert (first["was"], first["task"]["status"]) == ("pending", "cancelled")
    assert (second["was"], second["task"]) == ("cancelled", first["task"])


def test_a_running_task_is_asked_to_stop_and_with_force_loses_its_lease(context: AdminContext, tasks: Tasks) -> None:
    add(tasks, [document(context.clock.now())])
    task_id = str(claim_one(tasks, context.clock.now()).id)

    asked = do(context, "task.cancel", id=task_id)
    forced = do(context, "task.cancel", id=task_id, force=True)

    assert (asked["was"], asked["task"]["status"]) == ("processing", "processing")
    assert asked["task"]["cancel_requested_at"] is not None
    assert (forced["was"], forced["task"]["status"], forced["task"]["lease"]) == ("processing", "cancelled", None)


@pytest.mark.parametrize("op", ["task.show", "task.explain", "task.retry", "task.cancel"])
def test_a_task_that_is_not_there_is_not_found(context: AdminContext, op: str) -> None:
    with pytest.raises(TaskNotFoundError, match=f"there is no task order-8 in {context.db.name}"):
        do(context, op, id="order-8")


def test_statistics_are_of_all_queues_or_of_one(context: AdminContext) -> None:
    minute = context.clock.now().replace(second=0, microsecond=0)
    context.db["queue_stats"].insert_many(
        {"_id": {"queue": queue, "minute": minute, "name": "noop"}, "minute": minute, "retry_runs": 4}
        for queue in ("eu", "us")
    )

    assert [one["queue"] for one in do(context, "stats")["statistics"]] == ["eu", "us"]
    assert [one["total_retries"] for one in do(context, "stats", queue="us")["statistics"]] == [4]
    assert do(context, "stats", queue="u.")["statistics"] == []
