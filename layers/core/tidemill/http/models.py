"""Requests, answers and error codes of the HTTP API, as the OpenAPI document shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from tidemill.enqueue.rules import MIN_HTTP_BASE_SEC
from tidemill.model import Reason, Status
from tidemill.requests.tasks import MAX_TASKS, Name, NewTask, Retry, TaskFields, Timeout
from tidemill.requests.validation import Request

CODES: Final[Mapping[int, Mapping[str, str]]] = {
    400: {
        "invalid_json": "the body is empty or not a JSON object, repeats a name, or has a number beyond 64 bits",
        "invalid_body": "the body is not UTF-8",
        "invalid_key": "the Idempotency-Key is empty or too long, or there are two keys",
        "request_refused": "the gateway rejected the request",
    },
    403: {
        "forbidden": "send a valid API key in the header x-api-key",
        "request_refused": "the gateway rejected the request",
    },
    404: {"not_found": "no task has this id, it belongs to another API key, or its retention is over"},
    409: {"key_in_use": "an idempotency key was used with another request"},
    413: {"too_large": "the body is larger than 4 MB"},
    415: {
        "unsupported_type": "Content-Type is not application/json in UTF-8",
        "unsupported_encoding": "the body is compressed",
    },
    422: {"not_allowed": "the request is not allowed; `details` names each field"},
    429: {"throttled": "too many requests: slow down"},
    503: {
        "unavailable": "the database does not answer",
        "misconfigured": "the queue is not set up: tell its operator",
    },
    500: {"internal": "an internal error"},
}
"""Error codes of each status with their meaning, with those of API Gateway. Any 5xx but 503 has the codes of 500."""


def describe_codes(status: int) -> str:
    """Return the codes of *status* and their meaning, as a Markdown sentence."""
    return "; ".join(f"`{code}`: {meaning}" for code, meaning in CODES[status].items()) + "."


def list_codes() -> list[str]:
    """Return all codes, sorted."""
    return sorted({code for codes in CODES.values() for code in codes})


MAX_HTTP_PRIORITY: Final = 10

_TASK_ID: Final = "68a5f0c2e4b0a1d2c3f4a5b6"
_MOMENT: Final = "2026-07-01T09:00:00.000Z"
_ANSWER: Final = ConfigDict(frozen=True)


class HttpTask(TaskFields):
    """A task to be enqueued."""

    name: Name = Field(
        description=(
            "The task function, which the deployment must open to HTTP (`@task(..., http=True)`). Ask its operator "
            "for the names; `deliver_webhook` and `noop` are always there."
        ),
        examples=["deliver_webhook"],
    )
    priority: int = Field(
        default=0, ge=-MAX_HTTP_PRIORITY, le=MAX_HTTP_PRIORITY, description="Higher first, within its queue."
    )
    retry: Retry | None = Field(
        default=None,
        description=(
            "The name of a preset, or an object with its numbers; default: as the function is registered. Over HTTP "
            f"`base_sec` must be at least {MIN_HTTP_BASE_SEC:g}."
        ),
        examples=["conservative"],
    )
    timeout_sec: Timeout | None = Field(
        default=None,
        description=(
            "Timeout of one attempt; at most the deployment's MAX_TASK_TIMEOUT_SEC, which is 50 unless its operator "
            "chose another. A larger value is refused (422)."
        ),
    )

    def add_key(self, key: str | None) -> NewTask:
        """Return the request for this task under *key*, which came in a header."""
        return NewTask.model_construct(**dict(self), idempotency_key=key)


class HttpBatchTask(HttpTask, NewTask):
    """One task of a batch, with an optional key of its own."""


class Batch(Request):
    """Tasks to be enqueued together, in order."""

    tasks: list[HttpBatchTask] = Field(min_length=1, max_length=MAX_TASKS, description="In the order of the answer.")

    def __repr__(self) -> str:
        """Return the number of tasks only: the router formats each request for a log that is dropped."""
        return f"Batch of {len(self.tasks)}"


class AcceptedTask(BaseModel):
    """A stored task with its status."""

    model_config = _ANSWER

    id: str = Field(examples=[_TASK_ID], description="24 hex digits.")
    status: Status = Field(examples=["pending"])


class AcceptedTasks(BaseModel):
    """The tasks of a batch, in the order of the request."""

    model_config = _ANSWER

    tasks: list[AcceptedTask]


class TaskFailure(BaseModel):
    """Error of the last failed attempt."""

    model_config = _ANSWER

    code: str = Field(examples=["http_503"], description="Groups failures of one kind.")
    message: str = Field(examples=["the receiver answered 503"])


class TaskAnswer(BaseModel):
    """State of a task, without its payload."""

    model_config = _ANSWER

    id: str = Field(examples=[_TASK_ID], description="24 hex digits.")
    name: str = Field(examples=["deliver_webhook"])
    queue: str = Field(examples=["default"])
    status: Status = Field(
        examples=["done"],
        description="pending (also between two attempts), processing, done, failed (for good) or cancelled.",
    )
    attempts: int = Field(ge=0, examples=[1], description="Number of attempts started so far.")
    created_at: str = Field(json_schema_extra={"format": "date-time"}, examples=[_MOMENT])
    next_retry_at: str | None = Field(
        json_schema_extra={"format": "date-time"}, examples=[None], description="The end of a delay or of a back-off."
    )
    finished_at: str | None = Field(json_schema_extra={"format": "date-time"}, examples=[_MOMENT])
    cancel_requested_at: str | None = Field(
        json_schema_extra={"format": "date-time"},
        examples=[None],
        description="Time of a request to stop the running task: it ends as cancelled, or as done if it succeeds.",
    )
    reason: Reason | str | None = Field(examples=[None], description="Reason of the final failure.")
    error: TaskFailure | None = Field(examples=[None], description="The last failure; it stays after a later success.")
    result: Any = Field(
        examples=[{"status": 204}],
        description="The return value of the function as JSON; types that JSON lacks are MongoDB Extended JSON.",
    )
    truncated: bool = Field(examples=[False], description="The result or the error is too large and was cut.")


class ErrorDetail(BaseModel):
    """One problem of the request."""

    model_config = _ANSWER

    field: str = Field(examples=["tasks.3.queue"], description="The dotted path of the field.")
    message: str = Field(examples=["is not declared: run `tidemill ops queue declare QUEUE` once"])


class ErrorBody(BaseModel):
    """Code, message and details of an error."""

    model_config = _ANSWER

    code: str = Field(
        examples=["not_allowed"],
        description="For programs; each status lists its codes. Later releases may add codes.",
        json_schema_extra={"enum": [*list_codes()]},
    )
    message: str = Field(examples=["the task is not allowed as it is"], description="For people.")
    details: list[ErrorDetail]


class ErrorAnswer(BaseModel):
    """The shape of every error."""

    model_config = _ANSWER

    error: ErrorBody
