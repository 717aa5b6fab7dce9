"""Wakes by applications: `Queue(db, wake=...)` starts an executor for what is due, and never harms the enqueue."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.database import Database

from tests.handlers.lambda_api import ARN, FakeLambda, lambda_server, refusal, replace_lambda_client, wait_for_launch
from tests.waiting import eventually
from tidemill import AsyncQueue, NewTask, Queue, SettingsError
from tidemill.aws import lambda_functions
from tidemill.aws.waking import ApplicationWaker
from tidemill.testing import Mongod

FUNCTION = "tidemill-ExecuteFunction-Zx4Qw8Er2Ty6"


@pytest.fixture
def function() -> str:
    """A function of this test alone: all queues of a process share the waker of a function."""
    return f"execute-{uuid.uuid4().hex}"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLambda]:
    made = FakeLambda()
    replace_lambda_client(monkeypatch, lambda: made)
    lambda_functions.lambda_client.cache_clear()
    yield made
    lambda_functions.lambda_client.cache_clear()


@pytest.fixture
def waker(fake: FakeLambda) -> ApplicationWaker:
    return ApplicationWaker(FUNCTION, monotonic=fake.clock, wait=wait_for_launch)


ENQUEUES: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda queue: queue.enqueue("noop", {}),
    "enqueue_many": lambda queue: queue.enqueue_many([NewTask(name="noop", payload={})] * 3),
    "one of many": lambda queue: queue.enqueue_many(
        [{"name": "noop", "payload": {}, "delay_sec": 60}, {"name": "noop", "payload": {}}]
    ),
}


@pytest.mark.parametrize("enqueue", ENQUEUES.values(), ids=ENQUEUES)
def test_an_enqueue_of_what_is_due_wakes_one_executor(
    db: Database[Any], fake: FakeLambda, function: str, enqueue: Callable[[Queue], object]
) -> None:
    queue = Queue(db, wake=function)

    enqueue(queue)
    enqueue(queue)

    assert eventually(lambda: fake.started() == [(function, "wake")], within=10)


def test_what_is_due_later_or_was_stored_before_wakes_nobody(
    db: Database[Any], fake: FakeLambda, function: str
) -> None:
    Queue(db).enqueue("noop", {}, idempotency_key="k")
    queue = Queue(db, wake=function)

    queue.enqueue("noop", {}, delay=timedelta(minutes=5))
    queue.enqueue("noop", {}, idempotency_key="k")

    assert fake.started() == []


def test_all_queues_of_a_process_wake_one_executor(db: Database[Any], fake: FakeLambda, function: str) -> None:
    for _ in range(5):
        Queue(db, wake=function).enqueue("noop", {})

    assert eventually(lambda: len(fake.started()) == 1, within=10)


def test_an_async_queue_wakes_too_and_its_loop_goes_on(
    mongod: Mongod, db: Database[Any], fake: FakeLambda, function: str
) -> None:
    answer = Event()

    def hang() -> None:
        answer.wait(60)

    fake.does = hang

    async def enqueue() -> None:
        async with AsyncMongoClient[dict[str, Any]](mongod.uri) as client:
            queue = AsyncQueue(client[db.name], wake=function)
            await queue.enqueue("noop", {})
            await queue.enqueue("noop", {})

    asyncio.run(enqueue())  # ends although Lambda has not answered

    assert eventually(lambda: fake.started() == [(function, "wake")], within=10)
    answer.set()


def test_a_queue_without_it_wakes_nobody(db: Database[Any], fake: FakeLambda) -> None:
    Queue(db).enqueue("noop", {})

    assert fake.started() == []
    with pytest.raises(SettingsError, match="make it with wake= and the name of the execute function"):
        Queue(db).wake()


def test_in_a_transaction_of_the_caller_the_wake_follows_its_commit(
    client: MongoClient[Any], db: Database[Any], fake: FakeLambda, function: str
) -> None:
    queue = Queue(db, wake=function)
    queue.enqueue("noop", {}, delay=timedelta(days=1))  # makes the collection

    with client.start_session() as session:
        session.with_transaction(lambda session: queue.enqueue("noop", {}, session=session))
        assert fake.started() == []
    queue.wake()

    assert eventually(lambda: fake.started() == [(function, "wake")], within=10)


def test_a_second_later_it_wakes_again(fake: FakeLambda, waker: ApplicationWaker) -> None:
    for seconds in (0.0, 0.9, 0.2):
        fake.clock.seconds += seconds
        waker.wake()

    assert len(fake.started()) == 2


def test_a_wake_that_fails_fails_no_enqueue(db: Database[Any], fake: FakeLambda, function: str) -> None:
    fake.does = refusal("AccessDeniedException")

    Queue(db, wake=function).enqueue("noop", {})

    assert db.tasks.count_documents({}) == 1
    assert eventually(lambda: len(fake.started()) == 1, within=10)


def test_a_wake_that_fails_is_logged_without_the_answer(
    fake: FakeLambda, waker: ApplicationWaker, caplog: pytest.LogCaptureFixture
) -> None:
    fake.does = refusal("AccessDeniedException")

    waker.wake()

    assert [record.getMessage() for record in caplog.records if record.name == "tidemill.aws.waking"] == [
        "no executor was woken: Lambda refused (AccessDeniedException)"
    ]
    assert "S3cr3t" not in caplog.text


def test_a_wake_waits_for_at_most_a_third_of_a_second(fake: FakeLambda, caplog: pytest.LogCaptureFixture) -> None:
    go, waits = Event(), list[float]()

    def hang() -> None:
        go.wait(60)

    fake.does = hang

    def wait(_: Event, seconds: float) -> bool:
        waits.append(seconds)
        return False

    waker = ApplicationWaker(FUNCTION, monotonic=fake.clock, wait=wait)
    for _ in range(3):
        waker.wake()
        fake.clock.seconds += 2
    go.set()

    assert waits
    assert max(waits) <= 0.3
    assert "no executor was woken: no answer in time" in caplog.text


def test_in_an_event_loop_it_does_not_wait_at_all(fake: FakeLambda, caplog: pytest.LogCaptureFixture) -> None:
    go, waits, called = Event(), list[float](), Event()

    def hang() -> None:
        called.set()
        go.wait(60)

    def wait(_: Event, seconds: float) -> bool:
        waits.append(seconds)
        return False

    fake.does = hang
    waker = ApplicationWaker(FUNCTION, monotonic=fake.clock, wait=wait)

    async def enqueue() -> None:
        waker.wake()

    asyncio.run(enqueue())
    assert called.wait(60), "the wake is sent all the same"
    go.set()

    assert set(waits) <= {0.0}
    assert caplog.text == ""


def test_a_thread_does_not_wait_for_the_wake_of_another(fake: FakeLambda) -> None:
    answer, is_waiting = Event(), Event()

    def wait(_: Event, __: float) -> bool:
        is_waiting.set()
        return answer.wait(60)

    waker = ApplicationWaker(FUNCTION, monotonic=fake.clock, wait=wait)
    first, second = threading.Thread(target=waker.wake), threading.Thread(target=waker.wake)
    first.start()
    assert is_waiting.wait(60)

    second.start()
    second.join(10)

    assert first.is_alive()
    assert not second.is_alive()
    answer.set()
    first.join()
    assert len(fake.started()) == 1


def test_a_forked_process_wakes_over_a_connection_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-central-1",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lambda_functions.lambda_client.cache_clear()
    with lambda_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        waker = ApplicationWaker(ARN, wait=wait_for_launch)
        waker.wake()
        pid = os.fork()
        if pid == 0:
            try:
                waker.wake()
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

        assert [(kind, body) for _, kind, body in server.invoked] == [("Event", b'{"source": "wake"}')] * 2
        assert len(server.connections) == 2
    lambda_functions.lambda_client.cache_clear()


@pytest.mark.parametrize("function", [FUNCTION, ARN, f"{ARN}:live", "execute:7"])
def test_a_name_or_an_arn_with_or_without_a_qualifier_is_taken(db: Database[Any], function: str) -> None:
    Queue(db, wake=function)


@pytest.mark.parametrize("function", ["", "a b", "arn:aws:sns:eu-central-1:123456789012:topic", "https://x", ["a"]])
def test_what_is_no_function_is_refused_at_the_construction(db: Database[Any], function: Any) -> None:
    with pytest.raises(SettingsError, match="wake must be the name or the ARN of the execute function"):
        Queue(db, wake=function)


def test_without_boto3_the_extra_is_named_at_the_construction(
    db: Database[Any], function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(SettingsError, match=r"wake needs the extra lambda: pip install 'tidemill\[lambda\]'"):
        Queue(db, wake=function)
