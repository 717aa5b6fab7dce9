"""The examples in the OpenAPI document: of bodies, of answers, of errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

TASK_ID: Final = "68a5f0c2e4b0a1d2c3f4a5b6"
HELLO: Final[Mapping[str, Any]] = {"name": "hello", "payload": {"name": "Ada"}}
"""A task, for a document that knows no better one."""

_TASK: Final = {
    "id": TASK_ID,
    "name": "hello",
    "queue": "default",
    "status": "done",
    "attempts": 2,
    "created_at": "2026-07-01T09:00:00.000Z",
    "next_retry_at": None,
    "finished_at": "2026-07-01T09:00:06.120Z",
    "cancel_requested_at": None,
    "reason": None,
    "error": {"code": "ConnectionError", "message": "the line is busy"},
    "result": {"greeting": "Hello Ada"},
    "truncated": False,
}
_NOT_ALLOWED: Final = "the request can be read, but is not allowed as it is"
_CANCELLED: Final = _TASK | {"status": "cancelled", "attempts": 0, "error": None, "result": None}


def _error(code: str, message: str, **details: str) -> Mapping[str, Any]:
    listed = [{"field": field, "message": text} for field, text in details.items()]
    return {"error": {"code": code, "message": message, "details": listed}}


_DAY: Final = datetime.now(UTC).date() + timedelta(days=30)
"""A day that can be tried out: times may be at most 366 days away."""


def build_bodies(task: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the examples of request bodies by operation and name, each with *task*."""
    return {
        "enqueue": {
            "now": {"summary": "A task, now", "value": task},
            "delayed": {
                "summary": "In five minutes, before others that are due then",
                "value": {**task, "delay_sec": 300, "priority": 5},
            },
            "timed": {
                "summary": "At a given time, or not at all",
                "value": {**task, "not_before": f"{_DAY}T18:00:00+01:00", "expires_at": f"{_DAY}T20:00:00+01:00"},
            },
            "retried": {
                "summary": "With retries of its own",
                "value": {**task, "retry": {"base_sec": 5, "max_sec": 600, "max_retries": 6}, "timeout_sec": 20},
            },
            "preset": {"summary": "With a preset of retries", "value": {**task, "retry": "conservative"}},
        },
        "enqueueBatch": {
            "keyed": {
                "summary": "Two tasks, each with a key of its own",
                "value": {"tasks": [{**task, "idempotency_key": key} for key in ("order-7", "order-8")]},
            }
        },
    }


_ANSWERS: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("enqueue", "200"): {"id": TASK_ID, "status": "done"},
    ("enqueue", "202"): {"id": TASK_ID, "status": "pending"},
    ("enqueueBatch", "200"): {
        "tasks": [{"id": TASK_ID, "status": "done"}, {"id": TASK_ID[:-1] + "7", "status": "pending"}]
    },
    ("enqueueBatch", "202"): {
        "tasks": [{"id": TASK_ID, "status": "pending"}, {"id": TASK_ID[:-1] + "7", "status": "pending"}]
    },
    ("getTask", "200"): _TASK,
    ("cancelTask", "200"): _CANCELLED,
    ("getQueue", "200"): {
        "queue": "default",
        "queue_size": 120,
        "retry_queue_size": 7,
        "delayed": 12,
        "processing": 1,
        "paused": False,
        "retries_paused": False,
        "oldest_due_age_sec": 8.7,
        "current": [
            {
                "id": TASK_ID,
                "name": "hello",
                "attempts": 2,
                "is_retry": True,
                "since": "2026-07-01T09:00:00.000Z",
            }
        ],
    },
    ("getQueue", "403"): _error("missing_right", "this API key may not read queues: ask for the right `queues.read`"),
    ("getQueue", "404"): _error("not_found", "there is no such queue"),
}

_ERRORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "400": _error("invalid_json", "the body is not valid JSON"),
    "403": _error("forbidden", "Send a valid API key in the header x-api-key."),
    "404": _error("not_found", "there is no such task"),
    "409": _error("key_in_use", "the idempotency key was used with another request"),
    "413": _error("too_large", "the body must not be larger than 4 MB"),
    "415": _error("unsupported_type", "send Content-Type: application/json, in UTF-8"),
    "422": _error("not_allowed", _NOT_ALLOWED, queue="is not declared: run `tidemill ops queue declare QUEUE` once"),
    "429": _error("throttled", "Too many requests: slow down."),
    "503": _error("misconfigured", "the queue is not set up; its log says what is missing"),
    "5XX": _error(
        "internal",
        "The request may or may not have been carried out. Send it again, a POST with the same Idempotency-Key.",
    ),
}
_QUERY: Final = _error(
    "not_allowed", _NOT_ALLOWED, query="query parameters are not supported: put options into the body"
)


def example(operation_id: str, status: str) -> Mapping[str, Any]:
    """Return an example of an answer."""
    if status == "422" and operation_id not in {"enqueue", "enqueueBatch"}:
        return _QUERY
    return _ANSWERS.get((operation_id, status)) or _ERRORS[status]
