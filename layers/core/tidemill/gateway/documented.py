"""What the OpenAPI document says of each operation beside its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from tidemill.gateway import codes
from tidemill.gateway.models import AcceptedTask, AcceptedTasks, ErrorAnswer, TaskAnswer

_NO_REPEAT: Final = "Send it again once `Retry-After` is over."
_WHAT_HAPPENED: Final[Mapping[int, str]] = {
    400: "The request cannot be read. Nothing was stored.",
    403: "The API key is missing, or is none.",
    404: "There is nothing for this API key.",
    409: "Nothing was stored.",
    413: "Nothing was stored.",
    415: "Nothing was stored.",
    422: "Nothing was stored.",
    429: f"Nothing was done. {_NO_REPEAT}",
    503: "It may have been stored or not. Send it again with the same key once `Retry-After` is over.",
    500: "It may have been stored or not. Sending it again with the same key is safe.",
}
_OF_A_BATCH: Final[Mapping[int, str]] = {
    409: "Nothing was stored; but on a standalone MongoDB the tasks before it may be, and a repeat finds them by key.",
    503: "All may have been stored or none; on a standalone MongoDB the first of them. With keys a repeat is safe.",
    500: "All may have been stored or none; on a standalone MongoDB the first of them. With keys a repeat is safe.",
}
_OF_A_LOOK: Final[Mapping[int, str]] = {
    422: "There are query parameters: leave them out.",
    503: _NO_REPEAT,
    500: "Sending it again is safe.",
}
_LOCATION: Final = {"Location": {"description": "Where the task is told of.", "schema": {"type": "string"}}}
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "Seconds to wait before the next try.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
        "example": "5",
    }
}
_COMES_AGAIN: Final = (429, 503)


def failure(operation_id: str) -> str:
    """Return what is said of every 5xx but 503, which Powertools would have to know one by one."""
    return _said(500, {"enqueue": {}, "enqueueBatch": _OF_A_BATCH}.get(operation_id, _OF_A_LOOK))


def _responses(
    told: dict[int, tuple[str, type[BaseModel]]],
    errors: tuple[int, ...],
    *,
    differing: Mapping[int, str] = _WHAT_HAPPENED,
    headers: Mapping[str, Any] | None = None,
) -> dict[int, Any]:
    answers = {status: _answer(text, model, headers or {}) for status, (text, model) in told.items()}
    refusals = {
        status: _answer(_said(status, differing), ErrorAnswer, _RETRY_AFTER if status in _COMES_AGAIN else {})
        for status in errors
    }
    return answers | refusals


def _said(status: int, differing: Mapping[int, str]) -> str:
    return f"{differing.get(status, _WHAT_HAPPENED[status])} {codes.listed(status)}"


def _answer(text: str, model: type[BaseModel], headers: Mapping[str, Any]) -> dict[str, Any]:
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
        headers=_LOCATION,
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
        differing=_OF_A_BATCH,
    ),
}
GET: Final[dict[str, Any]] = {
    "summary": "Look how a task is doing",
    "description": "Status, attempts, last error, result; also of one that failed for good. The payload is never told.",
    "operation_id": "getTask",
    "responses": _responses({200: ("The task as it is now.", TaskAnswer)}, _FOR_ONE, differing=_OF_A_LOOK),
}
CANCEL: Final[dict[str, Any]] = {
    "summary": "Cancel a task",
    "description": (
        "A pending task is cancelled at once. A running one is asked to stop: it is then cancelled, or done if it "
        "succeeds all the same. One that has ended is told as it is. Its idempotency key is free once it is cancelled."
    ),
    "operation_id": "cancelTask",
    "responses": _responses({200: ("The task as it is now.", TaskAnswer)}, _FOR_ONE, differing=_OF_A_LOOK),
}
