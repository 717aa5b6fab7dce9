"""Messages of the queue of retries: what came to nothing is taken in later, once; what nothing mends is set aside."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pymongo.database import Database

from tests.handlers.calls import sample
from tests.handlers.conftest import Deployed
from tests.handlers.s3_api import silent
from tidemill import InvalidRequestError, Queue, indexes
from tidemill.testing import FakeContext

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}
KEYED = NOOP | {"idempotency_key": "report"}
SECRET = "4111-1111"
SCHEDULE = "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily"
RECURRING = NOOP | {"occurrence": {"schedule": "<aws.scheduler.schedule-arn>", "at": "<aws.scheduler.scheduled-time>"}}


def stamp(*, ago: timedelta = timedelta(minutes=5)) -> str:
    return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def record(event: Any, *, request_id: str | None = None, ago: timedelta = timedelta(minutes=5)) -> str:
    """What Lambda sends of an invocation that it gave up so long *ago*."""
    [message] = sample("retries")["Records"]
    body = json.loads(message["body"]) | {"timestamp": stamp(ago=ago), "requestPayload": event}
    body["requestContext"]["requestId"] = request_id or str(uuid.uuid4())
    return json.dumps(body)


def message(body: str, *, attributes: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = sample("retries")["Records"][0]
    given = {
        name: {"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": "String"}
        for name, value in (attributes or {}).items()
    }
    return made | {"messageId": str(uuid.uuid4()), "body": body, "messageAttributes": given} | changes


def given_up(event: Any, *, at: str) -> dict[str, Any]:
    """What Scheduler sends of a time that it could not deliver."""
    return message(json.dumps(event), attributes={"SCHEDULE_ARN": SCHEDULE, "SCHEDULED_TIME": at, "ERROR_CODE": "e"})


def batch(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"Records": list(messages)}


def left(answer: Any) -> list[str]:
    """The messages that are to come again."""
    assert answer.keys() == {"batchItemFailures"}
    assert all(one.keys() == {"itemIdentifier"} for one in answer["batchItemFailures"])
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


def ids(*messages: dict[str, Any]) -> list[str]:
    return [one["messageId"] for one in messages]


@dataclass(frozen=True, slots=True)
class Failures:
    """The queue of failures."""

    client: Any
    url: str

    def messages(self) -> list[tuple[str, dict[str, str]]]:
        """The body of each message in it, and its attributes."""
        told = self.client.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=0
        )
        return [
            (one["Body"], {name: value["StringValue"] for name, value in one.get("MessageAttributes", {}).items()})
            for one in told.get("Messages", [])
        ]


@pytest.fixture(scope="module")
def sqs() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def failures(deployed: Deployed, sqs: str, monkeypatch: pytest.MonkeyPatch) -> Failures:
    """The functions in Lambda, with a queue of failures."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL_SQS": sqs,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("sqs")
    url = client.create_queue(QueueName=f"failures-{uuid.uuid4().hex}")["QueueUrl"]
    deployed.set(AWS_LAMBDA_FUNCTION_NAME="this", FAILURES_QUEUE_URL=url)
    return Failures(client, url)


def contents(db: Database[Any]) -> list[list[Any]]:
    return [list(db[name].find().sort("_id", 1)) for name in ("tasks", "tasks_dlq")]


def refused(deployed: Deployed) -> list[dict[str, Any]]:
    return [line for line in deployed.log() if line["message"] == "refused"]


def test_an_invocation_that_lambda_gave_up_is_taken_in_and_runs(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    answer = deployed.invoke("enqueue", batch(message(record(NOOP, request_id="r-1"))))

    assert left(answer) == []
    assert [one["trace"] for one in db.tasks.find()] == [{"source": "direct", "correlation_id": "r-1"}]
    assert deployed.invoke("execute")["done"] == 1
    assert failures.messages() == []


@pytest.mark.parametrize("name", ["retries", "retries_schedule"])
def test_the_sample_is_taken_in_with_a_time_of_today_and_set_aside_as_it_is(
    deployed: Deployed, failures: Failures, db: Database[Any], name: str
) -> None:
    old = sample(name)
    today = json.loads(
        json.dumps(old).replace("2026-07-01T10:22:14.907Z", stamp()).replace("2026-07-01T06:00:00Z", stamp())
    )

    assert left(deployed.invoke("enqueue", today)) == []
    assert db.tasks.count_documents({}) == 1
    assert failures.messages() == []
    assert left(deployed.invoke("enqueue", old)) == []
    assert [body for body, _ in failures.messages()] == [old["Records"][0]["body"]]


def test_ten_messages_are_taken_in_together(deployed: Deployed, failures: Failures, db: Database[Any]) -> None:
    events = [NOOP, KEYED, {"tasks": [NOOP, NOOP]}] * 3 + [NOOP]

    assert left(deployed.invoke("enqueue", batch(*(message(record(one)) for one in events)))) == []
    assert db.tasks.count_documents({}) == 11  # the key has made one of three
    assert failures.messages() == []


@pytest.mark.parametrize("event", [NOOP, KEYED, {"tasks": [NOOP, KEYED, NOOP]}])
@pytest.mark.parametrize("became", ["pending", "done", "cancelled", "dead", "redriven and done"])
def test_what_was_stored_by_a_first_try_is_not_stored_again_whatever_became_of_it(
    deployed: Deployed, failures: Failures, db: Database[Any], event: Any, became: str
) -> None:
    context = FakeContext()
    deployed.invoke("enqueue", event, context)
    if became == "done":
        deployed.invoke("execute")
    elif became == "cancelled":
        for task in db.tasks.find():
            Queue(db).cancel(task["_id"])
    elif became != "pending":
        db.tasks.update_many({}, {"$set": {"status": "failed", "finished_at": datetime.now(UTC)}})
        deployed.invoke("archive")
    if became == "redriven and done":
        deployed.invoke("operate", {"op": "dlq.redrive", "all": True})
        deployed.invoke("execute")
    before = contents(db)

    answers = [
        deployed.invoke("enqueue", batch(message(record(event, request_id=context.aws_request_id)))) for _ in range(2)
    ]

    assert list(map(left, answers)) == [[], []]
    assert contents(db) == before
    assert failures.messages() == []


def test_a_message_that_is_delivered_twice_is_taken_in_once(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    again = message(record({"tasks": [NOOP, KEYED]}))

    assert left(deployed.invoke("enqueue", batch(again, again))) == []
    assert left(deployed.invoke("enqueue", batch(again))) == []
    assert db.tasks.count_documents({}) == 2
    assert failures.messages() == []


@pytest.mark.parametrize("placeholders", ["filled in", "left"])
def test_a_time_that_scheduler_gave_up_is_the_time_that_it_would_have_delivered(
    deployed: Deployed, failures: Failures, db: Database[Any], placeholders: str
) -> None:
    at = stamp(ago=timedelta(hours=25))
    delivered = NOOP | {"occurrence": {"schedule": SCHEDULE, "at": at}}
    late = given_up(delivered if placeholders == "filled in" else RECURRING, at=at)

    assert left(deployed.invoke("enqueue", batch(late, late))) == []
    told = deployed.invoke("enqueue", delivered)

    assert not told["is_new"]
    assert [str(one["_id"]) for one in db.tasks.find()] == [told["tasks"][0]["id"]]
    assert failures.messages() == []


def test_a_time_that_lambda_gave_up_is_taken_in_once(deployed: Deployed, failures: Failures, db: Database[Any]) -> None:
    event = NOOP | {"occurrence": {"schedule": SCHEDULE, "at": stamp()}}

    for _ in range(2):
        assert left(deployed.invoke("enqueue", batch(message(record(event))))) == []
    assert db.tasks.count_documents({}) == 1
    assert failures.messages() == []


def test_while_mongodb_is_away_one_message_is_tried_and_all_come_again(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    deployed.timeout_ms = 200
    deployed.set(MONGODB_URI="mongodb://user:S3cr3t@127.0.0.1:1/")
    messages = [message(record(NOOP)) for _ in range(10)]

    assert left(deployed.invoke("enqueue", batch(*messages))) == ids(*messages)
    [line] = [line for line in deployed.log() if line["message"] == "failed"]
    assert (line["error_type"], line["left"], line["level"]) == ("UnavailableError", 10, "WARNING")
    assert "S3cr3t" not in deployed.stdout.getvalue()
    assert db.tasks.count_documents({}) == 0
    assert failures.messages() == []


@pytest.mark.parametrize("variables", [{"MONGODB_URI": None}, {"CONCURRENCY": "many"}, {"MONGODB_URI": "postgres://"}])
def test_what_an_operator_has_to_mend_is_waited_for(
    deployed: Deployed, failures: Failures, variables: dict[str, str | None]
) -> None:
    deployed.set(**variables)
    messages = [message(record(NOOP)) for _ in range(3)]

    assert left(deployed.invoke("enqueue", batch(*messages))) == ids(*messages)
    assert failures.messages() == []


def test_a_missing_index_is_waited_for(deployed: Deployed, failures: Failures, db: Database[Any]) -> None:
    db.tasks.drop_index(indexes.KEY)
    messages = [message(record(one)) for one in (NOOP, KEYED, NOOP)]

    assert left(deployed.invoke("enqueue", batch(*messages))) == ids(*messages[1:])
    indexes.create(db)
    assert left(deployed.invoke("enqueue", batch(*messages))) == []
    assert db.tasks.count_documents({}) == 3
    assert failures.messages() == []


POISON = {
    "no JSON": ("no JSON", "not_allowed"),
    "null": ("null", "not_allowed"),
    "a list": ("[]", "not_allowed"),
    "nothing": ("{}", "not_allowed"),
    "deep": ("[" * 100_000, "not_allowed"),
    "a task without its record": (json.dumps(NOOP), "not_allowed"),
    "an occurrence without its record": (json.dumps(RECURRING), "not_allowed"),
    "a record of nothing": (record(None), "not_allowed"),
    "a record of text": (record("text"), "not_allowed"),
    "a record of a request over HTTP": (record(sample("enqueue_noop")), "not_allowed"),
    "a record of a batch": (record(sample("retries")), "not_allowed"),
    "a record without a time": (record(NOOP).replace("timestamp", "time"), "not_allowed"),
    "a record without an id": (record(NOOP).replace("requestId", "id"), "not_allowed"),
    "an unknown name": (record(NOOP | {"name": "missing"}), "not_allowed"),
    "one that has expired": (record(NOOP | {"expires_at": "2026-01-01T00:00:00Z"}), "not_allowed"),
    "one that is too long": (record(NOOP | {"timeout_sec": 800}), "not_allowed"),
    "a key of another request": (record({"tasks": [NOOP, KEYED | {"priority": 1}]}), "key_in_use"),
    "placeholders": (record(RECURRING), "not_allowed"),
}


@pytest.mark.parametrize("name", POISON)
def test_what_no_repeat_mends_is_set_aside_at_once_as_it_came_and_told(
    deployed: Deployed, failures: Failures, db: Database[Any], name: str
) -> None:
    body, code = POISON[name]
    deployed.invoke("enqueue", KEYED)
    poison, good = message(body, attributes={"SENT_BY": "somebody"}), message(record(NOOP))

    assert left(deployed.invoke("enqueue", batch(poison, good))) == []
    assert failures.messages() == [(body, {"SENT_BY": "somebody"})]
    assert db.tasks.count_documents({}) == 2
    [line] = refused(deployed)
    assert (line["code"], line["message_id"], line["level"]) == (code, poison["messageId"], "WARNING")


def test_an_input_of_a_schedule_without_its_time_is_set_aside(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    assert left(deployed.invoke("enqueue", batch(given_up(NOOP, at=stamp())))) == []
    assert [body for body, _ in failures.messages()] == [json.dumps(NOOP)]
    assert db.tasks.count_documents({}) == 0


def test_of_what_is_set_aside_nothing_is_logged(deployed: Deployed, failures: Failures) -> None:
    poison = message(record({"name": "missing", "payload": {"card": SECRET}, SECRET: 1}))

    deployed.invoke("enqueue", batch(poison, message(f'{{"card": "{SECRET}"')))

    assert len(failures.messages()) == 2
    assert SECRET not in deployed.stdout.getvalue()


@pytest.mark.parametrize("trouble", ["refused", "silent", "no URL"])
def test_where_sqs_takes_nothing_poison_comes_again_and_keeps_nothing_else_back(
    deployed: Deployed, failures: Failures, db: Database[Any], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    poison = [message("no JSON"), message("no JSON")]
    messages = [poison[0], message(record(NOOP)), poison[1], message(record(NOOP))]
    with silent() as nobody:
        if trouble == "refused":
            deployed.set(FAILURES_QUEUE_URL=failures.url + "-gone")
        elif trouble == "silent":
            monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", nobody)
            deployed.cool_down()
        else:
            deployed.set(FAILURES_QUEUE_URL=None)
        context = FakeContext(timedelta(seconds=10))

        assert left(deployed.invoke("enqueue", batch(*messages), context)) == ids(*poison)

    assert context.get_remaining_time_in_millis() > 6000
    assert db.tasks.count_documents({}) == 2
    lines = refused(deployed)
    assert [line["message_id"] for line in lines] == ids(*poison)[: len(lines)]
    assert all(line["not_sent"] for line in lines)
    assert "S3cr3t" not in deployed.stdout.getvalue()


@pytest.mark.parametrize(("days", "hours"), [("7", 24 * 7 - 0.9), ("1", 23.1), ("7", 24 * 90), ("0.001", 0.1)])
def test_what_is_older_than_what_is_known_of_ended_tasks_is_set_aside(
    deployed: Deployed, failures: Failures, db: Database[Any], days: str, hours: float
) -> None:
    deployed.set(RETENTION_DAYS=days)
    body = record(NOOP, ago=timedelta(hours=hours))

    assert left(deployed.invoke("enqueue", batch(message(body)))) == []
    assert db.tasks.count_documents({}) == 0
    assert [one for one, _ in failures.messages()] == [body]
    [line] = refused(deployed)
    assert line["code"] == "too_old"
    assert "may have been stored before" in line["reason"]


@pytest.mark.parametrize(("days", "hours"), [("7", 24 * 7 - 1.1), ("1", 22.9)])
def test_what_is_younger_is_taken_in(
    deployed: Deployed, failures: Failures, db: Database[Any], days: str, hours: float
) -> None:
    deployed.set(RETENTION_DAYS=days)

    assert left(deployed.invoke("enqueue", batch(message(record(NOOP, ago=timedelta(hours=hours)))))) == []
    assert db.tasks.count_documents({}) == 1
    assert failures.messages() == []


def test_dead_letters_that_are_kept_for_a_shorter_time_count_too(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    deployed.set(DEAD_LETTER_RETENTION_DAYS="1")

    deployed.invoke("enqueue", batch(message(record(NOOP, ago=timedelta(hours=23.5)))))

    assert db.tasks.count_documents({}) == 0
    assert len(failures.messages()) == 1


@pytest.mark.parametrize(("days", "taken"), [(14.9, 1), (15.1, 0)])
def test_a_time_of_a_schedule_is_taken_in_for_as_long_as_it_is_known(
    deployed: Deployed, failures: Failures, db: Database[Any], days: float, taken: int
) -> None:
    late = given_up(RECURRING, at=stamp(ago=timedelta(days=days)))

    assert left(deployed.invoke("enqueue", batch(late))) == []
    assert db.tasks.count_documents({}) == taken
    assert len(failures.messages()) == 1 - taken


def test_a_time_of_a_schedule_in_the_far_future_is_taken_in(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    assert left(deployed.invoke("enqueue", batch(given_up(RECURRING, at="9999-12-31T23:59:59Z")))) == []
    assert db.tasks.count_documents({}) == 1
    assert failures.messages() == []


def test_without_time_nothing_is_begun(deployed: Deployed, failures: Failures, db: Database[Any]) -> None:
    messages = [message(record(NOOP)), message("no JSON")]

    assert left(deployed.invoke("enqueue", batch(*messages), FakeContext(timedelta(seconds=2)))) == ids(*messages)
    assert db.tasks.count_documents({}) == 0
    assert failures.messages() == []


def test_a_message_that_nobody_foresaw_keeps_nothing_else_back(
    deployed: Deployed, failures: Failures, db: Database[Any]
) -> None:
    odd = message(record(NOOP), messageAttributes={"odd": SECRET})

    assert left(deployed.invoke("enqueue", batch(odd, message(record(NOOP))))) == ids(odd)
    assert db.tasks.count_documents({}) == 1
    assert failures.messages() == []
    [line] = [line for line in deployed.log() if line["message"] == "failed"]
    assert (line["level"], line["message_id"]) == ("ERROR", odd["messageId"])
    assert SECRET not in deployed.stdout.getvalue()


@pytest.mark.parametrize(
    "event",
    [
        {"Records": []},
        {"Records": [{"eventSource": "aws:s3", "s3": {}}]},
        {"Records": [message(record(NOOP)), {"eventSource": "aws:sqs"}]},
        {"Records": {"eventSource": "aws:sqs"}},
        NOOP | {"Records": []},
    ],
)
def test_records_of_anything_else_are_no_task(unchanged: Deployed, event: Any) -> None:
    with pytest.raises(InvalidRequestError):
        unchanged.invoke("enqueue", event)
