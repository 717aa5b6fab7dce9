"""What the OpenAPI document says of each operation beside its models."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from tidemill.gateway.models import AcceptedTask, AcceptedTasks, ErrorAnswer, TaskAnswer

_ERRORS: Final = {
    400: "The request cannot be read: no JSON, no UTF-8, an ambiguous Idempotency-Key.",
    403: "There is no API key in the header x-api-key, or it is none.",
    404: "There is no such task, or it is another caller's.",
    409: "An idempotency key was used with another request. Nothing was stored.",
    413: "The body is larger than 4 MB.",
    415: "The body is not called application/json, or is compressed.",
    422: "The request can be read and is not allowed; `details` names each field. Nothing was stored.",
    429: "Too many requests: slow down.",
    503: "MongoDB does not answer, or the queue is not set up. A repeat with the same key is safe.",
}
_LOCATION: Final = {"Location": {"description": "Where the task is told of.", "schema": {"type": "string"}}}
_RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}


def _responses(told: dict[int, tuple[str, type[BaseModel]]], errors: tuple[int, ...], **headers: Any) -> dict[int, Any]:  # noqa: ANN401 - parts of an OpenAPI document
    answers = {status: _answer(text, model, headers) for status, (text, model) in told.items()}
    refusals = {
        status: _answer(_ERRORS[status], ErrorAnswer, _RETRY_AFTER if status == 503 else {})  # noqa: PLR2004
        for status in errors
    }
    return answers | refusals


def _answer(text: str, model: type[BaseModel], headers: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": text, "content": {"application/json": {"model": model}}}
    return answer | ({"headers": headers} if headers else {})


_FOR_BODIES: Final = (400, 403, 409, 413, 415, 422, 429, 503)
_FOR_ONE: Final = (403, 404, 422, 429, 503)

POST: Final[dict[str, Any]] = {
    "summary": "Enqueue a task",
    "description": (
        "Stores the task; it is not lost from then on, and runs at once if it has no delay. With an Idempotency-Key "
        "it may be sent again as often as you like: the same request is the same task."
    ),
    "operation_id": "enqueue",
    "responses": _responses(
        {
            202: ("It is stored as a new task.", AcceptedTask),
            200: ("The key came with this request before: the first task, as it is now.", AcceptedTask),
        },
        _FOR_BODIES,
        **_LOCATION,
    ),
}
POST_BATCH: Final[dict[str, Any]] = {
    "summary": "Enqueue up to 1,000 tasks",
    "description": (
        "Validates all of them, then stores all or none, in order. Each may have a key of its own; the header "
        "Idempotency-Key is refused here. (On a standalone MongoDB, which has no transactions, an error half-way "
        "leaves the first of them stored: use keys.)"
    ),
    "operation_id": "enqueueBatch",
    "responses": _responses(
        {
            202: ("All are stored.", AcceptedTasks),
            200: ("The keys of all of them came with the same requests before.", AcceptedTasks),
        },
        _FOR_BODIES,
    ),
}
GET: Final[dict[str, Any]] = {
    "summary": "Look how a task is doing",
    "description": "Status, attempts, last error, result; also of one that failed for good. The payload is never told.",
    "operation_id": "getTask",
    "responses": _responses({200: ("The task as it is now.", TaskAnswer)}, _FOR_ONE),
}
CANCEL: Final[dict[str, Any]] = {
    "summary": "Cancel a task",
    "description": (
        "A pending task is cancelled at once. A running one is asked to stop: it is then cancelled, or done if it "
        "succeeds all the same. One that has ended is told as it is. Its idempotency key is free once it is cancelled."
    ),
    "operation_id": "cancelTask",
    "responses": _responses({200: ("The task as it is now.", TaskAnswer)}, _FOR_ONE),
}
