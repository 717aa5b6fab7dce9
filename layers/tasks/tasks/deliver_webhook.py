"""Task that notifies another system of an event by an HTTP POST.

A delivery is signed by the Standard Webhooks specification (https://www.standardwebhooks.com).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urljoin

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from tasks._egress import Egress, Target, parse_url
from tasks._exchange import Deadline, Reply, Tls, check_reply, default_tls, post, retry_without_reply
from tidemill import Fail, SettingsError, TaskContext, task

MAX_REDIRECTS = 3
MARGIN_SEC = 1.0  # of the task's timeout, reserved for raising or returning the outcome
MARGIN_SHARE = 0.2  # the most of the timeout to reserve, so that a short timeout leaves time to deliver

_KEY_VARIABLE = "WEBHOOK_SECRET"
_BASE64_PREFIX = "whsec_"
_METHOD_KEEPING_REDIRECTS = frozenset({307, 308})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\t -~]{0,4096}")
_OUR_HEADERS = re.compile(
    r"host|content-(?:length|type|encoding)|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|user-agent|proxy-.*|webhook-.*",
    re.IGNORECASE,
)


class Webhook(BaseModel):
    """Payload of `deliver_webhook`: the request to send."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    url: str = Field(max_length=2048)
    """An http or https URL without credentials, of a host that the deployment allows."""

    body: JsonValue = Field(default_factory=dict)
    """Any JSON value, sent as `application/json`."""

    headers: dict[str, str] = Field(default_factory=dict, max_length=20)
    """Further headers. They are not sent after a redirect to another scheme, host or port."""

    timeout_sec: float = Field(default=10, gt=0, le=30, allow_inf_nan=False)
    """Seconds for the whole delivery: name resolution, connection, redirects, reply."""

    @field_validator("body")
    @classmethod
    def _check_json(cls, body: JsonValue) -> JsonValue:
        json.dumps(body, allow_nan=False)
        return body

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        if not all(_HEADER_NAME.fullmatch(name) for name in headers):
            raise ValueError("a header's name is a token of up to 128 characters")
        if not all(_HEADER_VALUE.fullmatch(value) for value in headers.values()):
            raise ValueError("a header's value is up to 4096 printable ASCII characters")
        if any(_OUR_HEADERS.fullmatch(name) for name in headers):
            raise ValueError("a header that the delivery sets itself cannot be given")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("a header is given twice")
        return headers


@task("deliver_webhook", timeout=30, http=True)
def deliver_webhook(payload: Webhook, ctx: TaskContext) -> dict[str, Any]:
    """POST the body; return the status and the milliseconds it took.

    Its headers are ``Webhook-Id`` (the task's id, the same for each attempt, for the receiver to deduplicate by),
    ``Webhook-Timestamp`` (Unix seconds), ``Webhook-Attempt`` (from 1) and, if WEBHOOK_SECRET is set,
    ``Webhook-Signature``: ``v1,`` and the base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``.

    Raises:
        Retry: 5xx, 429, no connection, or no reply in time. The wait is at least the one of ``Retry-After``.
        Fail: Any other status, or a host that is not allowed.
        SettingsError: A WEBHOOK_ variable cannot be read.
    """
    return deliver(payload, ctx, sender=Sender.from_env(os.environ))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Settings of a deployment for deliveries.

    Attributes:
        egress: The allowed destinations.
        key: The signing key; ``None`` for no signature.
        tls: Returns the context with the trusted certificates.
    """

    egress: Egress
    key: bytes | None = field(default=None, repr=False)
    tls: Tls = default_tls

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Sender:
        """Read WEBHOOK_ALLOWED_HOSTS, WEBHOOK_ALLOWED_NETWORKS and WEBHOOK_SECRET.

        Raises:
            SettingsError: One of them cannot be read.
        """
        return cls(egress=Egress.from_env(environ), key=signing_key(environ))


def deliver(payload: Webhook, ctx: TaskContext, *, sender: Sender) -> dict[str, Any]:
    """Deliver *payload* as `deliver_webhook` describes, with the settings of *sender*."""
    started = time.monotonic()
    remaining_sec = ctx.remaining().total_seconds()
    budget_sec = min(payload.timeout_sec, remaining_sec - min(MARGIN_SEC, remaining_sec * MARGIN_SHARE))
    host, reply = _send(payload, ctx, sender=sender, deadline=Deadline.after(budget_sec))
    check_reply(host, reply, now=datetime.now(UTC))
    return {"status": reply.status, "duration_ms": round((time.monotonic() - started) * 1000)}


def signing_key(environ: Mapping[str, str]) -> bytes | None:
    """Return the key in WEBHOOK_SECRET: ``whsec_`` and base64, or any other text as it is; ``None`` if unset.

    Raises:
        SettingsError: The key cannot be read, or has white space around it.
    """
    secret = environ.get(_KEY_VARIABLE, "")
    if not secret:
        return None
    try:
        key = _decode_secret(secret)
    except ValueError:
        raise SettingsError(f"{_KEY_VARIABLE} cannot be read: its base64 is not valid") from None
    if not key or secret != secret.strip():
        raise SettingsError(f"{_KEY_VARIABLE} is empty or has white space around it")
    return key


def signature(key: bytes, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Return ``v1,`` and the base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``.

    It covers the id, so that a captured delivery cannot be replayed under a new id, and the timestamp, so that it
    cannot be replayed late.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _send(payload: Webhook, ctx: TaskContext, *, sender: Sender, deadline: Deadline) -> tuple[str, Reply]:
    """Post, follow redirects, and return the last host and its reply."""
    body = json.dumps(payload.body, separators=(",", ":")).encode()
    own_headers = _make_own_headers(ctx, body, key=sender.key)
    headers = payload.headers | own_headers
    url, target = payload.url, parse_url(payload.url)
    for _ in range(1 + MAX_REDIRECTS):
        with retry_without_reply(target.host):
            route = sender.egress.route(target, timeout=deadline.remaining_sec())
            reply = post(route, headers=headers, body=body, deadline=deadline, tls=sender.tls)
        if reply.status not in _METHOD_KEEPING_REDIRECTS or reply.location is None:
            return target.host, reply
        origin = target.origin
        url, target = _follow_redirect(url, target, to=reply.location)
        if target.origin != origin:
            headers = own_headers  # given headers may hold a token that is for the first party only
    raise Fail(f"{target.host} came after more than {MAX_REDIRECTS} redirects", code="redirect")


def _follow_redirect(url: str, target: Target, *, to: str) -> tuple[str, Target]:
    """Return URL and target of the redirect *to* from *target*. The target must still be checked as any other."""
    try:
        url = urljoin(url, to)
    except ValueError:
        raise Fail(f"{target.host} redirects to what is not a url", code="redirect") from None
    new_target = parse_url(url)
    if target.scheme == "https" and new_target.scheme == "http":
        raise Fail(f"{target.host} redirects to an insecure connection", code="redirect")
    return url, new_target


def _make_own_headers(ctx: TaskContext, body: bytes, *, key: bytes | None) -> dict[str, str]:
    message_id, timestamp = str(ctx.task_id), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "tidemill",
        "Webhook-Id": message_id,
        "Webhook-Timestamp": str(timestamp),
        "Webhook-Attempt": str(ctx.attempt),
    }
    if key is not None:
        headers["Webhook-Signature"] = signature(key, message_id=message_id, timestamp=timestamp, body=body)
    return headers


def _decode_secret(secret: str) -> bytes:
    if secret.startswith(_BASE64_PREFIX):
        return base64.b64decode(secret.removeprefix(_BASE64_PREFIX), validate=True)
    return secret.encode()
