"""What the OpenAPI document tells an application developer beside shapes: how it is meant, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DESCRIPTION: Final = """\
A task queue: hand over a task, and it is run in the background and retried where it fails; ask how it is doing.

* **202 means kept.** What was answered 202 is stored, and ends as `done`, `cancelled` or `failed`; it is never lost.
* **At least once.** A task may run more than once; functions are written for that.
* **Repeat safely.** Send an `Idempotency-Key`. After a timeout or a 5xx, the same request with the same key is the same
  task; another request with it is refused (409). A key is held while its task is pending, processing, failed or done,
  and free once it is cancelled, has become a dead letter, or is past its retention.
* **Yours alone.** Tasks and keys belong to the API key they were sent with: to others they do not exist (404).
* **One shape of errors**, whoever answers: `{"error": {"code", "message", "details": [{"field", "message"}]}}`. Go by
  status and `code`; the rest is for people. After 429 and 503 wait for `Retry-After` seconds.
* Bodies are strict JSON in UTF-8 of at most 4 MB, with no name twice; unknown fields are refused.
"""

TAG: Final = {"name": "Tasks", "description": "Enqueue, look, cancel."}

SERVER: Final = {
    "url": "https://{api}.execute-api.{region}.amazonaws.com/v1",
    "description": "A deployment",
    "variables": {
        "api": {"default": "a1b2c3d4e5", "description": "The id of its API"},
        "region": {"default": "eu-central-1", "description": "Where it is"},
    },
}

SECURITY_SCHEMES: Final = {
    "ApiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The API key you were given. A task belongs to the key that it was sent with.",
    }
}

IDS: Final = {"task_id": "68a5f0c2e4b0a1d2c3f4a5b6"}
"""Examples of what stands in a path."""

RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "Seconds to wait before the next try.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
        "example": "5",
    }
}

FAILURE: Final = "A failure on our side. Repeating the request with the same Idempotency-Key is safe."

_ID: Final = IDS["task_id"]
_WEBHOOK: Final = {
    "name": "deliver_webhook",
    "payload": {"url": "https://example.com/hook", "body": {"order": "order-7"}},
}
_TASK: Final = {
    "id": _ID,
    "name": "deliver_webhook",
    "queue": "default",
    "status": "done",
    "attempts": 2,
    "created_at": "2026-07-01T09:00:00.000Z",
    "next_retry_at": None,
    "finished_at": "2026-07-01T09:00:06.120Z",
    "cancel_requested_at": None,
    "reason": None,
    "error": {"code": "http_503", "message": "the receiver answered 503"},
    "result": {"status": 204},
    "truncated": False,
}
_CANCELLED: Final = _TASK | {"status": "cancelled", "attempts": 0, "error": None, "result": None}


def _error(code: str, message: str, **details: str) -> Mapping[str, Any]:
    listed = [{"field": field, "message": text} for field, text in details.items()]
    return {"error": {"code": code, "message": message, "details": listed}}


BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "enqueue": {
        "now": {"summary": "A webhook, now", "value": _WEBHOOK},
        "nothing": {"summary": "A task that does nothing", "value": {"name": "noop", "payload": {}}},
        "delayed": {
            "summary": "In five minutes, before others that are due then",
            "value": _WEBHOOK | {"delay_sec": 300, "priority": 5},
        },
        "timed": {
            "summary": "At a given time, or not at all",
            "value": _WEBHOOK | {"not_before": "2036-12-24T18:00:00+01:00", "expires_at": "2036-12-24T20:00:00+01:00"},
        },
        "retried": {
            "summary": "With retries of its own",
            "value": _WEBHOOK | {"retry": {"base_sec": 5, "max_sec": 600, "max_retries": 6}, "timeout_sec": 20},
        },
        "preset": {"summary": "With a preset of retries", "value": _WEBHOOK | {"retry": "conservative"}},
    },
    "enqueueBatch": {
        "keyed": {
            "summary": "Two webhooks, each with a key of its own",
            "value": {"tasks": [_WEBHOOK | {"idempotency_key": key} for key in ("order-7", "order-8")]},
        }
    },
}

ANSWERS: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("enqueue", "200"): {"id": _ID, "status": "done"},
    ("enqueue", "202"): {"id": _ID, "status": "pending"},
    ("enqueueBatch", "200"): {"tasks": [{"id": _ID, "status": "done"}, {"id": _ID[:-1] + "7", "status": "pending"}]},
    ("enqueueBatch", "202"): {"tasks": [{"id": _ID, "status": "pending"}, {"id": _ID[:-1] + "7", "status": "pending"}]},
    ("getTask", "200"): _TASK,
    ("cancelTask", "200"): _CANCELLED,
}

ERRORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "400": _error("invalid_json", "the body is not valid JSON"),
    "403": _error("forbidden", "Send a valid API key in the header x-api-key."),
    "404": _error("not_found", "there is no such task"),
    "409": _error("key_in_use", "the Idempotency-Key was used with another request"),
    "413": _error("too_large", "the body must not be larger than 4 MB"),
    "415": _error("unsupported_type", "send Content-Type: application/json, in UTF-8"),
    "422": _error("not_allowed", "the task is not allowed as it is", queue="is not declared"),
    "429": _error("throttled", "Too many requests: slow down."),
    "503": _error("unavailable", "MongoDB cannot be reached; try again, which is safe with the same Idempotency-Key"),
    "5XX": _error(
        "internal_error",
        "The request may or may not have been carried out. Send it again with the same Idempotency-Key.",
    ),
}
"""An example of each error, by its status."""
