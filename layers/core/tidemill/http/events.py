"""Events of API Gateway and direct invocations: kind, caller, headers, trace and JSON body, cleaned for the routes."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from bson import ObjectId

from tidemill.errors import InvalidRequestError, Problem
from tidemill.http.models import KEY_HEADER, HttpError
from tidemill.requests.tasks import MAX_KEY_CHARS

MAX_BODY_BYTES: Final = 4 * 1024 * 1024


def read_body(event: Mapping[str, Any]) -> str:
    """Return the body as text.

    Raises:
        HttpError: 400 for a missing body or a body that is not UTF-8, 413 for a body that is too large.
    """
    body = event.get("body")
    if not isinstance(body, str) or not body.strip():
        raise HttpError(400, "invalid_json", "the body is empty")
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            raise HttpError(400, "invalid_body", "the body is not UTF-8 text in base64") from None
    if len(body) > MAX_BODY_BYTES or len(body.encode("utf-8", "surrogatepass")) > MAX_BODY_BYTES:
        raise HttpError(413, "too_large", f"the body must not be larger than {MAX_BODY_BYTES // 1024**2} MB")
    if body.startswith("\ufeff"):
        raise HttpError(400, "invalid_json", "the body starts with a byte order mark")
    return body


def parse_json_object(text: str) -> dict[str, Any]:
    """Return *text* as a JSON object.

    Raises:
        HttpError: 400: the text is not a JSON object, or has a value that JSON lacks or MongoDB cannot store.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_refuse_repeats,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except RecursionError:
        raise HttpError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as error:
        reason = str(error) if isinstance(error, _UnfitError) else "the body is not valid JSON"
        raise HttpError(400, "invalid_json", reason) from None
    if not isinstance(value, dict):
        raise HttpError(400, "invalid_json", "the body must be a JSON object")
    return value


class _UnfitError(ValueError):
    """JSON that Python reads but this API refuses."""


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _UnfitError("the body has a name twice in one object")
    return value


def _refuse_constant(_: str) -> float:
    raise _UnfitError("the body holds NaN or Infinity, which are not JSON")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _UnfitError("the body holds a number that is too large")
    return number


def _parse_int(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:  # noqa: PLR2004 - digits and sign of 64 bits
        raise _UnfitError("the body holds a whole number beyond 64 bits")
    return int(digits)


_POST_PATHS: Final = ("/tasks", "/tasks/batch")
_HTTP_FIELDS: Final = ("httpMethod", "requestContext", "rawPath", "routeKey", "multiValueHeaders")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[0-9a-z-]{1,150})?", re.ASCII)
"""W3C Trace Context, this version or a later version: https://www.w3.org/TR/trace-context/#traceparent-header"""

_CORRELATION_HEADERS: Final = ("x-correlation-id", "x-request-id")


def is_http(event: object) -> bool:
    """Return whether *event* is from the REST API, and not from a load balancer, whose events look alike."""
    if not isinstance(event, dict) or not all(isinstance(event.get(name), str) for name in ("httpMethod", "path")):
        return False
    context = event.get("requestContext")
    has_headers = all(isinstance(event.get(name) or {}, dict) for name in ("headers", "multiValueHeaders"))
    return isinstance(context, dict) and "elb" not in context and has_headers


def is_direct(event: object) -> bool:
    """Return whether *event* is a direct invocation, by a program or a schedule, and has no field of an HTTP event."""
    return not (isinstance(event, dict) and any(name in event for name in _HTTP_FIELDS))


def clean_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return *event* as the routes read it: header names in lower case, a body of plain text, no query.

    Raises:
        HttpError: 400 for an unreadable body or key, 413 for a body that is too large, 415 for a body that is not JSON.
        InvalidRequestError: There are query parameters, which would be ignored.
    """
    if event.get("queryStringParameters") or event.get("multiValueQueryStringParameters"):
        raise InvalidRequestError([Problem("query", "query parameters are not supported: put options into the body")])
    is_post = event["httpMethod"] == "POST" and event["path"].rstrip("/") in _POST_PATHS
    headers = _read_headers(event)
    key = read_idempotency_key(event) if is_post else None
    if key is not None:
        headers[KEY_HEADER.lower()] = [key]
    return dict(event) | {
        "headers": {name: values[0] for name, values in headers.items()} | {"content-type": "application/json"},
        "multiValueHeaders": headers,
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "body": _read_body(event, headers) if is_post else None,
        "isBase64Encoded": False,
    }


def read_caller(event: Mapping[str, Any]) -> str:
    """Return the caller: the id of the API key."""
    identity = _as_mapping(_as_mapping(event.get("requestContext")).get("identity"))
    key_id = identity.get("apiKeyId")
    return key_id if isinstance(key_id, str) and key_id else "anonymous"


def read_idempotency_key(event: Mapping[str, Any]) -> str | None:
    """Return the header Idempotency-Key.

    Raises:
        HttpError: 400: the key is empty or too long, or there are two keys.
    """
    keys = _read_headers(event).get(KEY_HEADER.lower(), [])
    if len(keys) > 1:
        raise HttpError(400, "invalid_key", "the header Idempotency-Key was sent with different values")
    if keys and not 0 < len(keys[0].strip()) <= MAX_KEY_CHARS:
        raise HttpError(400, "invalid_key", f"the header Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters")
    return keys[0].strip() if keys else None


def build_trace(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields about an HTTP call that are stored with its tasks."""
    fields = {"source": read_caller(event)}
    headers = _read_headers(event)
    candidates = [value for name in _CORRELATION_HEADERS for value in headers.get(name, [])]
    candidates.append(str(_as_mapping(event.get("requestContext")).get("requestId") or ""))
    for correlation_id in filter(None, map(_clean_text, reversed(candidates))):  # the first candidate wins
        fields["correlation_id"] = correlation_id
    for traceparent in filter(_TRACEPARENT.fullmatch, headers.get("traceparent", [])):
        fields["traceparent"] = traceparent
    return fields


def parse_object_id(text: str) -> ObjectId:
    """Return the task id in a path.

    Raises:
        HttpError: 404: *text* is not an ObjectId, so no task has it.
    """
    if not ObjectId.is_valid(text):
        raise HttpError(404, "not_found", "there is no such task")
    return ObjectId(text)


def build_location(event: Mapping[str, Any], task_id: object) -> str:
    """Return the path of a posted task as its caller must write it: with the stage, which `path` lacks."""
    path = str(_as_mapping(event.get("requestContext")).get("path") or event["path"]).rstrip("/")
    return f"{path}/{task_id}"


def _read_headers(event: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the distinct values of each header by its name in lower case, from both header fields of the event."""
    headers: dict[str, list[str]] = {}
    for name, content in _as_mapping(event.get("multiValueHeaders")).items():
        values = content if isinstance(content, list) else [content]
        headers.setdefault(name.lower(), []).extend(str(value) for value in values if value is not None)
    for name, value in _as_mapping(event.get("headers")).items():
        headers.setdefault(name.lower(), []).extend([str(value)] if value is not None else [])
    return {name: list(dict.fromkeys(values)) for name, values in headers.items() if values}


def _read_body(event: Mapping[str, Any], headers: Mapping[str, list[str]]) -> str:
    fields = headers.get("content-encoding", [])
    encodings = [encoding.strip().lower() for field in fields for encoding in field.split(",")]
    if any(encoding not in {"", "identity"} for encoding in encodings):
        raise HttpError(415, "unsupported_encoding", "send the body as it is: Content-Encoding is not supported")
    text = read_body(event)
    if not all(map(_is_json, headers.get("content-type", []))):
        parse_json_object(text)  # an unreadable body is 400 whatever its type
        raise HttpError(415, "unsupported_type", "send Content-Type: application/json, in UTF-8")
    return text


def _is_json(content_type: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [
        parameter.partition("=")[2].strip().strip('"') for parameter in parameters if parameter.startswith("charset")
    ]
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    return (is_json or not kind) and all(charset in {"utf-8", "utf8", "us-ascii"} for charset in charsets)


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _clean_text(text: str) -> str:
    return "".join(char for char in text[:200] if char.isprintable()).strip()
