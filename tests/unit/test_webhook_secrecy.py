"""What errors of webhooks must not tell."""

from __future__ import annotations

import socket
import traceback
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from tasks.deliver_webhook import Sender
from tests.unit.webhook_receiver import LOOPBACK, Answer, raw_receiver, receiver, refusal
from tidemill import Fail, Retry

SECRET = "s3cr3t"


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "url",
    [
        f"http://u:{SECRET}@127.0.0.1/",
        f"http://{SECRET}/\\",
        f"http://10.0.0.1/{SECRET}",
        f"{SECRET}://a.example/",
        f"http://[{SECRET}/",
        f"http://{SECRET}:99999/",
        f"http://a.example:{SECRET}/",
    ],
)
def test_a_refused_url_is_not_repeated(url: str) -> None:
    assert SECRET not in told(refusal(Fail, url))


def garbage(conn: socket.socket, _over: Event) -> None:
    conn.recv(65536)
    conn.sendall(SECRET.encode() + b"\r\n\r\n")


SENSITIVE: dict[str, Any] = {
    "sender": replace(LOOPBACK, key=SECRET.encode()),
    "body": SECRET,
    "headers": {"Authorization": SECRET},
}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(500, body=SECRET.encode()), Retry),
        (Answer(404, body=SECRET.encode()), Fail),
        (Answer(302, {"Location": f"/{SECRET}"}), Fail),
        (Answer(307, {"Location": f"http://{SECRET}@x/"}), Fail),
        (Answer(307, {"Location": f"http://[{SECRET}"}), Fail),
    ],
)
def test_messages_repeat_nothing_that_was_sent_or_answered(answer: Answer, error: type[Retry] | type[Fail]) -> None:
    with receiver(lambda _: answer) as server:
        message = told(refusal(error, f"{server.url}?{SECRET}", **SENSITIVE))

    assert SECRET not in message
    assert server.received[0].headers["webhook-signature"] not in message


def test_what_a_babbling_server_says_is_not_repeated() -> None:
    with raw_receiver(garbage) as server:
        assert SECRET not in told(refusal(Retry, f"{server.url}?{SECRET}", **SENSITIVE))


def test_settings_do_not_show_the_key() -> None:
    assert SECRET not in repr(Sender.from_env({"WEBHOOK_SECRET": SECRET}))
