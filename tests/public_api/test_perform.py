"""One function alone, called as an executor would call it."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel

from tidemill import Fail, InvalidRequestError, Queue, Snooze, TaskContext, UnknownTaskError
from tidemill.registry import Registry
from tidemill.testing import drain, perform, task_context

HOUR = timedelta(hours=1)


class Invoice(BaseModel):
    order: str
    amount: float


@pytest.fixture
def seen(registry: Registry) -> list[TaskContext]:
    """The contexts that ``look`` was given."""
    contexts: list[TaskContext] = []
    registry.task("look", timeout=45, retry="aggressive")(lambda _payload, ctx: contexts.append(ctx))
    return contexts


def test_what_it_returns_is_returned(registry: Registry) -> None:
    registry.task("double")(lambda payload: {payload["n"] * 2})

    assert perform("double", {"n": 4}, registry=registry) == {8}


def test_an_async_function_is_run_to_its_end(registry: Registry) -> None:
    @registry.task("mail")
    async def mail(payload: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        return f"sent to {payload['to']}"

    assert perform("mail", {"to": "a"}, registry=registry) == "sent to a"


def test_and_from_within_an_event_loop_on_another_thread(registry: Registry) -> None:
    async def mail(_payload: dict[str, Any]) -> str:
        return await asyncio.sleep(0, "sent")

    async def test() -> Any:
        return await asyncio.to_thread(perform, "mail", {}, registry=registry)

    registry.task("mail")(mail)

    assert asyncio.run(test()) == "sent"


class _Promise:
    def __await__(self) -> Any:
        return asyncio.sleep(0, "sent").__await__()


@pytest.mark.parametrize("kind", ["async def", "returned coroutine", "other awaitable"])
def test_on_the_thread_of_an_event_loop_it_says_what_to_do(registry: Registry, kind: str) -> None:
    # N15b
    async def mail(_payload: dict[str, Any]) -> str:
        return await asyncio.sleep(0, "sent")

    kinds: dict[str, Any] = {
        "async def": mail,
        "returned coroutine": lambda payload: mail(payload),  # noqa: PLW0108 - a plain function
        "other awaitable": lambda _payload: _Promise(),
    }
    registry.task("mail")(kinds[kind])

    async def test() -> Any:
        with pytest.raises(RuntimeError, match=r"async.*use await asyncio\.to_thread\(perform, 'mail', \.\.\.\)$"):
            perform("mail", {}, registry=registry)
        return await asyncio.to_thread(perform, "mail", {}, registry=registry)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert asyncio.run(test()) == "sent"
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_plain_function_and_a_drain_need_no_thread_inside_an_event_loop(registry: Registry, queue: Queue) -> None:
    # N15b
    async def mail(_payload: dict[str, Any]) -> str:
        return await asyncio.sleep(0, "sent")

    registry.task("mail")(mail)
    registry.task("add")(lambda payload: payload["n"] + 1)
    queue.enqueue("mail", {})

    async def test() -> tuple[Any, int]:
        return perform("add", {"n": 1}, registry=registry), drain(queue, registry=registry).done

    assert asyncio.run(test()) == (2, 1)


@pytest.mark.parametrize("error", [Fail("no"), Snooze(HOUR), ConnectionError("refused"), SystemExit(3)])
def test_what_it_raises_is_raised(registry: Registry, error: BaseException) -> None:
    @registry.task("broken")
    def broken(_payload: dict[str, Any]) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        perform("broken", {}, registry=registry)
    assert raised.value is error


def test_a_payload_is_validated_by_the_model_of_the_function(registry: Registry) -> None:
    def invoice(payload: Invoice) -> str:
        return f"{payload.order}: {payload.amount:.2f}"

    invoice.__annotations__["payload"] = Invoice
    registry.task("invoice")(invoice)

    assert perform("invoice", {"order": "order-7", "amount": 120}, registry=registry) == "order-7: 120.00"
    with pytest.raises(Fail, match="the payload does not fit Invoice: amount"):
        perform("invoice", {"order": "order-7", "amount": "much"}, registry=registry)


def test_a_payload_arrives_as_it_would_from_the_database(registry: Registry) -> None:
    registry.task("echo")(lambda payload: payload)
    cet = timezone(HOUR)
    given = {"pair": (1, 2), "at": datetime(2026, 7, 1, 10, 0, 0, 123_456, tzinfo=cet)}

    arrived = perform("echo", given, registry=registry)

    assert arrived == {"pair": [1, 2], "at": datetime(2026, 7, 1, 9, 0, 0, 123_000, tzinfo=UTC)}
    assert given["pair"] == (1, 2)


def test_what_could_not_be_enqueued_is_refused(registry: Registry) -> None:
    registry.task("echo")(lambda payload: payload)

    with pytest.raises(InvalidRequestError, match="payload"):
        perform("echo", {"of": object()}, registry=registry)


def test_an_unknown_name_is_refused_with_what_to_do(registry: Registry) -> None:
    with pytest.raises(UnknownTaskError, match="no function is registered as 'mail': import its module"):
        perform("mail", {}, registry=registry)


def test_it_is_a_first_attempt_with_all_its_time_unless_told_otherwise(
    registry: Registry, seen: list[TaskContext]
) -> None:
    perform("look", {}, registry=registry)
    perform("look", {}, registry=registry)

    first, second = seen
    assert (first.attempt, first.is_last_attempt, first.cancelled()) == (1, False, False)
    assert timedelta(seconds=30) < first.remaining() <= timedelta(seconds=45)
    assert first.task_id != second.task_id


def test_the_last_attempt_follows_from_the_registration(registry: Registry, seen: list[TaskContext]) -> None:
    registry.task("plain")(lambda _payload, ctx: seen.append(ctx))
    for attempt in (2, 3):
        perform("look", {}, attempt=attempt, registry=registry)
    for attempt in (10, 11):
        perform("plain", {}, attempt=attempt, registry=registry)

    assert [ctx.is_last_attempt for ctx in seen] == [False, True, False, True]


def test_the_context_can_be_chosen(registry: Registry, seen: list[TaskContext]) -> None:
    perform(
        "look",
        {},
        attempt=2,
        is_last_attempt=True,
        cancelled=True,
        remaining=timedelta(0),
        task_id="order-7",
        registry=registry,
    )

    [ctx] = seen
    assert (ctx.attempt, ctx.is_last_attempt, ctx.cancelled(), ctx.task_id) == (2, True, True, "order-7")
    assert ctx.remaining() == timedelta(0)


def test_a_function_can_be_cancelled_while_it_runs(registry: Registry) -> None:
    cancel = threading.Event()

    @registry.task("patient")
    def patient(_payload: dict[str, Any], ctx: TaskContext) -> list[bool]:
        before = ctx.cancelled()
        cancel.set()
        return [before, ctx.cancelled()]

    assert perform("patient", {}, cancelled=cancel, registry=registry) == [False, True]


def test_a_plain_call_needs_only_a_context() -> None:
    def attempts(_payload: dict[str, Any], ctx: TaskContext) -> int:
        return ctx.attempt

    assert attempts({}, task_context(attempt=3)) == 3
    assert timedelta(seconds=20) < task_context().remaining() <= timedelta(seconds=30)
    assert task_context(cancelled=True).cancelled()
