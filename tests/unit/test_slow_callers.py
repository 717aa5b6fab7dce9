"""Callers of `make serve` that never come to an end keep nobody else waiting."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import pytest

from demo.serve.http import received
from demo.serve.server import listening

SLOW = {
    "nothing": b"",
    "half a line": b"GET /v1/ta",
    "headers without end": b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n{",
}


def answering(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    received(environ)
    start("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@pytest.fixture
def port() -> Iterator[int]:
    server = listening(host="127.0.0.1", port=0)
    with server, server.serving(answering):
        yield server.server_port


@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW)
def test_whoever_says_half_of_something_keeps_nobody_waiting(port: int, said: bytes) -> None:
    with ExitStack() as slow:
        for _ in range(40):
            slow.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(said)

        with urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert answer.read() == b"ok"
