"""A container of a function, and the HTTP by which Lambda's clients invoke it.

``python -m tools.bench.container FUNCTION SOCKET`` is the program: it serves the socket of that number with the handler
in ``functions/FUNCTION``, one connection after the other, as a container runs one invocation after the other.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from tests.handlers.calls import app
from tidemill.testing import FakeContext
from tools.bench.children import Child

PATIENCE_SEC: Final = 60.0
TYPE: Final = "X-Amz-Invocation-Type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Where a container is invoked, and the process that it is."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Where clients of Lambda invoke it."""
        return f"http://127.0.0.1:{self.port}"

    def invoke(self, event: Any) -> Any:
        """Return what the handler answers to *event*."""
        return json.loads(self._asked("RequestResponse", json.dumps(event)))

    def wait_until_idle(self) -> None:
        """Wait for the end of what it was invoked for before."""
        self._asked("DryRun")

    def _asked(self, kind: str, body: str = "") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SEC)
        try:
            connection.request("POST", "/", body, {TYPE: kind})
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def container(function: str, **variables: str) -> Iterator[Container]:
    """Give a container of *function*, in a process with no environment but *variables*."""
    module = "tools.bench.container"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, number = listening.getsockname()[1], listening.fileno()
        process = Child(module, function, str(number), variables=variables, pass_fds=[number])
    with process:
        yield Container(port=port, pid=process.pid)


def main(function: str, descriptor: str) -> None:
    """Serve for ever."""
    handler = app(function).lambda_handler
    server = HTTPServer(("", 0), _serving(lambda event: handler(event, FakeContext())), bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(descriptor))
    server.serve_forever()


def _serving(handle: Callable[[Any], Any]) -> type[BaseHTTPRequestHandler]:
    class Invocations(BaseHTTPRequestHandler):
        wbufsize = -1  # an answer in one packet

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            match self.headers[TYPE]:
                case "DryRun":
                    self._answer(HTTPStatus.NO_CONTENT)
                case "Event":  # runs after its answer, and keeps the next one waiting
                    self._answer(HTTPStatus.ACCEPTED)
                    handle(json.loads(body))
                case _:
                    self._answer(HTTPStatus.OK, json.dumps(handle(json.loads(body))).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _answer(self, status: HTTPStatus, content: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

    return Invocations


if __name__ == "__main__":
    main(*sys.argv[1:])
