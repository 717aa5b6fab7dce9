"""An execution runs what is due and writes what became of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import MongoClient

from tests.builders import add, document, stored
from tests.commands import Commands
from tests.features.conftest import Bench
from tidemill import Fail, Retry, Snooze
from tidemill.executor.context import COUNT_NAMES
from tidemill.store import tasks
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

MINUTE = timedelta(minutes=1)


def test_all_due_tasks_are_done(bench: Bench, now: datetime) -> None:
    ids = add(bench.tasks, [document(now, payload={"n": n}) for n in range(250)])

    report = bench.execute()

    assert report.as_dict() == dict.fromkeys(COUNT_NAMES, 0) | {"claimed": 250, "done": 250}
    assert sorted(bench.ran) == list(range(250))
    assert {stored(bench.tasks, one)["status"] for one in ids} == {"done"}


@pytest.mark.parametrize("characters", [0, 100_000])
def test_a_function_gets_its_payload_as_it_was_enqueued(bench: Bench, now: datetime, characters: int) -> None:
    payloads: list[dict[str, Any]] = []
    bench.task("keep")(lambda payload, _ctx: payloads.append(payload))
    wanted = {"schema": {"$ref": "a", "$id": 1}, "text": "x" * characters}
    add(bench.tasks, [document(now, name="keep", payload=wanted)])

    bench.execute()

    assert payloads == [wanted]


def test_a_result_is_stored(bench: Bench, now: datetime) -> None:
    bench.task("sum")(lambda payload, ctx: {"sum": payload["a"] + payload["b"], "attempt": ctx.attempt})
    [task_id] = add(bench.tasks, [document(now, name="sum", payload={"a": 1, "b": 2})])

    bench.execute()

    assert stored(bench.tasks, task_id)["result"] == {"sum": 3, "attempt": 1}


def test_a_task_that_fails_twice_and_may_go_on_at_once_is_done_in_one_invocation(bench: Bench, now: datetime) -> None:
    def flaky(_payload: dict[str, Any], ctx: Any) -> str:
        if ctx.attempt < 3:
            raise Retry("not yet", after=timedelta(0))
        return "at last"

    bench.task("flaky")(flaky)
    [task_id] = add(bench.tasks, [document(now, name="flaky")])

    report = bench.execute()

    found = stored(bench.tasks, task_id)
    assert (report["retried"], report["done"], found["attempts"]) == (2, 1, 3)
    assert [(one["attempt"], one["status"]) for one in found["attempt_log"]] == [
        (1, "failed"),
        (2, "failed"),
        (3, "succeeded"),
    ]


def test_a_failing_task_is_run_once_more_than_it_has_retries(bench: Bench, now: datetime) -> None:
    def failing(_payload: dict[str, Any], ctx: Any) -> None:
        raise Retry(f"last: {ctx.is_last_attempt}", after=timedelta(0))

    bench.task("failing")(failing)
    [task_id] = add(bench.tasks, [document(now, name="failing", max_retries=3)])

    report = bench.execute()

    found = stored(bench.tasks, task_id)
    assert (report["retried"], report["failed"], len(bench.ran)) == (3, 1, 4)
    assert (found["status"], found["reason"]) == ("failed", "exhausted")
    assert [one["note"] for one in found["attempt_log"]] == ["retry: last: False"] * 3 + ["retry: last: True"]


def test_a_retry_is_never_early_and_follows_the_policy(bench: Bench, now: datetime) -> None:
    bench.task("broken")(lambda payload, _ctx: 1 / payload["zero"])
    backoff = {"base_sec": 100, "factor": 2, "max_sec": 1000}
    [task_id] = add(bench.tasks, [document(now, name="broken", payload={"zero": 0}, backoff_policy=backoff)])

    bench.execute()

    due = stored(bench.tasks, task_id)["next_retry_at"]
    assert now < due < now + timedelta(seconds=100)
    bench.clock.at = due - timedelta(milliseconds=1)
    assert bench.execute()["claimed"] == 0
    bench.clock.at = due
    assert bench.execute()["claimed"] == 1


class NotFoundError(Exception):
    pass


class OrderNotFoundError(NotFoundError):
    pass


@pytest.mark.parametrize(
    ("error", "code"),
    [(OrderNotFoundError("no such order"), "OrderNotFoundError"), (Fail("no", code="gone"), "gone")],
)
def test_what_cannot_get_better_is_not_retried(bench: Bench, now: datetime, error: Exception, code: str) -> None:
    def hopeless(_payload: dict[str, Any], _ctx: Any) -> None:
        raise error

    bench.task("hopeless")(hopeless)
    [task_id] = add(bench.tasks, [document(now, name="hopeless")])

    bench.execute()

    found = stored(bench.tasks, task_id)
    assert (found["status"], found["reason"], found["error"]["code"]) == ("failed", "not_retryable", code)


def test_a_payload_that_does_not_fit_its_model_is_not_retried_and_not_repeated(bench: Bench, now: datetime) -> None:
    class Order(BaseModel):
        number: int

    def ship(payload: Order) -> int:
        return payload.number

    ship.__annotations__["payload"] = Order
    bench.registry.task("ship")(ship)
    good, bad = add(
        bench.tasks,
        [document(now, name="ship", payload={"number": 7}), document(now, name="ship", payload={"number": "s3cret"})],
    )

    bench.execute()

    assert stored(bench.tasks, good)["result"] == 7
    found = stored(bench.tasks, bad)
    assert (found["status"], found["error"]["code"]) == ("failed", "ValidationError")
    assert "number" in found["error"]["message"]
    assert "s3cret" not in found["error"]["message"]


def test_a_snoozed_task_is_due_when_it_said_and_has_used_no_attempt(bench: Bench, now: datetime) -> None:
    def later(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Snooze(now + MINUTE)

    bench.task("later")(later)
    [task_id] = add(bench.tasks, [document(now, name="later", max_retries=0)])

    report = bench.execute()

    found = stored(bench.tasks, task_id)
    assert (report["snoozed"], found["attempts"], found["due_at"]) == (1, 0, now + MINUTE)


def test_a_function_that_always_snoozes_does_not_go_round_and_round(bench: Bench, now: datetime) -> None:
    def never(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Snooze(timedelta(0))

    bench.task("never")(never)
    add(bench.tasks, [document(now, name="never")])

    bench.execute()

    assert len(bench.ran) == 1


def test_a_payload_is_what_was_enqueued_whatever_the_function_does_to_it(  # F45
    bench: Bench, now: datetime
) -> None:
    seen: list[dict[str, Any]] = []

    def mutate(payload: dict[str, Any], _ctx: Any) -> None:
        seen.append(dict(payload))
        payload["seen"] = True
        payload.pop("email")
        raise Retry(after=timedelta(0))

    bench.task("mutate")(mutate)
    [task_id] = add(bench.tasks, [document(now, name="mutate", payload={"email": "a"}, max_retries=2)])

    bench.execute()

    assert seen == [{"email": "a"}] * 3
    assert stored(bench.tasks, task_id)["payload"] == {"email": "a"}


def test_two_executions_at_once_run_every_task_once(bench: Bench, now: datetime) -> None:
    add(bench.tasks, [document(now, payload={"n": n}) for n in range(200)])

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda owner: bench.execute(owner=owner), "ABCD"))

    assert sorted(bench.ran) == list(range(200))
    assert sum(report["done"] for report in reports) == 200


def test_queues_and_lanes_that_were_not_asked_for_are_left_alone(bench: Bench, now: datetime) -> None:
    add(
        bench.tasks,
        [
            document(now, payload={"n": "eu"}, queue="eu"),
            document(now, payload={"n": "us"}, queue="us"),
            document(now, payload={"n": "eu again"}, queue="eu", lane="retry"),
        ],
    )

    bench.execute(queues=["eu"], lanes=("retry",))
    assert bench.ran == ["eu again"]
    bench.execute(queues=["eu"])
    assert bench.ran == ["eu again", "eu"]
    bench.execute()
    assert bench.ran == ["eu again", "eu", "us"]


@pytest.mark.parametrize("lane", ["fresh", "retry"])
def test_a_lane_gets_every_slot_the_other_has_no_work_for(bench: Bench, now: datetime, lane: str) -> None:
    add(bench.tasks, [document(now, lane=lane) for _ in range(50)])

    for concurrency in (1, 2, 16):
        add(bench.tasks, [document(now, lane=lane) for _ in range(concurrency)])
        assert bench.execute(concurrency=concurrency)["contended_ids"] == 0

    assert bench.tasks.count_documents({"status": "done"}) == 69


def test_a_running_task_learns_that_it_is_to_stop(bench: Bench, now: datetime) -> None:
    def patient(_payload: dict[str, Any], ctx: Any) -> None:
        tasks.cancel(bench.tasks, ctx.task_id, now=now)
        while not ctx.cancelled() and ctx.remaining() > timedelta(seconds=10):
            pass
        raise RuntimeError("asked to stop" if ctx.cancelled() else "never asked")

    bench.task("patient", timeout=20)(patient)
    [task_id] = add(bench.tasks, [document(now, name="patient")])

    bench.execute()

    assert stored(bench.tasks, task_id)["status"] == "cancelled"
    assert stored(bench.tasks, task_id)["attempt_log"][0]["note"].startswith("RuntimeError: asked to stop")


def test_an_idle_execution_asks_once_and_leaves(bench: Bench, mongod: Mongod, now: datetime) -> None:
    add(bench.tasks, [document(now, due_at=now + MINUTE, queue="delayed"), document(now, status="done")])
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[commands]) as client:
        report = bench.execute(tasks=open_tasks(client[bench.db.name]), queues=["default"])
        asked = list(commands.names)
        bench.db["tasks"].delete_many({})
        commands.names.clear()
        bench.execute(tasks=open_tasks(client[bench.db.name]))
        without_queues = list(commands.names)

    assert report.as_dict() == dict.fromkeys(COUNT_NAMES, 0)
    assert asked == ["find"]
    assert without_queues == ["aggregate"]
