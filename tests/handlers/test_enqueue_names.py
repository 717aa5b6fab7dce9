"""Which names and queues may be enqueued, and how soon a newly declared one may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo.database import Database

from tests.handlers.conftest import Deployed
from tidemill import PRESETS, InvalidRequestError, Queue, RetryPolicy, UnknownTaskError
from tidemill.control import queues, task_types
from tidemill.control.declarer import declare_types
from tidemill.control.task_types import DECLARATIONS_CACHE_SEC, Directory
from tidemill.model import Backoff
from tidemill.registry import Registry

ODD_COUNTS: list[Any] = [None, "x", -1, float("inf"), float("nan"), [], 10**6]
ODD_BACKOFFS: list[Any] = [None, "x", {"base_sec": "x"}, {"later": 1}, [1], {"strategy": "moon"}, {"jitter": 1}]
NOW = datetime(2026, 7, 1, 9, tzinfo=UTC)


class Stopwatch:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def body(name: str = "noop", **fields: Any) -> dict[str, Any]:
    return {"name": name, "payload": {}} | fields


def function(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def register(db: Database[Any], name: str, *, http: bool = False) -> None:
    registry = Registry()
    registry.task(name, http=http)(function)
    declare_types(db, registry, package="tasks", release="1", now=NOW)


@pytest.mark.parametrize("name", ["no_such_task", "os.system", "__import__", "Noop", "noopx"])
def test_an_unknown_name_is_refused(unchanged: Deployed, name: str) -> None:
    refused = unchanged.post(body(name))

    assert (refused.status, refused.fields) == (422, {"name"})
    assert name not in refused.text


@pytest.mark.parametrize("name", ["", "../x", "Tâche😀", "x" * 101, "noop\n", "a b"])
def test_what_can_be_no_name_is_refused_without_a_look(unchanged: Deployed, name: str) -> None:
    assert unchanged.post(body(name)).status == 422
    assert unchanged.commands() == []


def test_http_refuses_every_name_before_an_executor_has_registered_one(deployed: Deployed, db: Database[Any]) -> None:
    db.task_types.drop()

    assert deployed.post(body()).status == 422


def test_a_name_not_open_to_http_is_refused_with_a_sentence(deployed: Deployed, db: Database[Any]) -> None:
    register(db, "internal")

    refused = deployed.post(body("internal"))

    assert (refused.status, refused.fields) == (422, {"name"})
    assert "http=True" in refused.text


def test_a_name_that_was_just_registered_is_taken_at_once(deployed: Deployed, db: Database[Any]) -> None:
    assert deployed.post(body("fresh")).status == 422

    register(db, "fresh", http=True)

    assert deployed.post(body("fresh")).status == 202


def test_a_name_that_was_just_opened_to_http_is_taken_at_once(deployed: Deployed, db: Database[Any]) -> None:
    register(db, "internal")
    assert deployed.post(body("internal")).status == 422

    register(db, "internal", http=True)

    assert deployed.post(body("internal")).status == 202


def test_the_default_queue_is_always_declared(deployed: Deployed) -> None:
    assert deployed.post(body(queue="default")).status == 202


def test_another_queue_is_taken_once_it_is_declared(deployed: Deployed, db: Database[Any]) -> None:
    refused = deployed.post(body(queue="eu"))
    queues.declare_queue(db, "eu", now=NOW)

    assert (refused.status, refused.fields) == (422, {"queue"})
    assert deployed.post(body(queue="eu")).status == 202
    assert deployed.post(body(queue="us")).status == 422


@pytest.mark.parametrize(("priority", "status"), [(-11, 422), (-10, 202), (0, 202), (10, 202), (11, 422)])
def test_http_has_priorities_from_minus_10_to_10(deployed: Deployed, priority: int, status: int) -> None:
    assert deployed.post(body(priority=priority)).status == status


def test_everything_wrong_is_told_at_once(deployed: Deployed) -> None:
    refused = deployed.post(body(queue="eu", retry={"base_sec": 0.01}, timeout_sec=60))

    assert refused.fields == {"queue", "retry.base_sec", "timeout_sec"}


def test_python_may_use_any_name_before_one_is_registered(db: Database[Any]) -> None:
    Queue(db).enqueue("anything", {})


@pytest.mark.usefixtures("deployed")
def test_python_is_refused_an_unknown_name_once_one_is_registered(db: Database[Any]) -> None:
    queue = Queue(db)

    with pytest.raises(UnknownTaskError):
        queue.enqueue("anything", {})
    with pytest.raises(InvalidRequestError) as refused:
        queue.enqueue_many([{"name": "noop", "payload": {}}, {"name": "anything", "payload": {}}])

    assert [problem.field for problem in refused.value.problems] == ["1.name"]
    assert db.tasks.count_documents({}) == 0


@pytest.mark.usefixtures("deployed")
def test_python_may_use_internal_names_any_queue_and_any_priority(db: Database[Any]) -> None:
    register(db, "internal")

    Queue(db).enqueue("internal", {}, queue="never_declared", priority=-1_000_000)

    assert [(task["queue"], task["priority"]) for task in db.tasks.find()] == [("never_declared", -1_000_000)]


def test_a_directory_is_read_once_a_minute(db: Database[Any]) -> None:
    register(db, "a")
    watch = Stopwatch()
    directory = Directory(db, monotonic=watch)
    assert "a" in directory.read_declarations(names=["a"]).types
    db.task_types.delete_one({"_id": "a"})

    watch.at += DECLARATIONS_CACHE_SEC
    assert "a" in directory.read_declarations(names=["a"]).types
    watch.at += 1
    assert "a" not in directory.read_declarations(names=["a"]).types
    assert not directory.read_declarations().types


@pytest.mark.parametrize(
    "broken",
    [
        {"_id": "broken", "updated_at": DatetimeMS(2**55)},
        {"_id": {"a": 1}},
        {"_id": 7, "http": True},
        {"_id": "broken", "http": {"$ne": 1}, "timeout_sec": "x"},
    ],
)
def test_a_broken_document_keeps_nothing_else_from_work(
    deployed: Deployed, db: Database[Any], broken: dict[str, Any]
) -> None:
    db.task_types.insert_one(broken)
    db.queues.insert_many([broken, {"_id": "eu"}])

    assert deployed.post(body(queue="eu")).status == 202
    assert deployed.invoke("execute")["done"] == 1
    assert deployed.invoke("reclaim")["reclaimed"] == 0


def test_types_are_written_only_when_they_change(db: Database[Any]) -> None:
    registry = Registry()
    registry.task("a", timeout=3, retry=RetryPolicy(max_retries=2))(function)

    assert declare_types(db, registry, package="tasks", release="1", now=NOW) == 1
    assert declare_types(db, registry, package="tasks", release="2", now=NOW + timedelta(hours=1)) == 0
    db.task_types.update_one({"_id": "a"}, {"$set": {"timeout_sec": 4, "note": "by hand"}})
    assert declare_types(db, registry, package="tasks", release="2", now=NOW + timedelta(hours=1)) == 1
    [stored] = db.task_types.find()
    assert (stored["timeout_sec"], stored["max_retries"], stored["release"], stored["note"]) == (3, 2, "2", "by hand")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_of_a_registration_is_declared_with_its_numbers(db: Database[Any], preset: str) -> None:
    registry = Registry()
    registry.task("a", retry=preset)(function)
    declare_types(db, registry, package="tasks", release="1", now=NOW)
    task = Queue(db).get(Queue(db).enqueue("a", {}))

    policy = task_types.resolve_task_policy(task, Directory(db), deployment=RetryPolicy(max_retries=9))  # type: ignore[arg-type]

    assert policy == PRESETS[preset]


def test_executors_that_start_at_once_may_all_declare(db: Database[Any]) -> None:
    registry = Registry()
    for name in "abc":
        registry.task(name)(function)

    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda release: declare_types(db, registry, package="tasks", release=str(release), now=NOW),
                range(8),
            )
        )

    assert sorted(one["_id"] for one in db.task_types.find()) == ["a", "b", "c"]


def test_a_queue_is_declared_once(db: Database[Any]) -> None:
    queues.declare_queue(db, "eu", now=NOW)
    queues.declare_queue(db, "eu", now=NOW + timedelta(hours=1))

    assert list(db.queues.find()) == [{"_id": "eu", "declared_at": NOW}]


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 64, "ü", "$x", "a\n"])
def test_what_can_be_no_queue_is_not_declared(db: Database[Any], name: str) -> None:
    with pytest.raises(InvalidRequestError):
        queues.declare_queue(db, name, now=NOW)
    assert db.queues.count_documents({}) == 0


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(
    ("declared", "max_retries", "base_sec"),
    [
        ({"max_retries": 3}, 3, 7),
        ({"max_retries": 3.0, "backoff_policy": {"base_sec": 1.0}}, 3, 1),
        ({"max_retries": 3, "backoff_policy": asdict(PRESETS["patient"].backoff)}, 3, 60),
        *(({"max_retries": value}, 9, 7) for value in ODD_COUNTS),
        *(({"backoff_policy": value}, 9, 7) for value in ODD_BACKOFFS),
    ],
)
def test_a_policy_is_what_was_declared_or_that_of_the_deployment(
    db: Database[Any], declared: dict[str, Any], max_retries: int, base_sec: float
) -> None:
    deployment = RetryPolicy(max_retries=9, backoff=Backoff(base_sec=7))
    task = Queue(db).get(Queue(db).enqueue("noop", {}))
    db.task_types.update_one({"_id": "noop"}, {"$set": declared})

    policy = task_types.resolve_task_policy(task, Directory(db), deployment=deployment)  # type: ignore[arg-type]

    assert (policy.max_retries, policy.backoff.base_sec) == (max_retries, base_sec)
