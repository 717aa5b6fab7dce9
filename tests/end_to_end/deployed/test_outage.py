"""An outage that lasts longer than Lambda's own tries: nothing is lost, nothing is stored twice, poison is shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import StackAtWork, sample
from tests.faults import enqueue_failing
from tests.waiting import eventually

AT_ONCE = 6
SCHEDULE = "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/schedule-{}"
COMMANDS = ("find", "insert", "findAndModify", "commitTransaction", "ping")


@contextmanager
def outage(client: MongoClient[Any]) -> Iterator[None]:
    """MongoDB does nothing of what the enqueue function asks, and says so at once: the other test waits for nobody."""
    with enqueue_failing(client, *COMMANDS, errorCode=24):
        yield


def now(*, ago: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) - ago).isoformat(timespec="seconds").replace("+00:00", "Z")


def task(n: int, **more: Any) -> dict[str, Any]:
    return {"name": "noop", "payload": {"n": n, "card": "S3cr3t"}, **more}


def send(stack: StackAtWork, events: Iterable[Any]) -> None:
    """Invoke the enqueue function asynchronously with each of *events*, as many at once as a small machine bears."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda event: stack.cloud.send("EnqueueFunction", event).result(60), events))


def times_stored(stack: StackAtWork) -> Counter[int | str]:
    """How often each task was stored, by its number or the name of its report, wherever it is."""
    payloads = [one["payload"] for one in (*stack.db.tasks.find(), *stack.db.tasks_dlq.find())]
    return Counter(one.get("n", one.get("report")) for one in payloads)


def is_drained(stack: StackAtWork) -> bool:
    return stack.queues.count("EnqueueRetries") == 0


def test_an_outage_with_two_hundred_schedules_and_events_loses_nothing_and_stores_nothing_twice(
    deploy: Deploy, client: MongoClient[Any]
) -> None:
    stack = deploy().start()
    at = now()
    recurring = [task(n, occurrence={"schedule": SCHEDULE.format(n), "at": at}) for n in range(120)]
    direct = [task(n) for n in range(120, 160)]
    keyed = [task(n, idempotency_key=f"order-{n}") for n in range(160, 180)]
    many = [{"tasks": [task(n), task(n + 1, idempotency_key=f"order-{n}")]} for n in range(180, 200, 2)]
    poison = ["no JSON", json.dumps(sample_record(task(999, name="missing")))]

    with stack.polled(visibility_sec=2):
        with outage(client):
            send(stack, [*recurring, *direct, *keyed, *many])
            assert len(stack.cloud.handed_over) == 190
            for _ in range(2):  # Scheduler, too, delivers at least once
                stack.give_up(stack.recurring(), SCHEDULE_ARN=SCHEDULE.format("daily"), SCHEDULED_TIME=at)
            for body in poison:
                stack.queues.send(stack.cloud.deployment.stack.arn("EnqueueRetries"), body)
            assert eventually(lambda: len(batches(stack)) > 20, within=60)
            assert times_stored(stack) == {}
        assert eventually(lambda: is_drained(stack), within=90), stack.queues.count("EnqueueRetries")

    assert times_stored(stack) == dict.fromkeys([*range(200), "daily"], 1)
    assert sorted(stack.queues.bodies("EnqueueFailures")) == sorted(poison)
    assert {line["code"] for line in stack.said("refused", "EnqueueFunction")} == {"not_allowed"}
    send(stack, recurring[:20])  # the first delivery, late
    assert times_stored(stack) == dict.fromkeys([*range(200), "daily"], 1)


def batches(stack: StackAtWork) -> list[Any]:
    """The tries of batches that came to nothing."""
    return [line for line in stack.said("failed", "EnqueueFunction") if "left" in line]


def sample_record(event: Any) -> dict[str, Any]:
    [message] = sample("retries")["Records"]
    made: dict[str, Any] = json.loads(message["body"])
    return made | {"timestamp": now(), "requestPayload": event}


def test_what_was_stored_before_its_function_died_is_not_stored_again_whatever_became_of_it(deploy: Deploy) -> None:
    stack = deploy().start()
    stack.cloud.dies = lambda function, event: function == "EnqueueFunction" and b"Records" not in event
    delayed = {"delay_sec": 3600}
    at = now()
    send(
        stack,
        [
            task(0, **delayed),
            task(1, **delayed, idempotency_key="order-1"),
            task(2, **delayed, idempotency_key="order-2"),
            {"tasks": [task(3, **delayed), task(4, **delayed, idempotency_key="order-4")]},
            task(5),
            task(6, **delayed, occurrence={"schedule": SCHEDULE.format(6), "at": at}),
        ],
    )
    assert len(stack.cloud.handed_over) == 6
    numbers = {one["payload"]["n"]: str(one["_id"]) for one in stack.db.tasks.find()}
    assert sorted(numbers) == list(range(7))
    stack.ends(numbers[5])
    for n in (1, 4):
        stack.invoke("OperateFunction", {"op": "task.cancel", "id": numbers[n]})
    dead = {"$in": [0, 2, 3, 6]}
    change = {"status": "failed", "reason": "exhausted", "finished_at": datetime.now(UTC)}
    stack.db.tasks.update_many({"payload.n": dead}, {"$set": change})
    assert stack.invoke("ArchiveFunction")["moved"] == 4
    before = [list(stack.db[name].find().sort("_id", 1)) for name in ("tasks", "tasks_dlq")]

    with stack.polled(visibility_sec=2):
        assert eventually(lambda: is_drained(stack), within=60)

    assert [list(stack.db[name].find().sort("_id", 1)) for name in ("tasks", "tasks_dlq")] == before
    assert stack.queues.count("EnqueueFailures") == 0


def test_a_batch_whose_function_dies_before_it_answers_comes_again_and_is_stored_once(deploy: Deploy) -> None:
    stack = deploy().start()
    deaths = iter([True, True])
    stack.cloud.dies = lambda _, event: b"Records" in event and next(deaths, False)
    [retries] = [one.queue for one in stack.cloud.deployment.sources]
    for n in range(15):
        record = sample_record(task(n))
        record["requestContext"]["requestId"] = f"request-{n}"
        stack.queues.send(retries, json.dumps(record))
    stack.queues.send(retries, "no JSON")

    with stack.polled(visibility_sec=2):
        assert eventually(lambda: is_drained(stack), within=60)

    assert next(deaths, None) is None
    assert times_stored(stack) == dict.fromkeys(range(15), 1)
    assert set(stack.queues.bodies("EnqueueFailures")) == {"no JSON"}  # there may be two of it


@pytest.mark.parametrize("cause", ["MongoDB stays away", "SQS takes no poison"])
def test_what_is_not_mended_within_a_day_is_moved_to_the_failures(
    deploy: Deploy, client: MongoClient[Any], cause: str
) -> None:
    gone = {"EnqueueFunction": {"FAILURES_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/gone"}}
    stack = deploy(variables=gone).start()
    stack.may_be_refused = True
    [retries] = [one.queue for one in stack.cloud.deployment.sources]
    body = "no JSON" if cause == "SQS takes no poison" else json.dumps(sample_record(task(1)))
    stack.queues.send(retries, body)

    with outage(client), stack.polled(visibility_sec=1, max_receives=3):
        assert eventually(lambda: stack.queues.bodies("EnqueueFailures") == [body], within=60)

    assert is_drained(stack)
    tries = stack.said("refused" if body == "no JSON" else "failed", "EnqueueFunction")
    assert len(tries) == 3
