"""`Queue` as an application uses it, outside of Lambda."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.database import Database

from tests.builders import document
from tests.fixtures import T0, ManualClock
from tests.handlers.blocking import MakeQueue
from tidemill import (
    PRESETS,
    Backoff,
    DuplicateKeyError,
    InvalidRequestError,
    NewTask,
    Queue,
    RetryPolicy,
    Task,
    TaskNotFoundError,
    UnknownTaskError,
)

MINUTE = timedelta(minutes=1)
NUMBERS: dict[str, Any] = {
    "strategy": "fibonacci", "base_sec": 1, "factor": 3, "max_sec": 9, "jitter": "proportional", "jitter_factor": 0.5
}  # fmt: skip


@pytest.fixture
def queue(db: Database[Any], clock: ManualClock, make_queue: MakeQueue) -> Queue:
    return make_queue(db, clock=clock)


@pytest.fixture
def unasked(make_queue: MakeQueue) -> Iterator[Queue]:
    """A queue whose client never connects: what it refuses, it refuses without MongoDB."""
    with MongoClient[dict[str, Any]]("mongodb://127.0.0.1:1/", connect=False, timeoutMS=1) as client:
        yield make_queue(client["x"])


def only(db: Database[Any]) -> dict[str, Any]:
    [task] = db.tasks.find()
    found: dict[str, Any] = task
    return found


def fields(error: pytest.ExceptionInfo[InvalidRequestError]) -> list[str]:
    return [problem.field for problem in error.value.problems]


def test_a_task_without_options_is_due_now(queue: Queue, db: Database[Any]) -> None:
    task_id = queue.enqueue("send", {"a": 1})

    task = only(db)
    assert isinstance(task_id, ObjectId)
    assert task["_id"] == task_id
    assert (task["due_at"], task["next_retry_at"], task["created_at"]) == (T0, None, T0)
    assert (task["max_retries"], task["backoff_policy"], task["timeout_sec"], task["expires_at"]) == (None,) * 4
    assert (task["queue"], task["priority"], task["trace"]) == ("default", 0, {})
    assert "idempotency_key" not in task
    assert "request_hash" not in task


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queue": "eu"}, {"queue": "eu"}),
        ({"priority": -7}, {"priority": -7}),
        ({"delay": MINUTE}, {"due_at": T0 + MINUTE, "next_retry_at": T0 + MINUTE}),
        ({"delay": timedelta(0)}, {"due_at": T0, "next_retry_at": None}),
        ({"delay": timedelta(microseconds=1)}, {"due_at": T0 + timedelta(milliseconds=1)}),
        ({"not_before": T0 + MINUTE}, {"due_at": T0 + MINUTE, "next_retry_at": T0 + MINUTE}),
        ({"not_before": T0 - MINUTE}, {"due_at": T0, "next_retry_at": None}),
        ({"not_before": (T0 + MINUTE).astimezone(timezone(timedelta(hours=5, minutes=30)))}, {"due_at": T0 + MINUTE}),
        ({"expires_at": T0 + timedelta(microseconds=1999)}, {"expires_at": T0 + timedelta(milliseconds=1)}),
        ({"max_retries": 0}, {"max_retries": 0, "backoff_policy": None}),
        ({"timeout": timedelta(seconds=1.5)}, {"timeout_sec": 1.5}),
        (
            {"retry": RetryPolicy(max_retries=3, backoff=Backoff(**NUMBERS))},
            {"max_retries": 3, "backoff_policy": asdict(Backoff(**NUMBERS))},
        ),
        *(
            ({"retry": name}, {"max_retries": preset.max_retries, "backoff_policy": asdict(preset.backoff)})
            for name, preset in PRESETS.items()
        ),
        ({"retry": "standard", "max_retries": 0}, {"max_retries": 0}),
        ({"retry": RetryPolicy(max_retries=3), "max_retries": 7}, {"max_retries": 7}),
        ({"idempotency_key": "order-7"}, {"idempotency_key": "order-7"}),
    ],
)  # fmt: skip
def test_every_option_reaches_the_document(
    queue: Queue, db: Database[Any], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    queue.enqueue("send", {}, **options)

    task = only(db)
    assert {name: task[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": timedelta(days=367)}, "delay"),
        ({"delay": MINUTE, "not_before": T0}, "task"),
        ({"delay": 60}, "delay"),
        ({"timeout": 30}, "timeout"),
        ({"timeout": timedelta(0)}, "timeout"),
        *(
            ({"retry": value}, "retry")
            for value in ("moon", "", "Standard", 3, {"max_retries": 3}, Backoff(), ["standard"])
        ),
        ({"not_before": T0.replace(tzinfo=None)}, "not_before"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"max_retries": -1}, "max_retries"),
        ({"queue": "a b"}, "queue"),
        *(({"idempotency_key": key}, "idempotency_key") for key in ("", " ", " a", "a\x00", "x" * 201, 7, ["a"])),
    ],
)
def test_an_option_that_is_not_allowed_is_named_before_anything_is_asked(
    unasked: Queue, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        unasked.enqueue("send", {}, **options)

    assert fields(refused) == [field]


@pytest.mark.parametrize("payload", [None, [], "text", {1: 2}, {"a": object()}, {"a": {1, 2}}, {"a": float("nan")}])
def test_a_payload_that_cannot_be_stored_is_refused_before_anything_is_asked(unasked: Queue, payload: Any) -> None:
    with pytest.raises(InvalidRequestError):
        unasked.enqueue("send", payload)


def test_the_time_is_that_of_the_call(queue: Queue, clock: ManualClock) -> None:  # F34
    first, _ = queue.get(queue.enqueue("send", {})), clock.move(timedelta(hours=2))
    second = queue.get(queue.enqueue("send", {}))

    assert isinstance(first, Task)
    assert isinstance(second, Task)
    assert (first.created_at, second.created_at) == (T0, T0 + timedelta(hours=2))


def test_a_known_key_returns_its_task_and_another_request_is_told_of_it(queue: Queue, db: Database[Any]) -> None:
    first = queue.enqueue("send", {"a": 1}, idempotency_key="k")

    assert queue.enqueue("send", {"a": 1}, idempotency_key="k") == first
    with pytest.raises(DuplicateKeyError) as conflict:
        queue.enqueue("send", {"a": 2}, idempotency_key="k")

    assert conflict.value.task_id == first
    assert only(db)["payload"] == {"a": 1}


def test_a_key_edited_by_hand_conflicts_with_every_request(queue: Queue, db: Database[Any]) -> None:
    db.tasks.insert_one(document(T0, idempotency_key="k"))

    with pytest.raises(DuplicateKeyError):
        queue.enqueue("noop", {}, idempotency_key="k")


def test_many_are_stored_in_order(queue: Queue, db: Database[Any]) -> None:
    wanted: list[Any] = [{"name": "send", "payload": {"n": n}} for n in range(5)]
    wanted.append(NewTask(name="send", payload={"n": 5}, priority=3, delay_sec=60))

    ids = queue.enqueue_many(iter(wanted))

    assert [db.tasks.find_one({"_id": task_id})["payload"]["n"] for task_id in ids] == [0, 1, 2, 3, 4, 5]  # type: ignore[index]
    assert [task["payload"]["n"] for task in db.tasks.find().sort("_id")] == [0, 1, 2, 3, 4, 5]
    assert {task["due_at"] for task in db.tasks.find()} == {T0, T0 + MINUTE}


def test_many_are_retried_by_preset_policy_or_numbers(queue: Queue, db: Database[Any]) -> None:
    policy = RetryPolicy(max_retries=3, backoff=Backoff(**NUMBERS))
    retries: list[Any] = ["patient", policy, {"max_retries": 3} | NUMBERS, None]

    queue.enqueue_many({"name": "send", "payload": {}, "retry": retry} for retry in retries)

    stored = [task["backoff_policy"] for task in db.tasks.find().sort("_id")]
    assert stored == [asdict(PRESETS["patient"].backoff), NUMBERS, NUMBERS, None]
    assert [task["max_retries"] for task in db.tasks.find().sort("_id")] == [3, 3, 3, None]


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        ("moon", "retry"),
        ({"strategy": "moon"}, "retry.strategy"),
        ({"jitter": "moon"}, "retry.jitter"),
        ({"base_sec": float("nan")}, "retry.base_sec"),
        ({"base_sec": -1}, "retry.base_sec"),
        ({"factor": 0.5}, "retry.factor"),
        ({"factor": float("inf")}, "retry.factor"),
        ({"base_sec": 9, "max_sec": 1}, "retry.max_sec"),
        ({"jitter_factor": "x"}, "retry.jitter_factor"),
    ],
)
def test_of_many_a_policy_that_cannot_be_is_named_and_nothing_is_stored(
    queue: Queue, db: Database[Any], retry: Any, field: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        queue.enqueue_many([{"name": "send", "payload": {}}, {"name": "send", "payload": {}, "retry": retry}])

    assert fields(refused) == [f"1.{field}"]
    assert db.tasks.count_documents({}) == 0


def test_a_preset_and_its_policy_are_the_same_request(queue: Queue) -> None:
    first = queue.enqueue("send", {}, retry="patient", idempotency_key="k")

    assert queue.enqueue("send", {}, retry=PRESETS["patient"], idempotency_key="k") == first
    with pytest.raises(DuplicateKeyError):
        queue.enqueue("send", {}, retry="standard", idempotency_key="k")


def test_many_that_are_none_are_no_error(queue: Queue) -> None:
    assert queue.enqueue_many([]) == []


def test_of_many_all_are_validated_before_the_first_is_stored(queue: Queue, db: Database[Any]) -> None:
    good = {"name": "send", "payload": {}}

    with pytest.raises(InvalidRequestError) as refused:
        queue.enqueue_many([good, good | {"priority": "x"}, good | {"idempotency_key": " k"}, {"payload": {}}, good])

    assert fields(refused) == ["1.priority", "2.idempotency_key", "3.name"]
    assert db.tasks.count_documents({}) == 0


@pytest.mark.parametrize("request_", ["text", None, 7, ["name"], {1: 2}])
def test_of_many_what_is_no_request_is_named(unasked: Queue, request_: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        unasked.enqueue_many([{"name": "send", "payload": {}}, request_])

    assert fields(refused) == ["1"]


def test_a_thousand_at_once_are_a_thousand_tasks(queue: Queue, db: Database[Any]) -> None:
    ids = queue.enqueue_many({"name": "send", "payload": {"n": n}} for n in range(1000))

    assert len(set(ids)) == db.tasks.count_documents({}) == 1000


def test_it_relies_on_no_option_of_the_database_it_is_given(
    db: Database[Any], client: MongoClient[Any], make_queue: MakeQueue
) -> None:
    options: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)
    odd = client.get_database(
        db.name, options, read_preference=ReadPreference.SECONDARY_PREFERRED, write_concern=WriteConcern(w=0)
    )
    queue = make_queue(odd)

    task_id = queue.enqueue("send", {"a": 1}, idempotency_key="k")

    assert queue.enqueue("send", {"a": 1}, idempotency_key="k") == task_id
    with pytest.raises(DuplicateKeyError):
        queue.enqueue("send", {"a": 2}, idempotency_key="k")
    assert len(queue.enqueue_many([{"name": "send", "payload": {}}])) == 1
    assert isinstance(queue.cancel(task_id), Task)
    assert db.tasks.count_documents({}) == 2


def test_by_default_it_asks_the_server_for_the_time(db: Database[Any], make_queue: MakeQueue) -> None:
    task = make_queue(db).enqueue("send", {})

    assert abs(only(db)["created_at"] - datetime.now(UTC)) < timedelta(seconds=5)
    assert only(db)["_id"] == task


@pytest.mark.parametrize(
    "options",
    [
        {"expires_at": T0},
        {"expires_at": T0 - MINUTE},
        {"expires_at": T0 + MINUTE, "delay": MINUTE},
        {"expires_at": T0 + MINUTE, "not_before": T0 + 2 * MINUTE},
    ],
)
def test_a_task_that_would_be_born_expired_is_refused(queue: Queue, db: Database[Any], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        queue.enqueue("send", {}, **options)
    with pytest.raises(InvalidRequestError) as several:
        queue.enqueue_many([{"name": "send", "payload": {}}, NewTask(name="send", payload={}, expires_at=T0)])

    assert fields(refused) == ["expires_at"]
    assert fields(several) == ["1.expires_at"]
    assert db.tasks.count_documents({}) == 0


def test_python_has_the_names_the_order_and_the_defaults_of_a_request() -> None:
    names = {"delay": "delay_sec", "timeout": "timeout_sec"}  # timedeltas there
    parameters = list(inspect.signature(Queue.enqueue).parameters.values())[1:]

    assert parameters[-1].name == "session"
    assert [names.get(one.name, one.name) for one in parameters[:-1]] == list(NewTask.model_fields)
    for one in parameters[2:-1]:
        assert one.default == NewTask.model_fields[names.get(one.name, one.name)].default


def test_a_queue_is_of_a_database(client: MongoClient[Any]) -> None:
    with pytest.raises(TypeError, match=r"^a Queue needs a Database of pymongo, .*, not a MongoClient$"):
        Queue(client)  # type: ignore[arg-type]


def test_an_id_that_is_text_is_told_to_be_no_id(queue: Queue) -> None:
    task_id = queue.enqueue("send", {})

    with pytest.raises(TaskNotFoundError, match="this id is text, pass an ObjectId"):
        queue.get(str(task_id))


def test_a_name_that_is_nearly_one_is_told_with_it(queue: Queue, db: Database[Any]) -> None:
    db.task_types.insert_one({"_id": "deliver_webhook"})

    with pytest.raises(UnknownTaskError, match="did you mean deliver_webhook"):
        queue.enqueue("deliver_webhok", {})
