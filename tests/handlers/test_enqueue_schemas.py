"""Payloads that are checked by the schema of their type: the same at every way in, and before anything is stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import AsyncMongoClient
from pymongo.database import Database

from tests.handlers.conftest import Deployed
from tidemill import AsyncQueue, InvalidRequestError, Queue, TaskRef
from tidemill.control.declarer import Declarer, declare_types
from tidemill.registry import Registry
from tidemill.testing import Mongod

NOW = datetime(2031, 7, 1, 9, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Order(BaseModel):
    number: int
    note: str | None = None


class LaterOrder(BaseModel):
    number: int
    note: str


def make_registry(model: Any = Order, name: str = "place") -> Registry:
    registry = Registry()

    def place(payload: Any) -> None: ...

    place.__annotations__["payload"] = model
    registry.task(name, http=True)(place)
    return registry


def declare(db: Database[Any], model: Any = Order, *, now: datetime = NOW, name: str = "place") -> None:
    declare_types(db, make_registry(model, name), package="shop", release="1", now=now)


WRONG = {"name": "place", "payload": {"number": "seven", "note": 4111}}
FOUND = [
    ("number", "Input should be a valid integer, unable to parse string as an integer"),
    ("note", "Input should be a valid string"),
]


def test_http_refuses_a_payload_with_the_paths_of_its_faults(deployed: Deployed, db: Database[Any]) -> None:
    declare(db)

    one = deployed.post(WRONG)
    assert one.status == 422
    assert [(fault["field"], fault["message"]) for fault in one.body["error"]["details"]] == [
        (f"payload.{field}", message) for field, message in FOUND
    ]
    assert deployed.post({"name": "place", "payload": {"number": "7"}}).status == 202
    assert db.tasks.count_documents({}) == 1
    assert "4111" not in deployed.stdout.getvalue() + one.text


def test_a_direct_invocation_refuses_the_same(deployed: Deployed, db: Database[Any]) -> None:
    declare(db)

    with pytest.raises(InvalidRequestError) as refused:
        deployed.invoke("enqueue", {"tasks": [{"name": "place", "payload": {"number": 1}}, WRONG]})

    assert [(problem.field, problem.message) for problem in refused.value.problems] == [
        (f"tasks.1.payload.{field}", message) for field, message in FOUND
    ]
    assert db.tasks.count_documents({}) == 0


def test_python_refuses_the_same_by_name_and_by_type(db: Database[Any], mongod: Mongod, runner: asyncio.Runner) -> None:
    declare(db)
    expected = [(f"payload.{field}", message) for field, message in FOUND]
    reference = TaskRef[Any, Any]("place")
    typed: Any = TaskRef[Order, Any]("place")

    async def enqueue() -> None:
        async with AsyncMongoClient[dict[str, Any]](mongod.uri) as client:
            await AsyncQueue(client[db.name]).enqueue("place", WRONG["payload"])  # type: ignore[call-overload]

    for call in (
        lambda: Queue(db).enqueue("place", WRONG["payload"]),  # type: ignore[call-overload]
        lambda: Queue(db).enqueue(reference, WRONG["payload"]),
        lambda: Queue(db).enqueue(typed, WRONG["payload"]),
        lambda: runner.run(enqueue()),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            call()
        assert [(problem.field, problem.message) for problem in refused.value.problems] == expected
    assert db.tasks.count_documents({}) == 0


def test_a_repeat_is_answered_although_the_schema_would_refuse_it_today(db: Database[Any]) -> None:
    queue = Queue(db)
    declare(db)
    first = queue.enqueue("place", {"number": 1}, idempotency_key="k")
    declare(db, LaterOrder, now=NOW + MINUTE)

    assert Queue(db).enqueue("place", {"number": 1}, idempotency_key="k") == first


def test_a_schema_is_read_once_by_name_and_never_with_the_directory(deployed: Deployed, db: Database[Any]) -> None:
    declare(db)
    deployed.commands()

    deployed.post({"name": "place", "payload": {"number": 1}})
    sent = deployed.commands()
    deployed.post({"name": "place", "payload": {"number": 1}})

    reads = [command for _, command in sent if command.get("find") == "task_types"]
    assert [read.get("projection") for read in reads] == [{"payload_schema": 0}, {"payload_schema": 1}]
    assert reads[1]["filter"] == {"_id": {"$in": ["place"]}}
    assert [name for name, _ in deployed.commands()] == ["insert"]


def test_a_task_without_a_model_costs_nothing(deployed: Deployed) -> None:
    deployed.commands()

    deployed.post({"name": "noop", "payload": {}})

    reads = [command for _, command in deployed.commands() if command.get("find") == "task_types"]
    assert len(reads) == 1


def read_hash(db: Database[Any]) -> Any:
    return db.task_types.find_one({"_id": "place"})["schema_hash"]  # type: ignore[index]


def test_the_schema_is_that_of_the_executor_that_started_last(db: Database[Any]) -> None:
    old = Declarer(db, make_registry(Order), package="shop", release="1", monotonic=lambda: 0.0)
    old.declare_if_due(now=NOW)
    first = read_hash(db)

    declare(db, LaterOrder, now=NOW + MINUTE)
    later = read_hash(db)
    declare(db, Order, now=NOW)

    assert first != later
    assert read_hash(db) == later


def test_an_executor_that_started_earlier_declares_again_and_replaces_nothing(db: Database[Any]) -> None:
    seconds = iter([0.0, 1000.0, 2000.0])
    old = Declarer(db, make_registry(Order), package="shop", release="1", monotonic=lambda: next(seconds))
    old.declare_if_due(now=NOW)
    declare(db, LaterOrder, now=NOW + MINUTE)
    later = read_hash(db)

    old.declare_if_due(now=NOW + 2 * MINUTE)

    assert read_hash(db) == later


def test_a_model_that_is_removed_takes_its_schema_along(db: Database[Any]) -> None:
    declare(db)
    declare(db, dict[str, Any], now=NOW + MINUTE)

    assert Queue(db).enqueue("place", {"number": "seven"})
    stored = db.task_types.find_one({"_id": "place"})
    assert stored is not None
    assert (stored["payload_schema"], stored["schema_hash"]) == (None, None)


def test_a_type_of_an_earlier_release_gets_its_schema(db: Database[Any]) -> None:
    declare(db)
    db.task_types.update_one({"_id": "place"}, {"$unset": {"payload_schema": "", "schema_hash": "", "schema_at": ""}})
    declare(db)

    with pytest.raises(InvalidRequestError):
        Queue(db).enqueue("place", {"number": "seven"})


def test_the_same_schema_is_not_written_again(db: Database[Any]) -> None:
    registry = make_registry()

    counts = [declare_types(db, registry, package="shop", release="1", now=NOW + turn * MINUTE) for turn in range(2)]

    assert counts == [1, 0]


@pytest.mark.parametrize("text", ["{", '{"format":"of a later release"}', 7, None])
def test_a_schema_that_cannot_be_read_refuses_nothing(db: Database[Any], text: Any) -> None:
    declare(db)
    db.task_types.update_one({"_id": "place"}, {"$set": {"payload_schema": text}})

    assert Queue(db).enqueue("place", {"number": "seven"})


class Renumbered(BaseModel):
    number: str


def test_a_type_of_the_caller_holds_before_its_executors_have_it(db: Database[Any]) -> None:
    declare(db)
    reference = TaskRef[Renumbered, None]("place")

    Queue(db).enqueue(reference, Renumbered(number="seven"))
    Queue(db).enqueue_many(reference, [Renumbered(number="eight")])

    assert db.tasks.count_documents({}) == 2
