"""What AWS answers: a secret, a bucket that refuses at first, a Lambda that never starts anything. All of it talks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.handlers.serving import Server


class Aws(Server):
    """Keeps what it was called with.

    Args:
        secret: What the one secret holds.
        message: What every refusal says.
    """

    def __init__(self, *, secret: str, message: str) -> None:
        self.objects: list[str] = []
        self.called: list[str] = []
        self._secret = secret
        self._message = message
        self._refuses_objects = True
        super().__init__()

    def put(self, body: bytes) -> tuple[int, str]:
        """Take an object, but the first one."""
        if self._refuses_objects:
            self._refuses_objects = False
            return 403, f"<Error><Code>AccessDenied</Code><Message>{self._message}</Message></Error>"
        self.objects.append(gzip.decompress(body).decode())
        return 200, ""

    def post(self, target: str) -> tuple[int, str]:
        """Tell the secret, or refuse to start a function."""
        if target.endswith("GetSecretValue"):
            return 200, json.dumps({"SecretString": self._secret})
        return 403, json.dumps({"Type": "User", "Message": self._message, "message": self._message})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        aws = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self._answer(*aws.put(self._body()))
                aws.called.append(f"{self.path} {self.headers}")

            def do_POST(self) -> None:
                body = self._body()
                self._answer(*aws.post(self.headers.get("X-Amz-Target") or ""))
                aws.called.append(f"{self.path} {self.headers} {body.decode()}")

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def serving(*, secret: str, message: str) -> Iterator[Aws]:
    """Serve until the block ends."""
    server = Aws(secret=secret, message=message)
    try:
        yield server
    finally:
        server.close()
