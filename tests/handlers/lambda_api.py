"""Lambda as functions see it: a client that is called in its place, and a server that speaks like it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from threading import Event
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.handlers.serving import Server

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:tidemill-ExecuteFunction-Zx4Qw8Er2Ty6"


class Clock:
    """A clock that tests move; time passes by hand only."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def wait_for_launch(ended: Event, _: float) -> bool:
    """Wait as long as a busy machine needs to start a thread."""
    return ended.wait(60)


class FakeLambda:
    """A client whose invokes are kept; `does` is what becomes of them, `clock` what spaces wakes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.invoked: list[dict[str, Any]] = []
        self.does: Callable[[], None] = lambda: None

    def invoke(self, **how: Any) -> dict[str, Any]:
        self.invoked.append(how)
        self.does()
        return {"StatusCode": 202, "Payload": io.BytesIO()}

    def started(self) -> list[tuple[str, str]]:
        """Which functions were started, and with which source."""
        return [(one["FunctionName"], json.loads(one["Payload"])["source"]) for one in self.invoked]


def replace_lambda_client(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> None:
    """Let boto3 return the result of *make* as each client for Lambda."""
    make_client = boto3.client
    monkeypatch.setattr(boto3, "client", lambda name, **how: make() if name == "lambda" else make_client(name, **how))


def refusal(code: str) -> Callable[[], None]:
    """What raises as boto3 does where Lambda says no."""

    def refuse() -> None:
        raise ClientError({"Error": {"Code": code, "Message": f"arn S3cr3t {ARN}"}}, "Invoke")

    return refuse


class LambdaServer(Server):
    """Answers invokes and keeps them, each with its type, body and connection.

    ``answers`` are the statuses to come, the last one for ever; 0 is to hang up without an answer. With ``hangs_up``
    it closes a connection that was to be kept once it has answered.
    """

    def __init__(self, *answers: int, hangs_up: bool) -> None:
        self.invoked: list[tuple[str, str, bytes]] = []
        self.connections: set[Any] = set()
        self._answers = list(answers)
        self._hangs_up = hangs_up
        super().__init__()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.invoked.append((self.path, self.headers["X-Amz-Invocation-Type"], body))
                server.connections.add(self.client_address)
                status = server._answers.pop(0) if len(server._answers) > 1 else server._answers[0]
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                text = b'{"Type": "User", "Message": "S3cr3t"}' if status >= 400 else b""
                if status >= 400:
                    self.send_header("x-amzn-ErrorType", {429: "TooManyRequestsException"}.get(status, "Denied"))
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                self.close_connection = server._hangs_up

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def lambda_server(*answers: int, hangs_up: bool = False) -> Iterator[LambdaServer]:
    """A server that is closed again."""
    server = LambdaServer(*(answers or (202,)), hangs_up=hangs_up)
    try:
        yield server
    finally:
        server.close()
