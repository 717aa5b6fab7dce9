"""A server that speaks like S3 where it takes nothing, as moto never does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.handlers.serving import Server

HANG_UP = 0


class S3Server(Server):
    """Answers puts and keeps their paths and headers.

    ``answers`` are the statuses to come with their codes, the last one for ever. With ``hangs_up`` it closes a
    connection that was to be kept once it has answered.
    """

    def __init__(self, *answers: tuple[int, str], hangs_up: bool) -> None:
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answers = list(answers)
        self._hangs_up = hangs_up
        super().__init__()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.paths.append(self.path)
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, code = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                if status == HANG_UP:
                    self.close_connection = True
                    return
                told = f"<Error><Code>{code}</Code><Message>arn S3cr3t</Message></Error>" if code else ""
                self.send_response(status)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told.encode())
                self.close_connection = server._hangs_up

            def log_message(self, *_: Any) -> None:
                """Nothing is said on the terminal."""

        return Handler


@contextmanager
def s3_server(*answers: tuple[int, str], hangs_up: bool = False) -> Iterator[S3Server]:
    """Serve for as long as the test needs it."""
    server = S3Server(*answers, hangs_up=hangs_up)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def silent() -> Iterator[str]:
    """The URL of what takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
