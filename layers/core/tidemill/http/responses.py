"""Answers of the HTTP API: the state of a task, accepted tasks, and the shape of all errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from bson import json_util

from tidemill.enqueue.documents import Accepted
from tidemill.errors import (
    DuplicateKeyError,
    InvalidRequestError,
    Problem,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.http.models import (
    AcceptedTask,
    AcceptedTasks,
    ErrorAnswer,
    ErrorBody,
    ErrorDetail,
    HttpBatchTask,
    TaskAnswer,
    TaskFailure,
)
from tidemill.model import Task
from tidemill.policy.failures import truncate_text
from tidemill.requests.tasks import RetryOptions
from tidemill.requests.validation import list_problems
from tidemill.text import iso_timestamp

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
    message = "" if task.error is None else truncate_text(task.error.message, MAX_ERROR_CHARS)
    error = (
        None
        if task.error is None
        else TaskFailure(code=truncate_text(task.error.code, _MAX_NAME_CHARS), message=message)
    )
    is_cut = len(result) > MAX_RESULT_CHARS or (task.error is not None and message != task.error.message)
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
