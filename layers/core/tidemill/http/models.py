"""Requests, answers and errors of the HTTP API, as the OpenAPI document shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bson import json_util
from pydantic import BaseModel, ConfigDict, Field

from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.rules import MIN_HTTP_BASE_SEC
from tidemill.errors import (
    DuplicateKeyError,
    InvalidRequestError,
    Problem,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.model import Reason, Status, Task
from tidemill.policy.failures import truncate_text
from tidemill.requests.tasks import MAX_TASKS, Name, NewTask, Retry, RetryOptions, TaskFields, Timeout
from tidemill.requests.validation import Request, list_problems
from tidemill.text import iso_timestamp

if TYPE_CHECKING:
    from tidemill.admin.responses import QueueView

CODES: Final[Mapping[int, Mapping[str, str]]] = {
    400: {
        "invalid_json": "the body is empty or not a JSON object, repeats a name, or has a number beyond 64 bits",
        "invalid_body": "the body is not UTF-8",
        "invalid_key": "the Idempotency-Key is empty or too long, or there are two keys",
        "request_refused": "the gateway rejected the request",
    },
    403: {
        "forbidden": "send a valid API key in the header x-api-key",
        "missing_right": "the API key lacks the right for this request: ask the operator to grant it",
        "request_refused": "the gateway rejected the request",
    },
    404: {"not_found": "no task or queue has this name, the task has another API key, or its retention is over"},
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


MAX_HTTP_PRIORITY: Final = 10

_TASK_ID: Final = "68a5f0c2e4b0a1d2c3f4a5b6"
_MOMENT: Final = "2026-07-01T09:00:00.000Z"


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


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class AcceptedTask(_Answer):
    """A stored task with its status."""

    id: str = Field(examples=[_TASK_ID], description="24 hex digits.")
    status: Status = Field(examples=["pending"])


class AcceptedTasks(_Answer):
    """The tasks of a batch, in the order of the request."""

    tasks: list[AcceptedTask]


class TaskFailure(_Answer):
    """Error of the last failed attempt."""

    code: str = Field(examples=["http_503"], description="Groups failures of one kind.")
    message: str = Field(examples=["the receiver answered 503"])


class TaskAnswer(_Answer):
    """State of a task, without its payload."""

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


Size: TypeAlias = int | str
"""Number of tasks, or text with a plus sign, like ``10000+``, if they were not counted to the end."""


class RunningTaskAnswer(_Answer):
    """A running task of a queue."""

    id: str = Field(examples=[_TASK_ID])
    name: str = Field(examples=["deliver_webhook"])
    attempts: int = Field(ge=0, examples=[2], description="With this run.")
    is_retry: bool = Field(examples=[True])
    since: str = Field(json_schema_extra={"format": "date-time"}, examples=[_MOMENT])


class QueueAnswer(_Answer):
    """Sizes of a queue, and its running tasks. A size above 10,000 is the text `10000+`."""

    queue: str = Field(examples=["default"])
    queue_size: Size = Field(examples=[120], description="Pending tasks before their first attempt, due or not.")
    retry_queue_size: Size = Field(examples=[7], description="Pending retries, due or in back-off.")
    delayed: Size = Field(examples=[12], description="Pending tasks of both kinds that are not due yet.")
    processing: Size = Field(examples=[1], description="Running tasks.")
    paused: bool = Field(examples=[False], description="No task of the queue starts.")
    retries_paused: bool = Field(examples=[False], description="No retry of the queue starts.")
    oldest_due_age_sec: float | None = Field(examples=[8.7], description="Longest time since a task became due.")
    current: list[RunningTaskAnswer] = Field(description="Running tasks, at most 20.")


class ErrorDetail(_Answer):
    """One problem of the request."""

    field: str = Field(examples=["tasks.3.queue"], description="The dotted path of the field.")
    message: str = Field(examples=["is not declared: run `tidemill ops queue declare QUEUE` once"])


class ErrorBody(_Answer):
    """Code, message and details of an error."""

    code: str = Field(
        examples=["not_allowed"],
        description="For programs; each status lists its codes. Later releases may add codes.",
        json_schema_extra={"enum": [*sorted({code for codes in CODES.values() for code in codes})]},
    )
    message: str = Field(examples=["the task is not allowed as it is"], description="For people.")
    details: list[ErrorDetail]


class ErrorAnswer(_Answer):
    """The shape of every error."""

    error: ErrorBody


HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}
MAX_RESULT_CHARS: Final = 1024 * 1024
MAX_ERROR_CHARS: Final = 10_000
"""Bounds of a result and an error: a document edited by hand may be larger than an answer of API Gateway."""

KEY_HEADER: Final = "Idempotency-Key"

_NAMES: Final = {*HttpBatchTask.model_fields, *RetryOptions.model_fields, "tasks"}
"""Names of all fields, to suggest one for an unknown field."""

_MAX_NAME_CHARS: Final = 200
_UNAVAILABLE: Final = 503
_RETRY_AFTER: Final = {"Retry-After": "5"}


class HttpError(TidemillError):
    """An answer with an error: *status* and, in the body, *code*, message and *problems*."""

    def __init__(self, status: int, code: str, message: str, problems: Sequence[Problem] = ()) -> None:
        self.status = status
        self.code = code
        self.problems = tuple(problems)
        super().__init__(message)


def build_accepted(task: Accepted) -> AcceptedTask:
    """Return the answer to an accepted task."""
    return AcceptedTask.model_construct(id=str(task.id), status=task.status)


def build_all_accepted(tasks: Sequence[Accepted]) -> AcceptedTasks:
    """Return the answer to an accepted batch, in the order of its tasks."""
    return AcceptedTasks.model_construct(tasks=[build_accepted(task) for task in tasks])


def build_task_answer(task: Task) -> TaskAnswer:
    """Return a task as its caller may see it, without the payload."""
    result = json_util.dumps(task.result, json_options=json_util.RELAXED_JSON_OPTIONS)
    error, is_cut = None, len(result) > MAX_RESULT_CHARS
    if task.error is not None:
        message = truncate_text(task.error.message, MAX_ERROR_CHARS)
        error = TaskFailure(code=truncate_text(task.error.code, _MAX_NAME_CHARS), message=message)
        is_cut = is_cut or message != task.error.message
    return TaskAnswer(
        id=str(task.id),
        name=truncate_text(task.name, _MAX_NAME_CHARS),
        queue=truncate_text(task.queue, _MAX_NAME_CHARS),
        status=task.status,
        attempts=task.attempts,
        created_at=str(iso_timestamp(task.created_at)),
        next_retry_at=iso_timestamp(task.next_retry_at),
        finished_at=iso_timestamp(task.finished_at),
        cancel_requested_at=iso_timestamp(task.cancel_requested_at),
        reason=None if task.reason is None else truncate_text(task.reason, _MAX_NAME_CHARS),
        error=error,
        result=None if len(result) > MAX_RESULT_CHARS else json.loads(result),
        truncated=is_cut,
    )


def build_queue_answer(view: QueueView) -> QueueAnswer:
    """Return the status of a queue as callers with the right to it may see it."""
    fields = view.model_dump(mode="json", exclude={"options", "current"})
    current = [
        RunningTaskAnswer(
            id=truncate_text(task.id, _MAX_NAME_CHARS),
            name=truncate_text(task.name, _MAX_NAME_CHARS),
            attempts=task.attempts,
            is_retry=task.is_retry,
            since=str(iso_timestamp(task.since)),
        )
        for task in view.current
    ]
    return QueueAnswer(**fields, retries_paused=view.options.has_paused_retries, current=current)


def encode_error(error: HttpError) -> dict[str, Any]:
    """Return *error* as an answer for API Gateway, in the shape of all errors."""
    details = [ErrorDetail(field=problem.field, message=problem.message) for problem in error.problems]
    body = ErrorAnswer(error=ErrorBody(code=error.code, message=str(error), details=details))
    headers = HEADERS | (_RETRY_AFTER if error.status == _UNAVAILABLE else {})
    return {"statusCode": error.status, "headers": headers, "body": json.dumps(body.model_dump())}


def build_not_allowed(problems: Sequence[Problem]) -> HttpError:
    """Return the error of a readable request that is not allowed."""
    return HttpError(422, "not_allowed", "the request can be read, but is not allowed as it is", problems)


def convert_validation_errors(errors: Sequence[Any]) -> HttpError:
    """Return the *errors* of the routes' validation, as Pydantic lists them, for the fields that the caller wrote."""
    return build_not_allowed([_locate(problem) for problem in list_problems(errors, names=_NAMES)])


def convert_error(error: TidemillError) -> HttpError:
    """Return *error* as an error of HTTP; faults of the deployment are described in the log only."""
    match error:
        case HttpError():
            return error
        case InvalidRequestError(problems=problems):
            return build_not_allowed(problems)
        case DuplicateKeyError(problems=problems):
            return HttpError(409, "key_in_use", "the idempotency key was used with another request", problems)
        case TaskNotFoundError():
            return HttpError(404, "not_found", "there is no such task")
        case UnavailableError():
            return HttpError(503, "unavailable", f"{error}; try again: a POST is safe with the same Idempotency-Key")
        case _:
            return HttpError(503, "misconfigured", "the queue is not set up; its log says what is missing")


def _locate(problem: Problem) -> Problem:
    place, _, field = problem.field.partition(".")
    if place == "header":
        return Problem(KEY_HEADER, problem.message)
    if field == "idempotency_key":
        return Problem(field, f"goes into the header {KEY_HEADER}")
    return Problem(field or "task", problem.message)
