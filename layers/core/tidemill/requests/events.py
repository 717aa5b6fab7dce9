"""Events that start the functions: direct invocations, schedules, redeliveries by SQS, reports of dead executors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from bson import ObjectId
from pydantic import AfterValidator, Field, ValidationError

from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Lane, Selection
from tidemill.requests.tasks import MAX_TASKS, QUEUE_PATTERN, Moment, NewTask, RetryOptions
from tidemill.requests.validation import Request, parse_request

SCHEDULE_HINT: Final = (
    'an EventBridge Scheduler schedule must pass {"tasks": [...], "occurrence": '
    '{"schedule": "<aws.scheduler.schedule-arn>", "at": "<aws.scheduler.scheduled-time>"}}'
)
"""Only EventBridge Scheduler fills in the two placeholders."""

SQS: Final = "aws:sqs"

MAX_CONCURRENCY: Final = 256
"""Each slot is a thread, and Lambda allows a function about a thousand threads."""

_OCCURRENCE_HASH_BYTES: Final = 6
"""Bytes of the occurrence's hash in the twelve bytes of an ObjectId: four of time before it, two of count after it."""

_NAMES: Final = {*NewTask.model_fields, *RetryOptions.model_fields, "tasks"}

_PLACEHOLDERS: Final = {
    "<aws.scheduler.schedule-arn>": "SCHEDULE_ARN",
    "<aws.scheduler.scheduled-time>": "SCHEDULED_TIME",
    "<aws.scheduler.execution-id>": "EXECUTION_ID",
}
"""Placeholders that Scheduler fills in, and the attributes of its dead-letter message with the same values."""

Source: TypeAlias = Literal["tick", "wake", "backlog"]
"""Starter of an executor: a schedule, an enqueue, or another executor (also reclaim, after an executor's death).

The replacement of an executor that Lambda dropped before it ran has the source ``tick``.
"""


def _require_schedule(schedule: str) -> str:
    if schedule.startswith("<") or not schedule.isprintable() or schedule.strip() != schedule:
        raise ValueError(f"is not the name of a schedule: {SCHEDULE_HINT}")
    return schedule


class Occurrence(Request):
    """One planned time of a schedule. It may be delivered late, and more than once."""

    schedule: Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_require_schedule)]
    at: Moment

    def derive_ids(self, count: int) -> list[ObjectId]:
        """Return the ids of *count* tasks, the same ones for each delivery. They sort by time, then by position."""
        seconds = int(self.at.timestamp()) % 2**32
        text = f"{self.schedule}|{self.at.isoformat()}".encode()
        begin = seconds.to_bytes(4, "big") + hashlib.sha256(text).digest()[:_OCCURRENCE_HASH_BYTES]
        return [ObjectId(begin + index.to_bytes(2, "big")) for index in range(count)]


class DirectRequest(Request):
    """The tasks of a direct invocation, in order."""

    tasks: list[NewTask] = Field(min_length=1, max_length=MAX_TASKS)
    occurrence: Occurrence | None = None
    is_single: ClassVar[bool] = False


class SingleDirectRequest(NewTask):
    """The task of a direct invocation that sent no list. Its hash leaves the occurrence out, as that of a list does."""

    occurrence: Occurrence | None = None
    is_single: ClassVar[bool] = True

    @property
    def tasks(self) -> list[NewTask]:
        """The task as a list."""
        return [NewTask.model_construct(**{name: value for name, value in self if name != "occurrence"})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """A failed direct invocation to repeat.

    Attributes:
        event: The event of the invocation.
        request_id: The request id of the first try. A message of Scheduler has none, and its message id is used.
        failed_at: The time at which Lambda gave up; ``None`` if Scheduler did, which only delivers occurrences.
    """

    event: object
    request_id: str
    failed_at: datetime | None


class ExecuteRequest(Request):
    """Event that starts an executor; ``{}`` is a tick with the deployment's options."""

    source: Source = "tick"
    queues: list[Annotated[str, Field(pattern=QUEUE_PATTERN)]] = Field(default=[], max_length=100)
    lane: Lane | None = None
    selection: Selection | None = None
    batch_size: int | None = Field(default=None, ge=1, le=1000)
    concurrency: int | None = Field(default=None, ge=1, le=MAX_CONCURRENCY)


class SweepRequest(Request):
    """Event that starts archive, or reclaim by schedule; it has no options."""


def read_direct(event: object) -> DirectRequest | SingleDirectRequest:
    """Return the request in *event*: the body of ``POST /tasks`` or ``POST /tasks/batch``, or a schedule's input.

    Raises:
        InvalidRequestError: With every problem found, and the form of a schedule's input if one may be meant.
    """
    if not isinstance(event, Mapping) or not event:
        raise InvalidRequestError([Problem("event", 'holds no task: send {"name": ..., "payload": {...}}, or "tasks"')])
    if "detail-type" in event:
        raise InvalidRequestError([Problem("occurrence", f"is missing: {SCHEDULE_HINT}")])
    if "occurrence" in event and event["occurrence"] is None:
        raise InvalidRequestError([Problem("occurrence", f"must not be null: {SCHEDULE_HINT}")])
    if "tasks" in event:
        return parse_request(DirectRequest, event, names=_NAMES)
    return parse_request(SingleDirectRequest, event, names=_NAMES)


def is_redelivery(event: object) -> bool:
    """Return True if *event* is a batch of SQS messages."""
    records = event.get("Records") if isinstance(event, dict) else None
    return isinstance(records, list) and bool(records) and all(_is_message(record) for record in records)


def read_redelivery(message: Mapping[str, Any]) -> Redelivery:
    """Return the invocation in *message*: Lambda's record of an invocation, or the input of a schedule.

    Raises:
        InvalidRequestError: The message is neither.
    """
    attributes = _read_attributes(message)
    body = _parse_json(_fill_placeholders(message["body"], attributes))
    if "SCHEDULE_ARN" in attributes:
        return Redelivery(event=body, request_id=message["messageId"], failed_at=None)
    context = body.get("requestContext") if isinstance(body, dict) else None
    request_id = context.get("requestId") if isinstance(context, dict) else None
    if not isinstance(request_id, str) or not request_id or "requestPayload" not in body:
        raise InvalidRequestError([Problem("body", "must be Lambda's record of an invocation, or a schedule's input")])
    try:
        failed_at = _FailureTime(timestamp=body.get("timestamp")).timestamp
    except ValidationError:
        raise InvalidRequestError([Problem("timestamp", "of Lambda's record is missing or no time")]) from None
    return Redelivery(event=body["requestPayload"], request_id=request_id, failed_at=failed_at)


def find_dead_owner(event: object) -> str | None:
    """Return the lease owner whose death Lambda reports in *event*, or ``None`` if *event* is no report.

    Lambda sends the report to the destination for failures. Its request id is the owner of the executor's leases.
    """
    context = event.get("requestContext") if isinstance(event, dict) else None
    if not isinstance(context, dict) or not {"requestId", "functionArn", "condition"} <= context.keys():
        return None
    owner = context["requestId"]
    return owner if isinstance(owner, str) and owner else None


def is_dropped_launch(event: Mapping[str, Any]) -> bool:
    """Return True if the report *event* is about a launched executor that never ran.

    Lambda drops an event that waited too long, or that recursive loop detection stops; its report has no response.
    A tick does not count: the schedule sends the next one.
    """
    payload = event.get("requestPayload")
    source = payload.get("source") if isinstance(payload, Mapping) else None
    return "responseContext" not in event and source in ("wake", "backlog")


class _FailureTime(Request):
    timestamp: Moment


def _is_message(record: object) -> bool:
    if not isinstance(record, dict) or record.get("eventSource") != SQS:
        return False
    return all(isinstance(record.get(name), str) for name in ("messageId", "body"))


def _read_attributes(message: Mapping[str, Any]) -> dict[str, str]:
    attributes = message.get("messageAttributes") or {}
    return {
        name: attribute["stringValue"]
        for name, attribute in attributes.items()
        if isinstance(attribute.get("stringValue"), str)
    }


def _fill_placeholders(body: str, attributes: Mapping[str, str]) -> str:
    """Return *body* with its placeholders filled in: AWS does not promise that Scheduler did this."""
    for placeholder, name in _PLACEHOLDERS.items():
        if name in attributes:
            body = body.replace(placeholder, json.dumps(attributes[name])[1:-1])
    return body


def _parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequestError([Problem("body", "must be JSON")]) from None
