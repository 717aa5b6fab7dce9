"""Events: which are whose, who calls, and what their headers say; made plain for the routes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bson import ObjectId

from tidemill.errors import InvalidRequestError, Problem
from tidemill.gateway.answers import HttpError
from tidemill.gateway.bodies import body_text, json_value
from tidemill.requests import MAX_KEY_CHARS

KEY_HEADER: Final = "idempotency-key"
DIRECT: Final = "direct"
"""The caller of a direct invocation: whoever IAM lets."""

_POSTED: Final = ("/tasks", "/tasks/batch")
_OF_HTTP: Final = ("httpMethod", "requestContext", "rawPath", "routeKey", "multiValueHeaders")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[0-9a-z-]{1,150})?", re.ASCII)
"""W3C Trace Context, of this version or a later one: https://www.w3.org/TR/trace-context/#traceparent-header"""

_CORRELATION_HEADERS: Final = ("x-correlation-id", "x-request-id")


def is_http(event: object) -> bool:
    """Tell whether *event* is one of the REST API's, and not a load balancer's, which looks alike."""
    if not isinstance(event, dict) or not all(isinstance(event.get(name), str) for name in ("httpMethod", "path")):
        return False
    context = event.get("requestContext")
    has_headers = all(isinstance(event.get(name) or {}, dict) for name in ("headers", "multiValueHeaders"))
    return isinstance(context, dict) and "elb" not in context and has_headers


def is_direct(event: object) -> bool:
    """Tell whether *event* was sent by hand, by a program or by a schedule, and not by anything that speaks HTTP."""
    return not (isinstance(event, dict) and any(name in event for name in _OF_HTTP))


def cleaned(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return *event* as the routes read it: header names in lower case, a body of plain text, and nothing odd.

    Raises:
        HttpError: 400 for a body or a key that cannot be read, 413 where it is too large, 415 for anything but JSON.
        InvalidRequestError: There are query parameters, at which nobody would look.
    """
    if event.get("queryStringParameters") or event.get("multiValueQueryStringParameters"):
        raise InvalidRequestError([Problem("query", "there are no query parameters: options go into the body")])
    posted = event["httpMethod"] == "POST" and event["path"].rstrip("/") in _POSTED
    given = _headers(event)
    key = idempotency_key(event) if posted else None
    if key is not None:
        given[KEY_HEADER] = [key]
    return dict(event) | {
        "headers": {name: values[0] for name, values in given.items()} | {"content-type": "application/json"},
        "multiValueHeaders": given,
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "body": _readable(event, given) if posted else None,
        "isBase64Encoded": False,
    }


def caller(event: Mapping[str, Any]) -> str:
    """Return who calls: the id of the API key."""
    identity = _mapping(_mapping(event.get("requestContext")).get("identity"))
    key_id = identity.get("apiKeyId")
    return key_id if isinstance(key_id, str) and key_id else "anonymous"


def idempotency_key(event: Mapping[str, Any]) -> str | None:
    """Return the header Idempotency-Key.

    Raises:
        HttpError: 400: it is empty, too long, or there are two.
    """
    keys = _headers(event).get(KEY_HEADER, [])
    if len(keys) > 1:
        raise HttpError(400, "invalid_key", "the header Idempotency-Key was sent with different values")
    if keys and not 0 < len(keys[0].strip()) <= MAX_KEY_CHARS:
        raise HttpError(400, "invalid_key", f"the header Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters")
    return keys[0].strip() if keys else None


def trace(event: Mapping[str, Any]) -> dict[str, str]:
    """Return what is kept of a call with its tasks."""
    found = {"source": caller(event)}
    given = _headers(event)
    named = [value for name in _CORRELATION_HEADERS for value in given.get(name, [])]
    named.append(str(_mapping(event.get("requestContext")).get("requestId") or ""))
    for correlation_id in filter(None, map(_plain, reversed(named))):
        found["correlation_id"] = correlation_id
    for traceparent in filter(_TRACEPARENT.fullmatch, given.get("traceparent", [])):
        found["traceparent"] = traceparent
    return found


def direct_trace(request_id: str) -> dict[str, str]:
    """Return what is kept of a direct invocation with its tasks."""
    return {"source": DIRECT, "correlation_id": request_id}


def object_id(text: str) -> ObjectId:
    """Return the task id in a path.

    Raises:
        HttpError: 404: no task has such an id.
    """
    if not ObjectId.is_valid(text):
        raise HttpError(404, "not_found", "there is no such task")
    return ObjectId(text)


def location(event: Mapping[str, Any], task_id: object) -> str:
    """Return where a task that was posted is told of, as its caller wrote it: with the stage, which `path` lacks."""
    path = str(_mapping(event.get("requestContext")).get("path") or event["path"]).rstrip("/")
    return f"{path}/{task_id}"


def _headers(event: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the different values of each header, by its name in lower case, wherever the gateway put them."""
    found: dict[str, list[str]] = {}
    for given, values in _mapping(event.get("multiValueHeaders")).items():
        several = values if isinstance(values, list) else [values]
        found.setdefault(given.lower(), []).extend(str(value) for value in several if value is not None)
    for given, value in _mapping(event.get("headers")).items():
        found.setdefault(given.lower(), []).extend([str(value)] if value is not None else [])
    return {name: list(dict.fromkeys(values)) for name, values in found.items() if values}


def _readable(event: Mapping[str, Any], given: Mapping[str, list[str]]) -> str:
    encodings = [one.strip().lower() for value in given.get("content-encoding", []) for one in value.split(",")]
    if any(one not in {"", "identity"} for one in encodings):
        raise HttpError(415, "unsupported_encoding", "send the body as it is: Content-Encoding is not supported")
    text = body_text(event)
    types = given.get("content-type", [])
    if not all(_is_json(one) for one in types):
        json_value(text)  # what cannot be read is 400 whatever it is called
        raise HttpError(415, "unsupported_type", "send Content-Type: application/json, in UTF-8")
    return text


def _is_json(content_type: str) -> bool:
    kind, *parameters = (one.strip().lower() for one in content_type.split(";"))
    charsets = [one.partition("=")[2].strip().strip('"') for one in parameters if one.startswith("charset")]
    named = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    return (named or not kind) and all(one in {"utf-8", "utf8", "us-ascii"} for one in charsets)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(text: str) -> str:
    return "".join(char for char in text[:200] if char.isprintable()).strip()
