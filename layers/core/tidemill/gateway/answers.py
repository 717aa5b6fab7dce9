"""Answers: what is told of a task, and the one shape of all errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from bson import json_util

from tidemill.classify import bounded
from tidemill.enqueueing import Accepted
from tidemill.errors import Problem, TidemillError
from tidemill.gateway.models import (
    AcceptedTask,
    AcceptedTasks,
    ErrorAnswer,
    ErrorBody,
    ErrorDetail,
    TaskAnswer,
    TaskFailure,
)
from tidemill.model import Task
from tidemill.wording import stamp

HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}
MAX_TOLD: Final = 1024 * 1024
MAX_ERROR_CHARS: Final = 10_000
"""A document edited by hand may hold more than an answer of API Gateway can."""

_MAX_WORD: Final = 200
_UNAVAILABLE: Final = 503
_RETRY_AFTER: Final = {"Retry-After": "5"}


class HttpError(TidemillError):
    """An answer that is an error: *status* and, in the body, *code*, message and *problems*."""

    def __init__(self, status: int, code: str, message: str, problems: Sequence[Problem] = ()) -> None:
        self.status = status
        self.code = code
        self.problems = tuple(problems)
        super().__init__(message)


def accepted(one: Accepted) -> AcceptedTask:
    """Return what is told of a task that was taken in."""
    return AcceptedTask.model_construct(id=str(one.id), status=one.status)


def all_accepted(several: Sequence[Accepted]) -> AcceptedTasks:
    """Return what is told of tasks that were taken in together, in their order."""
    return AcceptedTasks.model_construct(tasks=[accepted(one) for one in several])


def told(task: Task) -> TaskAnswer:
    """Return a task as its enqueuer may see it; the payload is never told."""
    result = json_util.dumps(task.result, json_options=json_util.RELAXED_JSON_OPTIONS)
    message = "" if task.error is None else bounded(task.error.message, MAX_ERROR_CHARS)
    error = None if task.error is None else TaskFailure(code=bounded(task.error.code, _MAX_WORD), message=message)
    is_cut = len(result) > MAX_TOLD or (task.error is not None and message != task.error.message)
    return TaskAnswer(
        id=str(task.id),
        name=bounded(task.name, _MAX_WORD),
        queue=bounded(task.queue, _MAX_WORD),
        status=task.status,
        attempts=task.attempts,
        created_at=str(stamp(task.created_at)),
        next_retry_at=stamp(task.next_retry_at),
        finished_at=stamp(task.finished_at),
        cancel_requested_at=stamp(task.cancel_requested_at),
        reason=None if task.reason is None else bounded(task.reason, _MAX_WORD),
        error=error,
        result=None if len(result) > MAX_TOLD else json.loads(result),
        truncated=is_cut,
    )


def plain(error: HttpError) -> dict[str, Any]:
    """Return *error* as what goes back to API Gateway, in the one shape all errors have."""
    details = [ErrorDetail(field=one.field, message=one.message) for one in error.problems]
    body = ErrorAnswer(error=ErrorBody(code=error.code, message=str(error), details=details))
    headers = HEADERS | (_RETRY_AFTER if error.status == _UNAVAILABLE else {})
    return {"statusCode": error.status, "headers": headers, "body": json.dumps(body.model_dump())}
