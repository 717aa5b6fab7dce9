"""An HTTP request as the event that API Gateway (REST, payload v1) makes of it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from demo.functions import Event
from demo.serve.http import HttpRequest
from demo.serve.routes import Route

STAGE: Final = "v1"
API_ID: Final = "a1b2c3d4e5"
DOMAIN: Final = f"{API_ID}.execute-api.eu-central-1.amazonaws.com"

_WITHOUT_IAM: Final = dict.fromkeys((
    "accessKey", "accountId", "caller", "cognitoAuthenticationProvider", "cognitoAuthenticationType",
    "cognitoIdentityId", "cognitoIdentityPoolId", "principalOrgId", "user", "userArn",
))  # fmt: skip


def gateway_event(request: HttpRequest, route: Route, *, api_key: str, request_id: str, now: datetime) -> Event:
    """Return the event; *request*'s path is without the stage.

    The path stays percent-encoded, query strings are decoded, and the last of repeated values is the single one.
    A body that is no UTF-8 text travels in base64.
    """
    headers = [*request.headers, *_added(request, request_id)]
    query = parse_qsl(request.query, keep_blank_values=True, errors="replace")
    body, is_base64 = _body(request.body)
    return {
        "resource": route.resource,
        "path": request.path,
        "httpMethod": request.method,
        "headers": dict(headers),
        "multiValueHeaders": _all(headers),
        "queryStringParameters": dict(query) or None,
        "multiValueQueryStringParameters": _all(query) or None,
        "pathParameters": dict(route.parameters) or None,
        "stageVariables": None,
        "requestContext": _context(request, route, api_key=api_key, request_id=request_id, now=now),
        "body": body,
        "isBase64Encoded": is_base64,
    }


def key_id(api_key: str) -> str:
    """Return the id of an API key, which the functions know a caller by: never the key itself."""
    return hashlib.sha256(api_key.encode()).hexdigest()[:10]


def _context(request: HttpRequest, route: Route, *, api_key: str, request_id: str, now: datetime) -> Mapping[str, Any]:
    identity = {
        "apiKey": api_key,
        "apiKeyId": key_id(api_key),
        "sourceIp": request.address,
        "userAgent": request.header("user-agent"),
    }
    return {
        "resourceId": "h7k2m9",
        "resourcePath": route.resource,
        "httpMethod": request.method,
        "extendedRequestId": "UrVXKEZnliAEj2w=",
        "requestTime": now.strftime("%d/%b/%Y:%H:%M:%S +0000"),
        "path": f"/{STAGE}{request.path}",
        "accountId": "123456789012",
        "protocol": "HTTP/1.1",
        "stage": STAGE,
        "domainPrefix": API_ID,
        "requestTimeEpoch": int(now.timestamp() * 1000),
        "requestId": request_id,
        "identity": _WITHOUT_IAM | identity,
        "domainName": DOMAIN,
        "deploymentId": "d5p8l2",
        "apiId": API_ID,
    }


def _added(request: HttpRequest, request_id: str) -> Iterable[tuple[str, str]]:
    """Return the headers that API Gateway adds."""
    digits = request_id.replace("-", "")
    return (
        ("X-Amzn-Trace-Id", f"Root=1-{digits[:8]}-{digits[8:]}"),
        ("X-Forwarded-For", request.address),
        ("X-Forwarded-Port", "443"),
        ("X-Forwarded-Proto", "https"),
    )


def _all(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _body(body: bytes) -> tuple[str | None, bool]:
    if not body:
        return None, False
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True
