"""Hooks around each run of a task function: their order, their errors, and what they may not do."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tidemill import Fail, Queue, Retry, Snooze, TaskContext
from tidemill.errors import RegistrationError
from tidemill.registry import Registry
from tidemill.testing import drain, perform

SECOND = timedelta(seconds=1)
SESSION: contextvars.ContextVar[str] = contextvars.ContextVar("SESSION", default="none")


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def seen() -> list[Any]:
    return []


def add_hook(registry: Registry, seen: list[Any], name: str) -> None:
    @registry.task_hook
    def hook(_ctx: TaskContext) -> Iterator[None]:
        seen.append(f"{name} begins")
        try:
            yield
        except BaseException as error:
            seen.append(f"{name} sees {type(error).__name__}")
            raise
        seen.append(f"{name} ends")


def add_async_hook(registry: Registry, seen: list[Any], name: str) -> None:
    @registry.task_hook
    async def hook(_ctx: TaskContext) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(f"{name} begins")
        try:
            yield
        except BaseException as error:
            seen.append(f"{name} sees {type(error).__name__}")
            raise
        await asyncio.sleep(0)
        seen.append(f"{name} ends")


def test_the_first_hook_is_the_outermost_one(registry: Registry, seen: list[Any]) -> None:
    add_hook(registry, seen, "a")
    add_hook(registry, seen, "b")
    registry.task("f")(lambda _: seen.append("f"))

    perform("f", {}, registry=registry)

    assert seen == ["a begins", "b begins", "f", "b ends", "a ends"]


def test_a_hook_may_be_registered_before_and_after_the_functions(registry: Registry, seen: list[Any]) -> None:
    registry.task("f")(lambda _: seen.append("f"))
    add_hook(registry, seen, "a")

    perform("f", {}, registry=registry)

    assert seen == ["a begins", "f", "a ends"]


def test_a_hook_knows_the_task(registry: Registry, seen: list[Any]) -> None:
    @registry.task_hook
    def hook(ctx: TaskContext) -> Iterator[None]:
        seen.append((ctx.name, ctx.attempt, ctx.is_last_attempt))
        yield

    registry.task("f")(lambda _: None)

    perform("f", {}, attempt=2, is_last_attempt=True, registry=registry)

    assert seen == [("f", 2, True)]


def test_a_hook_shares_thread_and_context_variables_with_the_function(registry: Registry) -> None:
    threads: list[int] = []

    @registry.task_hook
    def hook(_ctx: TaskContext) -> Iterator[None]:
        threads.append(threading.get_ident())
        SESSION.set("a session")
        yield

    def read(_: Any) -> str:
        threads.append(threading.get_ident())
        return SESSION.get()

    async def read_async(payload: Any) -> str:
        await asyncio.sleep(0)
        return read(payload)

    registry.task("read")(read)
    registry.task("read_async")(read_async)

    assert perform("read", {}, registry=registry) == "a session"
    assert perform("read_async", {}, registry=registry) == "a session"
    assert len(set(threads)) == 1
    assert SESSION.get() == "none"


@pytest.mark.parametrize("error", [ValueError("no"), Retry("later"), Fail("never"), Snooze(SECOND), SystemExit(3)])
def test_a_hook_sees_the_error_of_the_function(registry: Registry, seen: list[Any], error: BaseException) -> None:
    add_hook(registry, seen, "a")

    def f(_: Any) -> None:
        raise error

    registry.task("f")(f)

    with pytest.raises(type(error)) as caught:
        perform("f", {}, registry=registry)

    assert caught.value is error
    assert seen == ["a begins", f"a sees {type(error).__name__}"]


def test_a_hook_sees_that_a_payload_does_not_fit(registry: Registry, seen: list[Any]) -> None:
    add_hook(registry, seen, "a")

    @registry.task("f")
    def f(payload: dict[str, int]) -> None: ...

    with pytest.raises(Fail):
        perform("f", {"n": "many"}, registry=registry)

    assert seen == ["a begins", "a sees Fail"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hook_that_suppresses_an_error_changes_nothing(registry: Registry, kind: str) -> None:
    @registry.task_hook
    def hook(_ctx: TaskContext) -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield

    @registry.task_hook
    async def async_hook(_ctx: TaskContext) -> AsyncIterator[None]:
        with contextlib.suppress(ValueError):
            yield

    def f(_: Any) -> None:
        raise ValueError("no")

    async def g(_: Any) -> None:
        raise ValueError("no")

    registry.task("f")(f if kind == "def" else g)

    with pytest.raises(ValueError, match="no"):
        perform("f", {}, registry=registry)


def test_a_hook_may_raise_another_error_in_its_place(registry: Registry) -> None:
    @registry.task_hook
    def hook(_ctx: TaskContext) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:
            raise Retry("the server is away") from error

    def f(_: Any) -> None:
        raise ConnectionError

    registry.task("f")(f)

    with pytest.raises(Retry, match="the server is away"):
        perform("f", {}, registry=registry)


def test_an_error_before_the_function_fails_the_attempt_and_the_function_is_not_called(
    registry: Registry, seen: list[Any]
) -> None:
    add_hook(registry, seen, "a")

    @registry.task_hook
    def broken(ctx: TaskContext) -> Iterator[None]:
        if ctx.attempt:
            raise OSError("no session")
        yield

    registry.task("f")(lambda _: seen.append("f"))

    with pytest.raises(OSError, match="no session"):
        perform("f", {}, registry=registry)

    assert seen == ["a begins", "a sees OSError"]


def test_an_error_after_the_function_fails_the_attempt(registry: Registry, seen: list[Any]) -> None:
    @registry.task_hook
    def commit(_ctx: TaskContext) -> Iterator[None]:
        yield
        raise OSError("the commit failed")

    registry.task("f")(lambda _: seen.append("f"))

    with pytest.raises(OSError, match="the commit failed"):
        perform("f", {}, registry=registry)

    assert seen == ["f"]


def test_a_hook_that_yields_twice_or_never_fails_the_attempt(registry: Registry) -> None:
    registry.task("f")(lambda _: None)

    @registry.task_hook
    def twice(_ctx: TaskContext) -> Iterator[None]:
        yield
        yield

    with pytest.raises(RuntimeError, match="didn't stop"):
        perform("f", {}, registry=registry)


# Async functions


def test_hooks_surround_the_whole_of_an_async_function(registry: Registry, seen: list[Any]) -> None:
    add_async_hook(registry, seen, "inner")
    add_hook(registry, seen, "outer")

    async def f(_: Any) -> str:
        seen.append("f begins")
        await asyncio.sleep(0)
        seen.append("f ends")
        return "done"

    registry.task("f")(f)

    assert perform("f", {}, registry=registry) == "done"
    assert seen == [
        "outer begins", "inner begins", "f begins", "f ends", "inner ends", "outer ends",
    ]  # fmt: skip


def test_an_async_hook_leaves_other_functions_alone(registry: Registry, seen: list[Any]) -> None:
    add_async_hook(registry, seen, "a")
    registry.task("f")(lambda _: asyncio.run(asyncio.sleep(0, "done")))

    assert perform("f", {}, registry=registry) == "done"
    assert seen == []


def test_an_async_hook_runs_on_the_loop_of_the_function(registry: Registry, seen: list[Any]) -> None:
    @registry.task_hook
    async def hook(_ctx: TaskContext) -> AsyncIterator[None]:
        seen.append(asyncio.get_running_loop())
        yield
        seen.append(asyncio.get_running_loop())

    async def f(_: Any) -> None:
        seen.append(asyncio.get_running_loop())

    registry.task("f")(f)
    perform("f", {}, registry=registry)

    assert len(seen) == 3
    assert len(set(map(id, seen))) == 1


def test_an_error_of_an_async_hook_before_the_function_leaves_no_coroutine(
    registry: Registry, seen: list[Any], recwarn: pytest.WarningsRecorder
) -> None:
    add_hook(registry, seen, "outer")

    @registry.task_hook
    async def broken(ctx: TaskContext) -> AsyncIterator[None]:
        if ctx.attempt:
            raise OSError("no session")
        yield

    async def f(_: Any) -> None:
        seen.append("f")

    registry.task("f")(f)

    def run() -> str:
        try:
            perform("f", {}, registry=registry)
        except OSError as error:
            return str(error)
        return ""

    assert run() == "no session"
    gc.collect()
    assert seen == ["outer begins", "outer sees OSError"]
    assert [str(one.message) for one in recwarn.list] == []


# Registration


@pytest.mark.parametrize("function", [lambda ctx: None, lambda: (yield), list, 7, None])  # noqa: ARG005
def test_what_cannot_be_a_hook_is_refused(registry: Registry, function: Any) -> None:
    with pytest.raises(RegistrationError, match=r"yields once|must be callable as hook\(ctx\)"):
        registry.task_hook(function)


def test_a_hook_whose_module_is_imported_again_is_there_once(registry: Registry) -> None:
    source = "seen = []\n@task_hook\ndef hook(ctx):\n    seen.append(ctx.name)\n    yield\n"
    modules: list[dict[str, Any]] = []
    for _ in range(2):
        modules.append({"__name__": "jobs.hooks", "task_hook": registry.task_hook})
        exec(source, modules[-1])
    registry.task("f")(lambda _: None)

    perform("f", {}, registry=registry)

    assert [module["seen"] for module in modules] == [[], ["f"]]


# Executors


def test_an_executor_runs_hooks_and_settles_what_comes_of_them(
    db: Database[Any], registry: Registry, seen: list[Any]
) -> None:
    add_hook(registry, seen, "a")

    @registry.task_hook
    def commit(ctx: TaskContext) -> Iterator[None]:
        yield
        if ctx.attempt == 1:
            raise Retry("the commit failed", after=timedelta(0))

    registry.task("f")(lambda _: None)
    queue = Queue(db)
    queue.enqueue("f", {})

    drained = drain(queue, registry=registry)

    assert (drained.done, drained.retried) == (1, 1)
    assert seen == ["a begins", "a sees Retry", "a begins", "a ends"]
    assert [str(failure).partition(" raised ")[0] for failure in drained.failures] == ["'f' (attempt 1)"]


def test_a_timeout_is_an_error_to_a_hook(db: Database[Any], registry: Registry, seen: list[Any]) -> None:
    add_hook(registry, seen, "a")
    add_async_hook(registry, seen, "inner")

    async def hang(_: Any) -> None:
        await asyncio.sleep(60)

    registry.task("hang", timeout=0.1)(hang)
    queue = Queue(db)
    queue.enqueue("hang", {}, max_retries=0)

    assert drain(queue, registry=registry).timed_out == 1
    assert seen == ["a begins", "inner begins", "inner sees CancelledError", "a sees CancelledError"]
