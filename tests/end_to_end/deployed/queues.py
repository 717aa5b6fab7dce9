"""SQS, as far as a stack uses it: moto keeps the messages, and Lambda's pollers bring them to functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.cloudformation.intrinsics import REGION
from tests.end_to_end.deployed.built import Deployment, Source

if TYPE_CHECKING:
    from tests.end_to_end.deployed.cloud import Answer

PAUSE_SEC: Final = 0.05
"""Between two looks into an empty queue, where Lambda waits for twenty seconds in each."""


class Queues:
    """The queues of a stack. *client* gives a client of SQS, as the operator or as the role of a function."""

    def __init__(self, deployment: Deployment, client: Callable[..., Any]) -> None:
        self._deployment = deployment
        self._client = client
        self._operator = client("sqs")
        stack = deployment.stack
        self._urls = {
            stack.arn(logical): self._operator.create_queue(QueueName=stack.name_of(logical))["QueueUrl"]
            for logical in stack.of_type("AWS::SQS::Queue")
        }
        for logical, queue in stack.of_type("AWS::SQS::Queue").items():
            if "RedrivePolicy" in queue:
                self._set(logical, RedrivePolicy=json.dumps(queue["RedrivePolicy"]))

    def send(self, arn: str, body: str, attributes: Mapping[str, str] | None = None) -> None:
        """Put a message into a queue."""
        texts = {name: {"DataType": "String", "StringValue": value} for name, value in (attributes or {}).items()}
        self._operator.send_message(QueueUrl=self._urls[arn], MessageBody=body, MessageAttributes=texts)

    def count(self, logical: str) -> int:
        """Return how many messages are in a queue, those that are being worked on too."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self._operator.get_queue_attributes(QueueUrl=self._url(logical), AttributeNames=names)
        return sum(int(told["Attributes"][name]) for name in names)

    def bodies(self, logical: str) -> list[str]:
        """Return what is in a queue, and leave it there."""
        found: dict[str, str] = {}
        while len(found) < self.count(logical):
            told = self._operator.receive_message(
                QueueUrl=self._url(logical), MaxNumberOfMessages=10, VisibilityTimeout=1
            )
            found |= {one["MessageId"]: one["Body"] for one in told.get("Messages", [])}
        return list(found.values())

    @contextmanager
    def polled(
        self, invoke: Callable[[str, Any], Answer], *, visibility_sec: int, max_receives: int = 288
    ) -> Iterator[None]:
        """Have Lambda's pollers read the queues meanwhile; what they bring again comes so much sooner."""
        stop = threading.Event()
        threads = []
        for source in self._deployment.sources:
            logical = next(name for name in self._deployment.stack.resources if self._is(name, source.queue))
            redrive = self._deployment.stack.of_type("AWS::SQS::Queue")[logical]["RedrivePolicy"]
            redrive = json.dumps(redrive | {"maxReceiveCount": max_receives})
            self._set(logical, VisibilityTimeout=str(visibility_sec), RedrivePolicy=redrive)
            threads += [
                threading.Thread(target=self._poll, args=(source, invoke, stop), daemon=True)
                for _ in range(source.concurrency)
            ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)

    def _poll(self, source: Source, invoke: Callable[[str, Any], Answer], stop: threading.Event) -> None:
        """Do what one of Lambda's pollers does, as the role of the function."""
        sqs = self._client("sqs", function=source.function)
        url = self._urls[source.queue]
        while not stop.wait(PAUSE_SEC):
            told = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=source.batch_size,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            messages = told.get("Messages", [])
            if not messages:
                continue
            answer = invoke(source.function, {"Records": [_record(one, source.queue) for one in messages]})
            if answer.error is not None:
                continue
            failed = {one["itemIdentifier"] for one in answer.value["batchItemFailures"]}
            for one in messages:
                if one["MessageId"] not in failed:
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])

    def _is(self, logical: str, arn: str) -> bool:
        stack = self._deployment.stack
        return stack.resources[logical]["Type"] == "AWS::SQS::Queue" and stack.arn(logical) == arn

    def _url(self, logical: str) -> str:
        return str(self._urls[self._deployment.stack.arn(logical)])

    def _set(self, logical: str, **attributes: str) -> None:
        self._operator.set_queue_attributes(QueueUrl=self._url(logical), Attributes=attributes)


def _record(message: Mapping[str, Any], arn: str) -> dict[str, Any]:
    """Return a message as Lambda brings it; ``events/retries.json`` has one."""
    given = message.get("MessageAttributes", {})
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": {name: value for name, value in message["Attributes"].items() if name != "SequenceNumber"},
        "messageAttributes": {
            name: {
                "stringValue": value["StringValue"],
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": value["DataType"],
            }
            for name, value in given.items()
        },
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": REGION,
    }
