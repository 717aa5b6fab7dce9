"""Descriptions of each operation and its answers in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from tidemill.http import models
from tidemill.http.models import AcceptedTask, AcceptedTasks, ErrorAnswer, QueueAnswer, TaskAnswer

_REPEAT_LATER: Final = "Send it again after `Retry-After` seconds."
_OUTCOMES: Final[Mapping[int, str]] = {
    400: "The request is unreadable. Nothing was stored.",
    403: "The API key is missing or invalid.",
    404: "This API key has no such task.",
    409: "Nothing was stored.",
    413: "Nothing was stored.",
    415: "Nothing was stored.",
    422: "Nothing was stored.",
    429: f"Nothing was done. {_REPEAT_LATER}",
    503: "It may have been stored or not. Send it again with the same key after `Retry-After` seconds.",
    500: "It may have been stored or not. Sending it again with the same key is safe.",
}
_BATCH_OUTCOMES: Final[Mapping[int, str]] = {
    409: "Nothing was stored; a standalone MongoDB may have stored earlier tasks, which a repeat finds by key.",
    503: "All or none may have been stored; on a standalone MongoDB the first tasks. A repeat with keys is safe.",
    500: "All or none may have been stored; on a standalone MongoDB the first tasks. A repeat with keys is safe.",
}
_TASK_OUTCOMES: Final[Mapping[int, str]] = {
    422: "There are query parameters: remove them.",
    503: _REPEAT_LATER,
    500: "Sending it again is safe.",
}
_QUEUE_OUTCOMES: Final[Mapping[int, str]] = {
    **_TASK_OUTCOMES,
    403: "The API key is missing or invalid, or lacks the right `queues.read`.",
    404: "There is no such queue.",
}
_LOCATION: Final = {"Location": {"description": "Path of the task.", "schema": {"type": "string"}}}
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "Seconds to wait before the next try.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
        "example": "5",
    }
}
_RETRYABLE: Final = (429, 503)


def describe_failure(operation_id: str) -> str:
    """Return the description of every 5xx but 503, which Powertools cannot describe as a range."""
    return _describe(500, {"enqueue": {}, "enqueueBatch": _BATCH_OUTCOMES}.get(operation_id, _TASK_OUTCOMES))


def _build_responses(
    successes: dict[int, tuple[str, type[BaseModel]]],
    errors: tuple[int, ...],
    *,
    outcomes: Mapping[int, str] = _OUTCOMES,
    headers: Mapping[str, Any] | None = None,
) -> dict[int, Any]:
    answers = {status: _build_answer(text, model, headers or {}) for status, (text, model) in successes.items()}
    refusals = {
        status: _build_answer(_describe(status, outcomes), ErrorAnswer, _RETRY_AFTER if status in _RETRYABLE else {})
        for status in errors
    }
    return answers | refusals


def _describe(status: int, outcomes: Mapping[int, str]) -> str:
    return f"{outcomes.get(status, _OUTCOMES[status])} {models.describe_codes(status)}"


def _build_answer(text: str, model: type[BaseModel], headers: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": text, "content": {"application/json": {"model": model}}}
    return answer | ({"headers": headers} if headers else {})


_POST_ERRORS: Final = (400, 403, 409, 413, 415, 422, 429, 503)
_TASK_ERRORS: Final = (403, 404, 422, 429, 503)

POST: Final[dict[str, Any]] = {
    "summary": "Enqueue a task",
    "description": (
        "Stores the task, which is never lost afterwards. It runs at once if it has no delay. With an "
        "Idempotency-Key the request may be repeated: the same request is the same task."
    ),
    "operation_id": "enqueue",
    "responses": _build_responses(
        {
            202: ("The request is stored as a new task.", AcceptedTask),
            200: ("The same request with this key was stored before: its task, as it is now.", AcceptedTask),
        },
        _POST_ERRORS,
        headers=_LOCATION,
    ),
}
POST_BATCH: Final[dict[str, Any]] = {
    "summary": "Enqueue up to 1,000 tasks",
    "description": (
        "Validates all tasks, then stores all or none, in order. Each task may have a key of its own; the header "
        "Idempotency-Key is refused here. (A standalone MongoDB has no transactions: after an error the first tasks "
        "may be stored, so use keys.)"
    ),
    "operation_id": "enqueueBatch",
    "responses": _build_responses(
        {
            202: ("All tasks are stored.", AcceptedTasks),
            200: ("The same requests with these keys were stored before.", AcceptedTasks),
        },
        _POST_ERRORS,
        outcomes=_BATCH_OUTCOMES,
    ),
}
GET: Final[dict[str, Any]] = {
    "summary": "Get the state of a task",
    "description": "Returns status, attempts, last error and result, also of a failed task. Never returns the payload.",
    "operation_id": "getTask",
    "responses": _build_responses({200: ("The task as it is now.", TaskAnswer)}, _TASK_ERRORS, outcomes=_TASK_OUTCOMES),
}
CANCEL: Final[dict[str, Any]] = {
    "summary": "Cancel a task",
    "description": (
        "A pending task is cancelled at once. A running task is asked to stop: it ends as cancelled, or as done if it "
        "succeeds. An ended task is not changed. A cancelled task frees its idempotency key."
    ),
    "operation_id": "cancelTask",
    "responses": _build_responses({200: ("The task as it is now.", TaskAnswer)}, _TASK_ERRORS, outcomes=_TASK_OUTCOMES),
}
GET_QUEUE: Final[dict[str, Any]] = {
    "summary": "Get the state of a queue",
    "description": (
        "Returns the sizes of both lanes and the running tasks, of all callers. The API key needs the right "
        "`queues.read`, which the operator grants: `tidemill ops caller grant`. A change takes up to a minute."
    ),
    "operation_id": "getQueue",
    "responses": _build_responses(
        {200: ("The queue as it is now.", QueueAnswer)}, _TASK_ERRORS, outcomes=_QUEUE_OUTCOMES
    ),
}
