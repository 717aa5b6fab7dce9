"""Which payloads can be delivered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.deliver_webhook import Webhook


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"url": 1},
        {"url": "http://a.example/" + "x" * 2048},
        {"url": "http://a.example/", "unknown": 1},
        {"url": "http://a.example/", "body": float("nan")},
        {"url": "http://a.example/", "body": {"at": datetime(2026, 1, 1, tzinfo=UTC)}},
        {"url": "http://a.example/", "timeout_sec": 0},
        {"url": "http://a.example/", "timeout_sec": 30.1},
        {"url": "http://a.example/", "timeout_sec": float("nan")},
        {"url": "http://a.example/", "timeout_sec": "5"},
        {"url": "http://a.example/", "headers": {f"X-{n}": "" for n in range(21)}},
        *(
            {"url": "http://a.example/", "headers": headers}
            for headers in (
                {"": "x"},
                {"X Y": "x"},
                {"X:": "x"},
                {"X\n": "x"},
                {"Ü": "x"},
                {"X": "a\r\nHost: b"},
                {"X": "a\n"},
                {"X": "\x00"},
                {"X": "ü"},
                {"X": "x" * 4097},
                {"X": 1},
                {"X-A": "1", "x-a": "2"},
                {"HOST": "x"},
                {"content-length": "0"},
                {"Content-Type": "text/plain"},
                {"Transfer-Encoding": "chunked"},
                {"Connection": "close"},
                {"Webhook-Id": "x"},
                {"webhook-signature": "x"},
                {"Proxy-Authorization": "x"},
            )
        ),
    ],
)
def test_a_payload_that_cannot_be_sent_as_it_is_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Webhook.model_validate(payload)


def test_every_field_is_described() -> None:
    properties = Webhook.model_json_schema()["properties"]

    assert all(schema.get("description") for schema in properties.values())


def test_a_wrong_payload_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        Webhook.model_validate({"url": "http://a.example/", "headers": {"X": "s3cr3t\n"}, "more": "s3cr3t"})

    assert "s3cr3t" not in str(caught.value)
