"""What HTTP takes and answers, as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from tidemill.gateway.codes import every_code
from tidemill.model import Reason, Status
from tidemill.requests import MAX_TASKS, MAX_TIMEOUT_SEC, NAME_PATTERN, NewTask, Request, TaskFields
from tidemill.requests.retries import Retry

MAX_HTTP_PRIORITY: Final = 10
MIN_HTTP_BASE_SEC: Final = 0.1
"""A stranger's task must not go round and round."""

_TASK_ID: Final = "68a5f0c2e4b0a1d2c3f4a5b6"
_MOMENT: Final = "2026-07-01T09:00:00.000Z"
_ANSWER: Final = ConfigDict(frozen=True)


class HttpTask(TaskFields):
    """A task to be enqueued."""

    name: str = Field(
        pattern=NAME_PATTERN,
        description=(
            "The task function: one that the deployment has opened to HTTP (`@task(..., http=True)`). Its operator "
            "can tell which there are; `deliver_webhook` and `noop` come with it."
        ),
        examples=["deliver_webhook"],
    )
    priority: int = Field(
        default=0, ge=-MAX_HTTP_PRIORITY, le=MAX_HTTP_PRIORITY, description="Higher first, within its queue."
    )
    retry: Retry | None = Field(
        default=None,
        description=(
            "The name of a preset, or the numbers themselves; without it, as the function is registered. Here "
            f"`base_sec` must be at least {MIN_HTTP_BASE_SEC:g}."
        ),
        examples=["conservative"],
    )
    timeout_sec: float | None = Field(
        default=None,
        ge=0.1,
        le=MAX_TIMEOUT_SEC,
        description=(
            "How long one attempt may take; at most the deployment's MAX_TASK_TIMEOUT_SEC, which is 50 unless its "
            "operator chose another. What is above it is refused (422)."
        ),
    )


class HttpBatchTask(HttpTask, NewTask):
    """One task of many, with a key of its own where it is to have one."""


class Batch(Request):
    """Tasks to be enqueued together, in order."""

    tasks: list[HttpBatchTask] = Field(min_length=1, max_length=MAX_TASKS, description="In the order of the answer.")

    def __repr__(self) -> str:
        """Say how many: the router makes a text of each request for a log that nobody keeps."""
        return f"Batch of {len(self.tasks)}"


class AcceptedTask(BaseModel):
    """A task that is stored; with the status it has."""

    model_config = _ANSWER

    id: str = Field(examples=[_TASK_ID], description="24 hex digits.")
    status: Status = Field(examples=["pending"])


class AcceptedTasks(BaseModel):
    """The tasks of a batch, in the order of the request."""

    model_config = _ANSWER

    tasks: list[AcceptedTask]


class TaskFailure(BaseModel):
    """Why the last attempt that failed did."""

    model_config = _ANSWER

    code: str = Field(examples=["http_503"], description="Groups failures of one kind.")
    message: str = Field(examples=["the receiver answered 503"])


class TaskAnswer(BaseModel):
    """How a task is doing. Its payload is never told."""

    model_config = _ANSWER

    id: str = Field(examples=[_TASK_ID], description="24 hex digits.")
    name: str = Field(examples=["deliver_webhook"])
    queue: str = Field(examples=["default"])
    status: Status = Field(
        examples=["done"],
        description="pending (also between two attempts), processing, done, failed (for good) or cancelled.",
    )
    attempts: int = Field(ge=0, examples=[1], description="How often it was started so far.")
    created_at: str = Field(json_schema_extra={"format": "date-time"}, examples=[_MOMENT])
    next_retry_at: str | None = Field(
        json_schema_extra={"format": "date-time"}, examples=[None], description="The end of a delay or of a back-off."
    )
    finished_at: str | None = Field(json_schema_extra={"format": "date-time"}, examples=[_MOMENT])
    cancel_requested_at: str | None = Field(
        json_schema_extra={"format": "date-time"},
        examples=[None],
        description="Somebody asked it to stop while it ran: it will be cancelled, or done if it succeeds.",
    )
    reason: Reason | str | None = Field(examples=[None], description="Why it failed for good.")
    error: TaskFailure | None = Field(examples=[None], description="The last failure; there after a success, too.")
    result: Any = Field(
        examples=[{"status": 204}],
        description="What the function returned, as JSON; types JSON lacks are MongoDB Extended JSON.",
    )
    truncated: bool = Field(examples=[False], description="The result or the error is too large to be told in full.")


class ErrorDetail(BaseModel):
    """One thing that is wrong with the request."""

    model_config = _ANSWER

    field: str = Field(examples=["tasks.3.queue"], description="The dotted path of the field.")
    message: str = Field(examples=["is not declared: run `tidemill ops queue declare QUEUE` once"])


class ErrorBody(BaseModel):
    """What is wrong."""

    model_config = _ANSWER

    code: str = Field(
        examples=["not_allowed"],
        description="For programs; each status says which it has. Later releases may have more.",
        json_schema_extra={"enum": [*every_code()]},
    )
    message: str = Field(examples=["the task is not allowed as it is"], description="For people.")
    details: list[ErrorDetail]


class ErrorAnswer(BaseModel):
    """The one shape of every error."""

    model_config = _ANSWER

    error: ErrorBody
