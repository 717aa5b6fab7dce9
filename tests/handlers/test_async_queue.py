"""`AsyncQueue` as an application with an event loop uses it: sessions, many callers, and a loop that stays free.

The tests of `Queue` run on `AsyncQueue`, too; this is the rest.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, assert_type

import pymongo
import pytest
from pydantic import BaseModel
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database

from tests.builders import document
from tests.fixtures import T0
from tidemill import (
    AsyncHandle,
    AsyncQueue,
    DuplicateKeyError,
    InvalidRequestError,
    Queue,
    SettingsError,
    TaskRef,
    UnavailableError,
    indexes,
)
from tidemill.client_requests import require_database
from tidemill.model import TaskId
from tidemill.testing import Mongod

WAYS = ("enqueue", "keyed", "many", "many keyed")
SOON = timedelta(seconds=20)


class Order(BaseModel):
    number: int


class Receipt(BaseModel):
    paid: bool


SEND = TaskRef[Order, Receipt]("send")


class Shop:
    """An application: its client, its database and its queue."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]], name: str) -> None:
        self.client = client
        self.db: AsyncDatabase[dict[str, Any]] = client[name]
        self.queue = AsyncQueue(self.db)


@pytest.fixture
def run(mongod: Mongod, db: Database[Any], runner: asyncio.Runner) -> Callable[[Callable[[Shop], Awaitable[Any]]], Any]:
    """Runs what a test does in a shop."""

    async def open_shop(work: Callable[[Shop], Awaitable[Any]]) -> Any:
        uri = f"{mongod.uri}&appName={db.name}"
        async with AsyncMongoClient[dict[str, Any]](uri, tz_aware=True) as client:
            return await work(Shop(client, db.name))

    return lambda work: runner.run(open_shop(work))


async def enqueue(queue: AsyncQueue, way: str, session: AsyncClientSession) -> None:
    if way.startswith("many"):
        keys = [{"idempotency_key": f"k-{n}"} if way == "many keyed" else {} for n in range(3)]
        requests = [{"name": "send", "payload": {"n": n}} | key for n, key in enumerate(keys)]
        await queue.enqueue_many(requests, session=session)
    else:
        await queue.enqueue("send", {}, idempotency_key="k" if way == "keyed" else None, session=session)


@pytest.mark.parametrize("way", WAYS)
def test_a_task_exists_once_the_transaction_commits(run: Any, db: Database[Any], way: str) -> None:
    async def work(shop: Shop) -> None:
        async with shop.client.start_session() as session, await session.start_transaction():
            await shop.db.orders.insert_one({"_id": 7}, session=session)
            await enqueue(shop.queue, way, session)
            assert db.tasks.count_documents({}) == 0

    run(work)
    assert db.tasks.count_documents({}) == (3 if way.startswith("many") else 1)
    assert db.orders.count_documents({}) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_task_never_existed_if_the_transaction_aborts(run: Any, db: Database[Any], way: str) -> None:
    async def work(shop: Shop) -> None:
        async with shop.client.start_session() as session:
            await session.start_transaction()
            await enqueue(shop.queue, way, session)
            await session.abort_transaction()
        assert await shop.queue.enqueue("send", {}, idempotency_key="k") is not None

    run(work)
    assert db.tasks.count_documents({}) == 1


def test_a_known_key_aborts_no_transaction(run: Any, db: Database[Any]) -> None:
    async def work(shop: Shop) -> None:
        first = await shop.queue.enqueue("send", {"a": 1}, idempotency_key="k")
        async with shop.client.start_session() as session, await session.start_transaction():
            await shop.db.orders.insert_one({"_id": 7}, session=session)
            assert await shop.queue.enqueue("send", {"a": 1}, idempotency_key="k", session=session) == first
            with pytest.raises(DuplicateKeyError):
                await shop.queue.enqueue("send", {"a": 2}, idempotency_key="k", session=session)

    run(work)
    assert db.orders.count_documents({}) == 1


def test_a_transaction_that_conflicts_is_run_again_by_the_driver(run: Any, db: Database[Any]) -> None:
    async def work(shop: Shop) -> None:
        others: list[object] = []
        requests = [{"name": "send", "payload": {}, "idempotency_key": "k"}]

        async def place(own: AsyncClientSession) -> list[TaskId]:
            await shop.db.orders.find_one({}, session=own)  # the transaction sees nothing of what follows
            if not others:
                others.extend(await shop.queue.enqueue_many(requests))
            return await shop.queue.enqueue_many(requests, session=own)

        async with shop.client.start_session() as session:
            assert await session.with_transaction(place) == others

    run(work)
    assert db.tasks.count_documents({}) == 1


def test_a_session_that_cannot_hold_the_task_is_refused(run: Any, client: MongoClient[Any]) -> None:
    async def work(shop: Shop) -> list[str]:
        async def refuse(session: Any) -> str:
            with pytest.raises(InvalidRequestError) as refused:
                await shop.queue.enqueue("send", {}, session=session)
            return str(refused.value)

        async with shop.client.start_session() as idle:
            without = await refuse(idle)
        with client.start_session() as sync:
            return [without, await refuse(idle), await refuse(sync)]

    how = "with await session.start_transaction() or session.with_transaction(...)"
    assert run(work) == [
        f"session: has no transaction: start one {how}",
        "session: has ended",
        "session: must be an AsyncClientSession of pymongo, not a ClientSession",
    ]


def test_types_hold_for_what_is_awaited(run: Any, db: Database[Any]) -> None:
    async def work(shop: Shop) -> None:
        handle = await shop.queue.enqueue(SEND, Order(number=7))
        assert_type(handle, AsyncHandle[Receipt])
        assert_type(await shop.queue.enqueue("send", {"number": 7}), TaskId)
        assert_type(await shop.queue.enqueue_many(SEND, [Order(number=8)]), list[AsyncHandle[Receipt]])
        db.tasks.update_one({"_id": handle.id}, {"$set": {"status": "done", "result": {"paid": True}}})
        receipt = await handle.wait(SOON)
        assert_type(receipt, Receipt)
        assert receipt == Receipt(paid=True)

    run(work)


def test_many_callers_share_one_queue(run: Any, db: Database[Any]) -> None:
    async def work(shop: Shop) -> None:
        ids = await asyncio.gather(*(shop.queue.enqueue("send", {}, idempotency_key=f"k-{n % 10}") for n in range(100)))
        assert len(set(ids)) == 10

    run(work)
    assert db.tasks.count_documents({}) == 10


@asynccontextmanager
async def count_beats() -> AsyncIterator[list[int]]:
    """Yield a list that grows by one element whenever the loop has been free for a hundredth of a second."""
    beats: list[int] = []

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.01)
            beats.append(1)

    heart = asyncio.create_task(beat())
    yield beats
    heart.cancel()


@pytest.mark.parametrize("way", ["enqueue", "keyed", "many", "get", "cancel", "wait"])
def test_the_loop_is_free_while_mongodb_does_not_answer(
    run: Any, db: Database[Any], client: MongoClient[Any], way: str
) -> None:
    task_id = db.tasks.insert_one(document(T0, status="processing")).inserted_id
    slow = {
        "failCommands": ["insert", "findAndModify", "find"],
        "appName": db.name,
        "blockConnection": True,
        "blockTimeMS": 300,
    }

    async def work(shop: Shop) -> int:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "enqueue": lambda: shop.queue.enqueue("send", {}),
            "keyed": lambda: shop.queue.enqueue("send", {}, idempotency_key="k"),
            "many": lambda: shop.queue.enqueue_many([{"name": "send", "payload": {}}]),
            "get": lambda: shop.queue.get(task_id),
            "cancel": lambda: shop.queue.cancel(task_id),
            "wait": lambda: shop.queue.wait(task_id, timedelta(0)),
        }
        await shop.queue.enqueue("send", {})  # connects, and reads what is registered
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=slow)
        try:
            async with count_beats() as beats:
                await asyncio.gather(calls[way](), return_exceptions=True)
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
        return len(beats)

    # Thirty, if the machine is idle; a loop that waits itself makes one at most.
    assert run(work) >= 3


def test_the_loop_is_free_while_a_task_is_waited_for(run: Any, db: Database[Any]) -> None:
    task_id = db.tasks.insert_one(document(T0, status="processing")).inserted_id

    async def work(shop: Shop) -> int:
        async with count_beats() as beats:
            with pytest.raises(TimeoutError):
                await shop.queue.wait(task_id, timedelta(seconds=1))
        return len(beats)

    # A hundred, if the machine is idle; a sleep that blocks leaves one for each of seven looks.
    assert run(work) >= 20


def test_a_wait_can_be_cancelled(run: Any, db: Database[Any]) -> None:
    task_id = db.tasks.insert_one(document(T0, status="processing")).inserted_id

    async def work(shop: Shop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await shop.queue.wait(task_id, timedelta(hours=1))

    run(work)


def test_a_transaction_that_fails_leaves_nothing_open(run: Any, db: Database[Any], client: MongoClient[Any]) -> None:
    broken = {"failCommands": ["commitTransaction"], "appName": db.name, "errorCode": 10107}
    requests = [{"name": "send", "payload": {}, "idempotency_key": "k"}]

    async def work(shop: Shop) -> None:
        await shop.queue.enqueue("send", {})
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=broken)
        try:
            with pytest.raises(UnavailableError):
                async with asyncio.timeout(60):
                    await _enqueue_within(shop.queue, requests, seconds=0.5)
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
        # The key of an open transaction would make the next one wait.
        await _enqueue_within(shop.queue, requests, seconds=20)

    run(work)
    assert db.tasks.count_documents({"idempotency_key": "k"}) == 1


async def _enqueue_within(queue: AsyncQueue, requests: list[dict[str, Any]], *, seconds: float) -> None:
    with pymongo.timeout(seconds):
        await queue.enqueue_many(requests)


def test_a_standalone_server_takes_tasks_without_transactions(runner: asyncio.Runner) -> None:
    with Mongod(standalone=True) as server, MongoClient[dict[str, Any]](server.uri) as client:
        indexes.create(client["x"])

        async def work() -> list[TaskId]:
            async with AsyncMongoClient[dict[str, Any]](server.uri) as own:
                queue = AsyncQueue(own["x"])
                keyed = {"name": "send", "payload": {}, "idempotency_key": "k"}
                return [*await queue.enqueue_many([keyed]), *await queue.enqueue_many([keyed, keyed])]

        assert len(set(runner.run(work()))) == client["x"].tasks.count_documents({}) == 1


def test_a_prefix_is_that_of_the_sync_queue(run: Any, db: Database[Any]) -> None:
    async def work(shop: Shop) -> TaskId:
        return await AsyncQueue(shop.db, prefix="tm_").enqueue("send", {})

    task_id = run(work)
    assert [task["_id"] for task in db["tm_tasks"].find()] == [task_id]
    assert db.tasks.count_documents({}) == 0


def test_each_queue_names_the_other_for_a_database_of_the_other_client(run: Any, db: Database[Any]) -> None:
    async def work(shop: Shop) -> list[str]:
        wrong: list[tuple[Any, Any]] = [(Queue, shop.db), (AsyncQueue, db), (AsyncQueue, shop.client), (Queue, None)]
        told = []
        for kind, given in wrong:
            with pytest.raises(TypeError) as refused:
                kind(given)
            told.append(str(refused.value))
        return told

    asynchronous = 'an AsyncQueue needs an AsyncDatabase of pymongo, as in AsyncQueue(AsyncMongoClient(...)["app"])'
    synchronous = 'a Queue needs a Database of pymongo, as in Queue(MongoClient(...)["app"])'
    assert run(work) == [
        f"{synchronous}, not an AsyncDatabase; for that one there is AsyncQueue",
        f"{asynchronous}, not a Database; for that one there is Queue",
        f"{asynchronous}, not an AsyncMongoClient",
        f"{synchronous}, not a NoneType",
    ]


def test_an_older_driver_is_named() -> None:
    with pytest.raises(SettingsError) as refused:
        require_database(object(), AsyncDatabase, queue="AsyncQueue", version=(4, 12, 1))

    assert str(refused.value) == "an AsyncQueue needs pymongo 4.13, and this is 4.12.1: pip install 'pymongo>=4.13'"


def test_a_process_without_a_loop_never_imports_it() -> None:
    program = "import sys, tidemill; assert 'tidemill.asynchronous' not in sys.modules; tidemill.AsyncQueue"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.fixture(autouse=True)
def _no_failure_stays(client: MongoClient[Any]) -> Iterator[None]:
    yield
    client.admin.command("configureFailPoint", "failCommand", mode="off")
