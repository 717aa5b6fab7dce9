"""Texts of the OpenAPI document for application developers: the promises, the presets, the headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidemill.policy.retry import PRESETS

_INTRODUCTION: Final = """\
A task queue: hand over a task, and it is run in the background and retried where it fails; ask how it is doing.

* **202 means kept.** What was answered 202 is stored, and ends as `done`, `cancelled` or `failed`; it is never lost.
* **At least once.** A task may run more than once; functions are written for that.
* **Repeat safely.** Send an `Idempotency-Key`. After a timeout or a 5xx, the same request with the same key is the same
  task; another request with it is refused (409). A key is held while its task is pending, processing, failed or done,
  and free once it is cancelled, has become a dead letter, or is past its retention.
* **Yours alone.** Tasks and keys belong to the API key they were sent with: to others they do not exist (404).
* **Rights.** The state of a queue concerns the tasks of all callers: the operator grants the right `queues.read` to an
  API key, or the answer is 403.
* **All errors have one shape**: `{"error": {"code", "message", "details": [{"field", "message"}]}}`. Go by
  status and `code`; the rest is for people. After 429 and 503 wait for `Retry-After` seconds.
* Bodies are strict JSON in UTF-8 of at most 4 MB, with no name twice; unknown fields are refused, and so is a
  query string.
* **Functions.** A `name` is that of a function which the deployment has opened to HTTP (`@task(..., http=True)`); ask
  its operator which there are, and which queues.
"""


def _presets() -> str:
    """Return the presets of retries, as a table."""
    rows = [
        f"| `{name}` | {policy.max_retries} | {wait.strategy} | {wait.base_sec:g} | {wait.factor:g} "
        f"| {wait.max_sec:g} | {wait.jitter} |"
        for name, policy in PRESETS.items()
        for wait in [policy.backoff]
    ]
    head = ["| `retry` | max_retries | strategy | base_sec | factor | max_sec | jitter |", "| --- " * 7 + "|"]
    return "\n".join(["### The presets of `retry`", "", *head, *rows])


DESCRIPTION: Final = "\n".join([_INTRODUCTION, _presets(), ""])

TAG: Final = {"name": "Tasks", "description": "Enqueue, look, cancel; see how full a queue is."}

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


def _header(name: str, description: str, *, example: str) -> Mapping[str, Any]:
    about = {
        "description": description,
        "schema": {"type": "string", "examples": [example]},
    }  # the page fills in others
    return {"name": name, "in": "header", "required": False} | about


ID_PATTERN: Final = "^[0-9a-fA-F]{24}$"
"""Of a task's id. Any other is answered 404, too, so that the routes need not know it."""

KEY: Final = (
    "What makes a repeat of this request the same task; your own for each task. It must be printable; white space "
    "around it does not count. A header as everyone has it: ASCII is safe."
)

TRACE_HEADERS: Final[Sequence[Mapping[str, Any]]] = (
    _header(
        "X-Correlation-Id",
        "Your name for what this belongs to. It is kept with the task (the first 200 characters that are printable), "
        "stands in the log of its enqueueing and of each attempt, and its function gets it. Without one, "
        "it is the id of the request.",
        example="checkout-4711",
    ),
    _header("X-Request-Id", "Taken for X-Correlation-Id where there is none.", example="7b0e9d52-6c1f-4a38"),
    _header(
        "traceparent",
        "W3C Trace Context. It is kept with the task, stands in its log, and its function can pass it on. "
        "One that is not of its form (version, 32, 16 and 2 hex digits, as in the example) is left out.",
        example="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
)
