"""API Gateway's events and answers (REST, payload v1) in our terms: bodies, callers, keys, errors."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import ObjectId, json_util

from tidemill.control import Directory
from tidemill.errors import InvalidRequestError, Problem, TidemillError, UnknownTaskError
from tidemill.model import Task, TaskId
from tidemill.requests import MAX_KEY_CHARS, NewTask, new_task

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_HTTP_PRIORITY: Final = 10
MIN_HTTP_BASE_SEC: Final = 0.1
"""A stranger's task must not go round and round."""

KEY_HEADER: Final = "idempotency-key"
_CORRELATION_HEADERS: Final = ("x-correlation-id", "x-request-id")


class HttpError(TidemillError):
    """An answer that is an error: *status* and, in the body, *code*, message and *problems*."""

    def __init__(self, status: int, code: str, message: str, problems: Sequence[Problem] = ()) -> None:
        self.status = status
        self.code = code
        self.problems = tuple(problems)
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back to the caller: *body* is JSON text."""

    status: int
    body: str
    headers: Mapping[str, str]


def is_api_event(event: object) -> bool:
    """Tell whether *event* is one of the REST API's, and not a load balancer's, which looks alike."""
    if not isinstance(event, dict) or not all(isinstance(event.get(name), str) for name in ("httpMethod", "path")):
        return False
    context = event.get("requestContext")
    has_headers = all(isinstance(event.get(name) or {}, dict) for name in ("headers", "multiValueHeaders"))
    return isinstance(context, dict) and "elb" not in context and has_headers


def requested_task(event: Mapping[str, Any], directory: Directory, *, max_timeout: timedelta) -> NewTask:
    """Return the task a ``POST /tasks`` asks for, its key scoped to the caller.

    *max_timeout* is what executors can grant one attempt.

    Raises:
        HttpError: The body cannot be read, or carries what belongs into the header.
        InvalidRequestError: It can be read and is not allowed.
    """
    fields = json_object(event)
    if "idempotency_key" in fields:
        raise InvalidRequestError([Problem("idempotency_key", "goes into the header Idempotency-Key")])
    key = _idempotency_key(event)
    request = new_task(**fields | ({} if key is None else {"idempotency_key": key}))
    _refuse_what_http_may_not(request, directory, max_timeout=max_timeout)
    scoped = None if key is None else f"{caller(event)}:{key}"
    return request.model_copy(update={"idempotency_key": scoped})


def json_object(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body as the JSON object it has to be: strict, no name twice, numbers that can be stored.

    Raises:
        HttpError: 400 where it cannot be parsed, 413 where it is too large.
    """
    text = _body_text(event)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BODY_BYTES:
        raise HttpError(413, "too_large", f"the body must not be larger than {MAX_BODY_BYTES // 1024**2} MB")
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_storable
        )
    except RecursionError:
        raise HttpError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as error:
        known = str(error) if isinstance(error, _UnfitError) else "the body is not valid JSON"
        raise HttpError(400, "invalid_json", known) from None
    if not isinstance(value, dict):
        raise HttpError(400, "invalid_json", "the body must be a JSON object")
    return value


def caller(event: Mapping[str, Any]) -> str:
    """Return who calls: the id of the API key."""
    identity = (event.get("requestContext") or {}).get("identity") or {}
    return str(identity.get("apiKeyId") or "anonymous")


def trace(event: Mapping[str, Any]) -> dict[str, str]:
    """Return what is kept of the call with the task."""
    found = {"source": caller(event)}
    correlation = next((value for name in _CORRELATION_HEADERS for value in headers(event, name)), None)
    request_id = (event.get("requestContext") or {}).get("requestId")
    if correlation or request_id:
        found["correlation_id"] = _plain(str(correlation or request_id))
    for value in headers(event, "traceparent")[:1]:
        found["traceparent"] = _plain(value)
    return found


def headers(event: Mapping[str, Any], name: str) -> list[str]:
    """Return the different values of a header, whatever its case and wherever the gateway put it."""
    found: list[str] = []
    for given, values in (event.get("multiValueHeaders") or {}).items():
        found += [str(value) for value in values or [] if given.lower() == name and value is not None]
    for given, value in (event.get("headers") or {}).items():
        found += [str(value)] if given.lower() == name and value is not None else []
    return list(dict.fromkeys(found))


def object_id(text: str) -> ObjectId:
    """Return the task id in a path.

    Raises:
        HttpError: 404: no task has such an id.
    """
    if not ObjectId.is_valid(text):
        raise HttpError(404, "not_found", "there is no such task")
    return ObjectId(text)


def accepted(task_id: TaskId, *, is_new: bool, event: Mapping[str, Any]) -> Answer:
    """Return the answer to an enqueue: 202 for a new task, 200 for the one that holds the key."""
    body = {"id": str(task_id), "status": "pending"} if is_new else {"id": str(task_id)}
    # As the caller wrote it: with the stage, which `path` lacks.
    path = str(event["requestContext"].get("path") or event["path"]).rstrip("/")
    return _answer(202 if is_new else 200, body, {"Location": f"{path}/{task_id}"})


def told(task: Task) -> Answer:
    """Return a task as its enqueuer may see it; the payload is never told."""
    error = None if task.error is None else {"code": task.error.code, "message": task.error.message}
    return _answer(
        200,
        {
            "id": str(task.id),
            "name": task.name,
            "queue": task.queue,
            "status": task.status,
            "attempts": task.attempts,
            "created_at": _rfc3339(task.created_at),
            "next_retry_at": _rfc3339(task.next_retry_at),
            "finished_at": _rfc3339(task.finished_at),
            "cancel_requested_at": _rfc3339(task.cancel_requested_at),
            "error": error,
            "result": json.loads(json_util.dumps(task.result, json_options=json_util.RELAXED_JSON_OPTIONS)),
        },
    )


def refused(error: HttpError) -> Answer:
    """Return *error* in the one shape all errors have."""
    details = [{"field": one.field, "message": one.message} for one in error.problems]
    body = {"error": {"code": error.code, "message": str(error), "details": details}}
    return _answer(error.status, body, {"Retry-After": "5"} if error.status == 503 else {})  # noqa: PLR2004


def _refuse_what_http_may_not(request: NewTask, directory: Directory, *, max_timeout: timedelta) -> None:
    declared = directory.task_type(request.name, for_http=True)
    if declared is None:
        raise UnknownTaskError([Problem("name", "no executor has registered a task function of this name")])
    if not declared.get("http"):
        raise UnknownTaskError([Problem("name", "is not open to HTTP: register it with @task(..., http=True)")])
    problems = []
    if not directory.is_declared(request.queue):
        problems.append(Problem("queue", "is not declared: run `tidemill declare QUEUE` once"))
    if abs(request.priority) > MAX_HTTP_PRIORITY:
        problems.append(Problem("priority", f"must be from -{MAX_HTTP_PRIORITY} to {MAX_HTTP_PRIORITY}"))
    backoff = request.retry.backoff() if request.retry is not None else None
    if backoff is not None and backoff.base_sec < MIN_HTTP_BASE_SEC:
        problems.append(Problem("retry.base_sec", f"must be at least {MIN_HTTP_BASE_SEC:g}"))
    longest = max_timeout.total_seconds()
    if request.timeout_sec is not None and request.timeout_sec > longest:
        problems.append(Problem("timeout_sec", f"must be at most {longest:g}, the MAX_TASK_TIMEOUT_SEC of executors"))
    if problems:
        raise InvalidRequestError(problems)


def _idempotency_key(event: Mapping[str, Any]) -> str | None:
    keys = headers(event, KEY_HEADER)
    if len(keys) > 1:
        raise HttpError(400, "invalid_key", "the header Idempotency-Key was sent with different values")
    if keys and not 0 < len(keys[0].strip()) <= MAX_KEY_CHARS:
        raise HttpError(400, "invalid_key", f"the header Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters")
    return keys[0].strip() if keys else None


def _body_text(event: Mapping[str, Any]) -> str:
    body = event.get("body")
    if not isinstance(body, str) or not body.strip():
        raise HttpError(400, "invalid_json", "the body is empty")
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            raise HttpError(400, "invalid_body", "the body is not UTF-8 text in base64") from None
    if body.startswith("\ufeff"):
        raise HttpError(400, "invalid_json", "the body starts with a byte order mark")
    return body


class _UnfitError(ValueError):
    """JSON that Python would read and we do not take."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _UnfitError("the body has a name twice in one object")
    return value


def _no_constant(_: str) -> float:
    raise _UnfitError("the body holds NaN or Infinity, which are not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _UnfitError("the body holds a number that is too large")
    return number


def _storable(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:  # noqa: PLR2004 - digits and sign of 64 bits
        raise _UnfitError("the body holds a whole number beyond 64 bits")
    return int(digits)


def _answer(status: int, body: Mapping[str, Any], extra: Mapping[str, str] | None = None) -> Answer:
    return Answer(
        status=status,
        body=json.dumps(body, allow_nan=False),
        headers={"Content-Type": "application/json", "Cache-Control": "no-store", **(extra or {})},
    )


def _rfc3339(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(text: str) -> str:
    return "".join(char for char in text[:200] if char.isprintable())
