"""An HTTP request as the event that API Gateway (REST, payload v1) makes of it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from werkzeug.datastructures import MultiDict

from tidemill.dev.server import HttpRequest

STAGE: Final = "v1"

Event: TypeAlias = dict[str, Any]

_HOST: Final = "a1b2c3d4e5.execute-api.eu-central-1.amazonaws.com"
_CONTEXT: Final[Mapping[str, Any]] = {
    "resourceId": "h7k2m9",
    "extendedRequestId": "UrVXKEZnliAEj2w=",
    "accountId": "123456789012",
    "protocol": "HTTP/1.1",
    "stage": STAGE,
    "domainPrefix": "a1b2c3d4e5",
    "domainName": _HOST,
    "deploymentId": "d5p8l2",
    "apiId": "a1b2c3d4e5",
}
"""Fields of the request context that depend on the deployment, not on the request."""

_NO_IDENTITY: Final = dict.fromkeys(
    (
        "cognitoIdentityPoolId", "cognitoIdentityId", "principalOrgId", "cognitoAuthenticationType", "userArn",
        "accountId", "caller", "accessKey", "cognitoAuthenticationProvider", "user",
    )
)  # fmt: skip
"""Fields of the identity that an API key leaves empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A *resource* such as ``/tasks/{task_id}``, the *path* below the stage, and the values of its parameters."""

    resource: str
    path: str
    parameters: Mapping[str, str]


def gateway_event(request: HttpRequest, route: Route, *, api_key: str, request_id: str, now: datetime) -> Event:
    """Return the event.

    The path stays percent-encoded, query strings are decoded, and the last of repeated values is the single one.
    A body that is no UTF-8 text travels in base64.
    """
    headers = [
        *request.headers_as_sent,
        ("X-Amzn-Trace-Id", f"Root=1-{request_id.replace('-', '')[:8]}-{request_id.replace('-', '')[8:]}"),
        ("X-Forwarded-For", request.remote_addr),
        ("X-Forwarded-Port", "443"),
        ("X-Forwarded-Proto", "https"),
    ]
    query = parse_qsl(request.target.query, keep_blank_values=True, errors="replace")
    body, is_base64 = _encode_body(request.read_body())
    return {
        "resource": route.resource,
        "path": route.path,
        "httpMethod": request.method,
        "headers": dict(headers),
        "multiValueHeaders": MultiDict(headers).to_dict(flat=False),
        "queryStringParameters": dict(query) or None,
        "multiValueQueryStringParameters": MultiDict(query).to_dict(flat=False) or None,
        "pathParameters": dict(route.parameters) or None,
        "stageVariables": None,
        "requestContext": _context(request, route, api_key=api_key, request_id=request_id, now=now),
        "body": body,
        "isBase64Encoded": is_base64,
    }


def key_id(api_key: str) -> str:
    """Return the id of an API key, by which the functions know a caller. It does not contain the key."""
    return hashlib.sha256(api_key.encode()).hexdigest()[:10]


def _context(request: HttpRequest, route: Route, *, api_key: str, request_id: str, now: datetime) -> Mapping[str, Any]:
    identity = {
        "apiKey": api_key,
        "apiKeyId": key_id(api_key),
        "sourceIp": request.remote_addr,
        "userAgent": request.last_header("user-agent"),
    }
    return {
        **_CONTEXT,
        "resourcePath": route.resource,
        "httpMethod": request.method,
        "requestTime": now.strftime("%d/%b/%Y:%H:%M:%S +0000"),
        "path": f"/{STAGE}{route.path}",
        "requestTimeEpoch": int(now.timestamp() * 1000),
        "requestId": request_id,
        "identity": {**_NO_IDENTITY, **identity},
    }


def _encode_body(body: bytes) -> tuple[str | None, bool]:
    try:
        return body.decode() or None, False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True
