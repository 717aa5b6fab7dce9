"""Draining a queue runs what is due, as an executor would, at a time that the test chooses."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tidemill import Backoff, Fail, Queue, Retry, RetryPolicy, Snooze, Task, TaskContext
from tidemill.registry import Registry
from tidemill.testing import ManualClock, drain
from tidemill.testing.drain import Executor
from tidemill.testing.perform import watch
from tools.pages import find_blocks, read_page

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
DOUBLING = RetryPolicy(max_retries=3, backoff=Backoff(base_sec=5, factor=2, max_sec=60, jitter="full"))


def stored(queue: Queue, task_id: Any) -> Task:
    task = queue.get(task_id)
    assert isinstance(task, Task)
    return task


def test_what_is_due_is_run_and_counted(queue: Queue, registry: Registry) -> None:
    registry.task("double")(lambda payload: payload["n"] * 2)
    ids = [queue.enqueue("double", {"n": n}) for n in range(3)]

    drained = drain(queue, registry=registry)

    assert (drained.done, drained.retried, drained.failed, drained.failures) == (3, 0, 0, ())
    assert [stored(queue, one).result for one in ids] == [0, 2, 4]
    assert repr(drained) == "<drained: claimed 3, done 3>"


def test_an_empty_queue_is_drained_at_once(queue: Queue, registry: Registry) -> None:
    drained = drain(queue, registry=registry)

    assert repr(drained.raise_failures()) == "<drained: nothing was due>"


def test_a_database_is_drained_like_its_queue(db: Database[Any], queue: Queue, registry: Registry) -> None:
    registry.task("noop")(lambda _payload: None)
    queue.enqueue("noop", {})

    assert drain(db, registry=registry).done == 1


def test_functions_are_called_one_at_a_time_in_the_order_of_the_queue(queue: Queue, registry: Registry) -> None:
    seen: list[tuple[int, int]] = []
    running: list[int] = []

    @registry.task("note")
    def note(payload: dict[str, Any]) -> None:
        running.append(1)
        seen.append((payload["n"], len(running)))
        running.pop()

    for n, priority in enumerate([0, 0, 5, 0]):
        queue.enqueue("note", {"n": n}, priority=priority)

    drain(queue, registry=registry)

    assert seen == [(2, 1), (0, 1), (1, 1), (3, 1)]


def test_the_object_that_the_guide_keeps_for_each_loop_serves_one_slot_only(queue: Queue, registry: Registry) -> None:
    # N07
    names: dict[str, Any] = {}
    [snippet] = [text for text in find_blocks(read_page("docs/guides/tasks.md"), "python") if "async def limit" in text]
    exec(compile(snippet, "tasks.md", "exec", dont_inherit=True), names)
    together = threading.Barrier(3, timeout=10)
    seen: list[tuple[int, asyncio.Semaphore, asyncio.AbstractEventLoop]] = []

    @registry.task("send")
    async def send(_payload: dict[str, Any]) -> None:
        together.wait()
        async with await names["limit"]():
            seen.append((threading.get_ident(), await names["limit"](), asyncio.get_running_loop()))

    queue.enqueue_many({"name": "send", "payload": {"n": n}} for n in range(9))

    assert drain(queue, registry=registry, concurrency=3).done == 9
    assert len({thread for thread, *_ in seen}) == 3
    assert len(set(seen)) == len({limit for _, limit, _ in seen}) == len({loop for *_, loop in seen}) == 3


def test_a_client_of_one_loop_is_refused_in_the_second_slot_which_one_slot_hides(
    queue: Queue, registry: Registry
) -> None:
    # N07: the fault that the guide tells of
    free = asyncio.Event()
    together = threading.Barrier(2)

    @registry.task("send", retry="one_shot")
    async def send(payload: dict[str, Any]) -> None:
        if payload["slots"] > 1:
            together.wait(10)
        with suppress(TimeoutError):
            await asyncio.wait_for(free.wait(), 0.05)

    queue.enqueue_many({"name": "send", "payload": {"slots": 1}} for _ in range(2))
    assert drain(queue, registry=registry).done == 2
    queue.enqueue_many({"name": "send", "payload": {"slots": 2}} for _ in range(2))
    drained = drain(queue, registry=registry, concurrency=2)

    assert drained.failed >= 1
    assert "different event loop" in str(drained.failures[0].error)


def test_more_may_run_at_a_time(queue: Queue, registry: Registry) -> None:
    together = threading.Barrier(3, timeout=10)

    @registry.task("meet")
    def meet(_payload: dict[str, Any]) -> None:
        together.wait()

    queue.enqueue_many({"name": "meet", "payload": {}} for _ in range(3))

    assert drain(queue, registry=registry, concurrency=3).raise_failures().done == 3


def test_functions_run_in_this_process_and_async_ones_to_their_end(queue: Queue, registry: Registry) -> None:
    outbox: list[str] = []

    @registry.task("mail", isolate=True)
    async def mail(payload: dict[str, Any]) -> str:
        outbox.append(payload["to"])
        return "sent"

    task_id = queue.enqueue("mail", {"to": "a"})

    drain(queue, registry=registry)

    assert (outbox, stored(queue, task_id).result) == (["a"], "sent")


def test_only_the_queues_that_were_named_are_drained(queue: Queue, registry: Registry) -> None:
    registry.task("noop")(lambda _payload: None)
    for name in ("eu", "us", "us"):
        queue.enqueue("noop", {}, queue=name)

    assert drain(queue, queues=["us"], registry=registry).done == 2
    assert drain(queue, registry=registry).done == 1


def test_and_only_their_times_are_gone_through(queue: Queue, registry: Registry) -> None:
    registry.task("noop")(lambda _payload: None)
    start = queue.now()
    for name, hours in (("eu", 1), ("us", 2)):
        queue.enqueue("noop", {}, queue=name, not_before=start + hours * HOUR)

    drained = drain(queue, queues=["eu"], until=start + 3 * HOUR, registry=registry)

    assert (drained.done, drained.now) == (1, start + HOUR)


# Follow-ups


def test_what_functions_enqueue_without_a_delay_is_run_too(queue: Queue, registry: Registry) -> None:
    @registry.task("count_down")
    def count_down(payload: dict[str, Any]) -> None:
        if payload["n"]:
            Queue(queue.database).enqueue("count_down", {"n": payload["n"] - 1})

    queue.enqueue("count_down", {"n": 3})

    assert drain(queue, registry=registry).raise_failures().done == 4


@pytest.mark.parametrize("ahead", [timedelta(0), HOUR])
def test_and_so_it_is_where_the_time_is_given(queue: Queue, registry: Registry, ahead: timedelta) -> None:
    @registry.task("parent")
    def parent(_payload: dict[str, Any]) -> None:
        queue.enqueue("child", {}, not_before=queue.now() - HOUR)

    registry.task("child")(lambda _payload: None)
    queue.enqueue("parent", {})

    assert drain(queue, now=queue.now() + ahead + SECOND, registry=registry).raise_failures().done == 2


def test_one_that_enqueues_itself_for_ever_is_told_of(queue: Queue, registry: Registry) -> None:
    @registry.task("again")
    def again(_payload: dict[str, Any]) -> None:
        queue.enqueue("again", {})

    queue.enqueue("again", {})

    def runs() -> None:
        with watch(registry, max_runs=20) as watched:
            Executor(db=queue.database, registry=watched, stop=watched.enough).run(queue.now() + HOUR)

    with pytest.raises(AssertionError, match="no end to it after 20 runs: does a function enqueue itself"):
        runs()
    assert queue.database["tasks"].count_documents({"status": "done"}) == 20


# Time


def test_time_stands_still_so_back_offs_are_neither_slept_through_nor_cut_short(
    queue: Queue, registry: Registry
) -> None:
    attempts: list[int] = []

    @registry.task("flaky", retry=DOUBLING)
    def flaky(_payload: dict[str, Any], ctx: TaskContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise ConnectionError("refused")
        return "at last"

    task_id = queue.enqueue("flaky", {})

    first = drain(queue, registry=registry)
    assert (first.retried, stored(queue, task_id).next_retry_at) == (1, first.now + 5 * SECOND)
    early = drain(queue, now=first.now + 5 * SECOND - timedelta(milliseconds=1), registry=registry)
    assert early.report["claimed"] == 0
    second = drain(queue, now=first.now + 5 * SECOND, registry=registry)
    third = drain(queue, now=second.now + 10 * SECOND, registry=registry)
    last = drain(queue, now=third.now + 20 * SECOND, registry=registry)

    assert attempts == [1, 2, 3, 4]
    assert (last.done, stored(queue, task_id).result) == (1, "at last")


def test_it_goes_on_from_one_due_time_to_the_next(queue: Queue, registry: Registry) -> None:
    clock: list[datetime] = []

    @registry.task("flaky", retry=DOUBLING)
    def flaky(_payload: dict[str, Any], ctx: TaskContext) -> None:
        task = stored(queue, ctx.task_id)
        clock.append(task.updated_at)
        if ctx.attempt < 4:
            raise ConnectionError("refused")

    registry.task("noop")(lambda _payload: None)
    start = queue.now()
    queue.enqueue("flaky", {}, not_before=start + HOUR)
    queue.enqueue("noop", {}, not_before=start + 3 * HOUR)

    drained = drain(queue, until=start + 2 * HOUR, registry=registry)

    assert (drained.done, drained.retried) == (1, 3)
    assert [at - start for at in clock] == [HOUR + n * SECOND for n in (0, 5, 15, 35)]
    assert drain(queue, until=start + 3 * HOUR, registry=registry).done == 1


def test_a_delayed_task_waits_for_its_time(queue: Queue, registry: Registry) -> None:
    registry.task("noop")(lambda _payload: None)
    task_id = queue.enqueue("noop", {}, delay=HOUR)
    due_at = stored(queue, task_id).due_at

    assert drain(queue, registry=registry).done == 0
    assert drain(queue, now=due_at - timedelta(milliseconds=1), registry=registry).done == 0
    assert drain(queue, now=due_at, registry=registry).done == 1


def test_a_queue_can_have_a_clock_that_the_test_moves(db: Database[Any], registry: Registry) -> None:
    clock = ManualClock(datetime(2031, 7, 1, 9, 0, 0, 123_999, tzinfo=UTC))
    queue = Queue(db, clock=clock)
    registry.task("noop")(lambda _payload: None)
    queue.enqueue("noop", {}, delay=HOUR)

    assert drain(queue, registry=registry).done == 0
    assert clock.move(HOUR) == datetime(2031, 7, 1, 10, 0, 0, 123_000, tzinfo=UTC)
    drained = drain(queue, registry=registry)

    assert (drained.done, drained.now) == (1, clock.now())


def test_a_snooze_is_no_failure_and_no_loop(queue: Queue, registry: Registry) -> None:
    @registry.task("later")
    def later(_payload: dict[str, Any]) -> None:
        raise Snooze(timedelta(0))

    queue.enqueue("later", {})

    drained = drain(queue, registry=registry)

    assert (drained.snoozed, drained.failures) == (1, ())
    assert drain(queue, until=drained.now + 4 * SECOND, registry=registry).snoozed == 4


def test_a_time_without_a_zone_is_refused(queue: Queue, registry: Registry) -> None:
    with pytest.raises(ValueError, match="time zone"):
        drain(queue, now=datetime(2026, 7, 1), registry=registry)  # noqa: DTZ001 - that is the point
    with pytest.raises(ValueError, match="time zone"):
        drain(queue, until=datetime(2026, 7, 1), registry=registry)  # noqa: DTZ001


# Failures


def test_what_a_function_raises_is_at_hand_as_it_was(queue: Queue, registry: Registry) -> None:
    refused = ConnectionError("refused")

    @registry.task("mail")
    def mail(payload: dict[str, Any]) -> None:
        payload.clear()
        raise refused

    task_id = queue.enqueue("mail", {"to": "a"})

    drained = drain(queue, registry=registry)

    [failure] = drained.failures
    assert failure.error is refused
    assert (failure.name, failure.payload, failure.task_id, failure.attempt) == ("mail", {"to": "a"}, task_id, 1)
    assert repr(drained).startswith(
        "<drained: claimed 1, retried 1; 'mail' (attempt 1) raised ConnectionError: refused"
    )
    with pytest.raises(ConnectionError) as raised:
        drained.raise_failures()
    assert raised.value is refused
    assert raised.traceback[-1].name == "mail"


async def _asynchronous(_payload: dict[str, Any]) -> None:
    raise ConnectionError("refused")


def _passed_on(payload: dict[str, Any]) -> Any:
    return _asynchronous(payload)


@pytest.mark.parametrize("function", [_asynchronous, _passed_on])
def test_and_so_is_what_an_async_function_raises(queue: Queue, registry: Registry, function: Any) -> None:
    registry.task("mail")(function)
    queue.enqueue("mail", {})

    with pytest.raises(ConnectionError):
        drain(queue, registry=registry).raise_failures()


def test_every_failed_attempt_of_a_drain_is_told_of(queue: Queue, registry: Registry) -> None:
    @registry.task("broken")
    def broken(_payload: dict[str, Any]) -> None:
        raise Retry("not yet", after=timedelta(0))

    queue.enqueue("broken", {}, max_retries=2)

    drained = drain(queue, registry=registry)

    assert (drained.retried, drained.failed) == (2, 1)
    assert [one.attempt for one in drained.failures] == [1, 2, 3]


def test_a_test_that_fails_shows_the_error_and_where_it_was_raised(
    queue: Queue, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.task("mail")
    def mail(_payload: dict[str, Any]) -> None:
        raise Fail("no such address")

    queue.enqueue("mail", {})

    drain(queue, registry=registry)

    [record] = caplog.records
    assert (record.name, record.levelno) == ("tidemill.testing", logging.WARNING)
    assert "'mail' (attempt 1) raised Fail: no such address" in caplog.text
    assert "raise Fail(" in caplog.text
    assert "conclu" not in caplog.text


def test_a_function_that_was_never_imported_is_named(
    queue: Queue, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue("send_mail", {})

    drained = drain(queue, registry=registry)

    assert (drained.snoozed, drained.unregistered) == (1, ("send_mail",))
    assert "no function is registered as 'send_mail': import its module" in caplog.text
    with pytest.raises(AssertionError, match="no function is registered as 'send_mail'"):
        drained.raise_failures()


def test_an_attempt_that_failed_without_raising_is_no_less_a_failure(
    db: Database[Any], queue: Queue, registry: Registry
) -> None:
    registry.task("noop")(lambda _payload: None)
    now = queue.now()
    db["tasks"].insert_one(document(now, expires_at=now - HOUR))

    with pytest.raises(AssertionError, match="failed 1"):
        drain(queue, registry=registry).raise_failures()


def test_every_run_can_be_given_another_timeout(queue: Queue, registry: Registry) -> None:
    give_up = threading.Event()

    @registry.task("slow", timeout=600)
    def slow(_payload: dict[str, Any]) -> None:
        while not give_up.wait(0.01):
            pass

    @registry.task("quick", timeout=0.1)
    def quick(_payload: dict[str, Any], ctx: TaskContext) -> bool:
        return ctx.remaining() > HOUR / 2

    queue.enqueue("slow", {}, timeout=timedelta(seconds=300))
    hasty = drain(queue, timeout=timedelta(seconds=0.1), registry=registry)
    give_up.set()
    assert (hasty.timed_out, hasty.retried) == (1, 1)

    task_id = queue.enqueue("quick", {})
    drain(queue, timeout=HOUR, registry=registry)
    assert stored(queue, task_id).result is True


def test_no_timeout_is_too_long(queue: Queue, registry: Registry) -> None:
    registry.task("patient", timeout=800)(lambda _payload: None)
    queue.enqueue("patient", {})

    assert drain(queue, registry=registry).done == 1


def test_a_function_that_is_interrupted_may_take_a_moment_to_end(queue: Queue, registry: Registry) -> None:
    never = threading.Event()

    @registry.task("tidy")
    def tidy(_payload: dict[str, Any]) -> None:
        try:
            while True:
                never.wait(0.01)
        finally:
            never.wait(0.3)

    queue.enqueue("tidy", {})

    drained = drain(queue, timeout=timedelta(seconds=0.1), registry=registry)

    assert [str(one) for one in drained.failures] == ["'tidy' (attempt 1) ran into its timeout"]


def exits(_payload: dict[str, Any]) -> None:
    sys.exit("enough")


def never_ends(_payload: dict[str, Any]) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("function", "told"), [(exits, "raised SystemExit: enough"), (never_ends, "ran into its timeout")]
)
def test_what_would_end_the_test_is_raised_as_an_assertion(
    queue: Queue, registry: Registry, function: Any, told: str
) -> None:
    registry.task("ends")(function)
    queue.enqueue("ends", {})

    drained = drain(queue, timeout=timedelta(seconds=0.2), registry=registry)

    with pytest.raises(AssertionError, match=told):
        drained.raise_failures()
