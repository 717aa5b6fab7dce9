"""Delivering webhooks to real servers on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tasks.deliver_webhook import Webhook, deliver_webhook
from tasks.noop import noop
from tests.unit.webhook_receiver import CTX, TASK_ID, Receiver, context, receiver
from tidemill import Fail, SettingsError


@pytest.fixture(autouse=True)
def loopback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_ALLOWED_NETWORKS", "127.0.0.0/8")
    monkeypatch.delenv("WEBHOOK_ALLOWED_HOSTS", raising=False)
    monkeypatch.delenv("WEBHOOK_SECRET", raising=False)


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


def test_the_body_arrives_as_json_and_the_result_holds_status_and_duration(hooks: Receiver) -> None:
    result = deliver_webhook(Webhook(url=hooks.url + "?a=1", body={"grüße": [1, None, 2.5]}), CTX)

    [request] = hooks.received
    assert request.path == "/hook?a=1"
    assert json.loads(request.body) == {"grüße": [1, None, 2.5]}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{hooks.port}"
    assert result == {"status": 200, "duration_ms": result["duration_ms"]}
    assert isinstance(result["duration_ms"], int)
    assert 0 <= result["duration_ms"] < 5000


@pytest.mark.parametrize("body", [{}, [], "text", 1, 1.5, True, None])
def test_a_body_may_be_any_json_value(hooks: Receiver, body: Any) -> None:
    deliver_webhook(Webhook(url=hooks.url, body=body), CTX)

    assert json.loads(hooks.received[0].body) == body


def test_a_short_timeout_of_the_task_leaves_time_to_deliver(hooks: Receiver) -> None:
    result = deliver_webhook(Webhook(url=hooks.url), context(left=timedelta(seconds=0.8)))

    assert result["status"] == 200


def test_each_attempt_carries_the_same_id_and_its_own_number(hooks: Receiver) -> None:
    for attempt in (1, 2):
        deliver_webhook(Webhook(url=hooks.url), context(attempt=attempt))

    assert [request.headers["webhook-id"] for request in hooks.received] == [str(TASK_ID)] * 2
    assert [request.headers["webhook-attempt"] for request in hooks.received] == ["1", "2"]


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("correct horse battery staple", b"correct horse battery staple"),
        ("whsec_" + base64.b64encode(b"\x00\xff key").decode(), b"\x00\xff key"),
    ],
)
def test_the_signature_covers_id_time_and_body(
    hooks: Receiver, monkeypatch: pytest.MonkeyPatch, secret: str, key: bytes
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", secret)

    deliver_webhook(Webhook(url=hooks.url, body={"order": 7}), CTX)

    [request] = hooks.received
    sent_at = request.headers["webhook-timestamp"]
    signed = f"{request.headers['webhook-id']}.{sent_at}.".encode() + request.body
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{digest}"
    assert abs(int(sent_at) - time.time()) < 5


def test_without_a_secret_there_is_no_signature(hooks: Receiver) -> None:
    deliver_webhook(Webhook(url=hooks.url), CTX)

    assert "webhook-timestamp" in hooks.received[0].headers
    assert "webhook-signature" not in hooks.received[0].headers


def test_given_headers_are_sent(hooks: Receiver) -> None:
    deliver_webhook(Webhook(url=hooks.url, headers={"Authorization": "Bearer x", "X-Empty": ""}), CTX)

    assert hooks.received[0].headers["authorization"] == "Bearer x"
    assert hooks.received[0].headers["x-empty"] == ""


def test_proxies_of_the_environment_are_ignored(hooks: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")

    assert deliver_webhook(Webhook(url=hooks.url), CTX)["status"] == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEBHOOK_ALLOWED_HOSTS", "https://s3cr3t"),
        ("WEBHOOK_ALLOWED_NETWORKS", "s3cr3t"),
        ("WEBHOOK_SECRET", "whsec_!s3cr3tAA"),
        ("WEBHOOK_SECRET", "whsec_"),
        ("WEBHOOK_SECRET", "s3cr3t\n"),
        ("WEBHOOK_SECRET", "s3cr3t\udcff"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named_and_not_shown(
    hooks: Receiver, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError, match=f"^{name} ") as caught:
        deliver_webhook(Webhook(url=hooks.url), CTX)

    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    assert hooks.received == []


def test_loopback_is_refused_where_the_environment_does_not_allow_it(
    hooks: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBHOOK_ALLOWED_NETWORKS")

    with pytest.raises(Fail, match="address that is not allowed"):
        deliver_webhook(Webhook(url=hooks.url), CTX)

    assert hooks.received == []


def test_a_host_that_is_not_listed_is_refused(hooks: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_ALLOWED_HOSTS", "*.example.com")

    with pytest.raises(Fail, match="not among the allowed hosts"):
        deliver_webhook(Webhook(url=hooks.url), CTX)

    assert hooks.received == []


def test_noop_does_nothing() -> None:
    noop({"anything": 1}, CTX)
