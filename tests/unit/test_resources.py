"""Resources: opened at their first use, one for each process or event loop, and closed at its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tidemill import Queue, resource
from tidemill.errors import RegistrationError
from tidemill.registry import Registry
from tidemill.runner.call import Coroutines
from tidemill.runner.resources import close_process_resources
from tidemill.testing import drain


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_process_resources()


@pytest.fixture
def coroutines() -> Iterator[Coroutines]:
    with closing(Coroutines()) as made:
        yield made


@pytest.fixture
def seen() -> list[Any]:
    return []


# Of the process


def test_a_resource_of_the_process_is_opened_once_for_all_threads(seen: list[Any]) -> None:
    @resource
    def client() -> Iterator[object]:
        seen.append("open")
        yield object()
        seen.append("close")

    values: list[object] = []
    threads = [threading.Thread(target=lambda: values.append(client())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == ["open"]
    assert len(values) == 8
    assert len(set(map(id, values))) == 1
    close_process_resources()
    assert seen == ["open", "close"]


def test_a_resource_that_nothing_uses_is_never_opened(seen: list[Any]) -> None:
    @resource
    def client() -> Iterator[None]:
        seen.append("open")
        yield

    close_process_resources()

    assert client.__name__ == "client"
    assert seen == []


def test_resources_are_closed_in_reverse_order_and_may_use_each_other(seen: list[Any]) -> None:
    @resource
    def pool() -> Iterator[str]:
        yield "pool"
        seen.append("pool")

    @resource
    def session() -> Iterator[str]:
        yield f"session of {pool()}"
        seen.append("session")

    assert session() == "session of pool"
    close_process_resources()

    assert seen == ["session", "pool"]


def test_what_fails_to_open_is_opened_by_the_next_call(seen: list[Any]) -> None:
    @resource
    def client() -> Iterator[str]:
        seen.append("open")
        if len(seen) == 1:
            raise ConnectionError("away")
        yield "client"

    with pytest.raises(ConnectionError, match="away"):
        client()

    assert client() == "client"


def test_what_fails_to_close_is_logged_without_its_message_and_the_others_are_closed(
    seen: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    @resource
    def first() -> Iterator[None]:
        yield
        seen.append("first")

    @resource
    def second() -> Iterator[None]:
        yield
        raise ConnectionError("postgres://reports:S3cr3t@db")

    first()
    second()

    close_process_resources()

    assert seen == ["first"]
    [record] = caplog.records
    assert (record.name, record.levelno) == ("tidemill.runner.resources", logging.WARNING)
    assert "second could not be closed: ConnectionError (test_resources.py:" in record.getMessage()
    assert "S3cr3t" not in caplog.text


def test_closing_is_bounded_in_time(caplog: pytest.LogCaptureFixture) -> None:
    hung = threading.Event()

    @resource
    def client() -> Iterator[None]:
        yield
        hung.wait(60)

    client()

    close_process_resources(timeout_sec=0.1)
    hung.set()

    assert [record.getMessage() for record in caplog.records] == [
        "resources are not closed within 0.1 s; the process continues without them"
    ]


def test_after_it_was_closed_a_resource_is_opened_again(seen: list[Any]) -> None:
    @resource
    def client() -> Iterator[int]:
        seen.append("open")
        yield len(seen)

    assert client() == 1
    close_process_resources()
    assert client() == 2


def test_a_forked_process_opens_its_own_and_leaves_that_of_its_parent_open(seen: list[Any]) -> None:
    reading, writing = os.pipe()

    @resource
    def client() -> Iterator[int]:
        try:
            yield os.getpid()
        finally:
            os.write(writing, f"{os.getpid()} ".encode())

    parent = client()
    pid = os.fork()
    if pid == 0:
        try:
            gc.collect()
            seen.append(client())
            close_process_resources()
        finally:
            os._exit(0 if seen == [os.getpid()] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert client() == parent
    assert os.read(reading, 100).split() == [str(pid).encode()]
    close_process_resources()
    assert os.read(reading, 100).split() == [str(parent).encode()]


# Of an event loop


def test_a_resource_of_a_loop_outlives_the_runs_of_its_slot(coroutines: Coroutines, seen: list[Any]) -> None:
    @resource
    async def client() -> AsyncIterator[asyncio.AbstractEventLoop]:
        seen.append("open")
        await asyncio.sleep(0)
        yield asyncio.get_running_loop()
        await asyncio.sleep(0)
        seen.append("close")

    async def use() -> bool:
        return await client() is asyncio.get_running_loop()

    assert coroutines.run_to_end(use)
    gc.collect()
    assert coroutines.run_to_end(use)
    assert seen == ["open"]
    coroutines.close()
    assert seen == ["open", "close"]


def test_each_loop_has_its_own(seen: list[Any]) -> None:
    @resource
    async def client() -> AsyncIterator[object]:
        yield object()

    for _ in range(2):
        with closing(Coroutines()) as coroutines:
            seen.append(coroutines.run_to_end(client))

    assert seen[0] is not seen[1]


def test_calls_at_once_open_it_once(coroutines: Coroutines, seen: list[Any]) -> None:
    @resource
    async def client() -> AsyncIterator[object]:
        seen.append("open")
        await asyncio.sleep(0.01)
        yield object()

    async def use() -> list[object]:
        return [*await asyncio.gather(client(), client(), client())]

    values = coroutines.run_to_end(use)

    assert seen == ["open"]
    assert len(set(map(id, values))) == 1


def test_it_is_closed_on_the_task_that_opened_it(coroutines: Coroutines, seen: list[Any]) -> None:
    @asynccontextmanager
    async def group() -> AsyncIterator[None]:
        seen.append(asyncio.current_task())
        yield
        seen.append(asyncio.current_task())

    @resource
    async def client() -> AsyncIterator[None]:
        async with group():
            yield

    async def use() -> None:
        await client()

    coroutines.run_to_end(use)
    coroutines.close()

    assert len(seen) == 2
    assert seen[0] is seen[1]


def test_the_tasks_that_a_resource_starts_stay_and_those_of_a_run_end_with_it(
    coroutines: Coroutines, seen: list[Any]
) -> None:
    beats = 0

    async def beat(name: str) -> None:
        nonlocal beats
        try:
            while True:
                beats += name == "resource"
                await asyncio.sleep(0)
        finally:
            seen.append(f"{name} ended")

    @resource
    async def client() -> AsyncIterator[None]:
        task = asyncio.create_task(beat("resource"))
        yield
        task.cancel()

    async def use() -> None:
        await client()
        left = asyncio.create_task(beat("run"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not left.done()

    coroutines.run_to_end(use)
    assert seen == ["run ended"]
    before = beats
    coroutines.run_to_end(use)
    assert beats > before
    coroutines.close()
    assert seen == ["run ended", "run ended", "resource ended"]


def test_a_run_that_is_cut_off_while_it_waits_leaves_the_opening_to_the_next(
    coroutines: Coroutines, seen: list[Any]
) -> None:
    @resource
    async def client() -> AsyncIterator[str]:
        seen.append("open")
        await asyncio.sleep(0.02)
        yield "client"

    async def give_up() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client(), 0.001)

    coroutines.run_to_end(give_up)

    assert coroutines.run_to_end(client) == "client"
    assert seen == ["open"]


def test_what_fails_to_open_fails_all_that_wait_and_is_opened_again(coroutines: Coroutines, seen: list[Any]) -> None:
    @resource
    async def client() -> AsyncIterator[str]:
        seen.append("open")
        await asyncio.sleep(0)
        if len(seen) == 1:
            raise ConnectionError("away")
        yield "client"

    async def use() -> list[Any]:
        return [*await asyncio.gather(client(), client(), return_exceptions=True)]

    assert [type(one) for one in coroutines.run_to_end(use)] == [ConnectionError] * 2
    assert coroutines.run_to_end(client) == "client"


def test_closing_a_loop_is_bounded_too(coroutines: Coroutines, caplog: pytest.LogCaptureFixture) -> None:
    @resource
    async def client() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(3600)

    coroutines.run_to_end(client)

    coroutines.close()

    first, second = (record.getMessage() for record in caplog.records)
    assert first == "resources of an event loop are not closed within 2 s"
    assert "client could not be closed: CancelledError (test_resources.py:" in second


def test_outside_of_a_run_it_works_as_well() -> None:
    @resource
    async def client() -> AsyncIterator[str]:
        yield "client"

    assert asyncio.run(client()) == "client"  # type: ignore[arg-type]


def test_sixteen_slots_each_keep_a_client_and_close_it(db: Database[Any], seen: list[Any]) -> None:
    registry = Registry()
    opened: list[asyncio.AbstractEventLoop] = []

    @resource
    async def client() -> AsyncIterator[asyncio.Semaphore]:
        opened.append(asyncio.get_running_loop())
        yield asyncio.Semaphore(1)
        seen.append("closed")

    @registry.task("use")
    async def use(_: Any) -> None:
        async with await client():
            await asyncio.sleep(0.01)

    queue = Queue(db)
    queue.enqueue_many({"name": "use", "payload": {}} for _ in range(100))

    assert drain(queue, registry=registry, concurrency=16, timeout=timedelta(seconds=30)).done == 100
    assert 2 <= len(opened) <= 16
    assert len(set(map(id, opened))) == len(opened)
    assert seen == ["closed"] * len(opened)


# Registration


async def not_a_generator() -> None: ...


@pytest.mark.parametrize("function", [lambda: None, not_a_generator, list, 7])
def test_what_yields_nothing_is_refused(function: Any) -> None:
    with pytest.raises(RegistrationError, match="yields its value once"):
        resource(function)


def test_a_resource_takes_no_argument() -> None:
    def client(url: str) -> Iterator[str]:
        yield url

    with pytest.raises(RegistrationError, match="client must be callable without an argument"):
        resource(client)  # type: ignore[arg-type]
