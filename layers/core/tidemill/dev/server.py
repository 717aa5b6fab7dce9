"""HTTP on this machine, by werkzeug: a thread for each request, and requests as the caller sent them."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from werkzeug.exceptions import BadRequest
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.wrappers import Request

from tidemill.errors import TidemillError

MAX_BODY_BYTES: Final = 10 * 1024 * 1024
"""Limit of API Gateway."""

IDLE_CALLER_TIMEOUT_SEC: Final = 30
MAX_PORT: Final = 65535

HEADERS_AS_SENT: Final = "tidemill.headers"
"""Key in the WSGI environment: WSGI itself joins repeated headers, API Gateway does not."""


class HttpRequest(Request):
    """A request: the path still percent-encoded, the headers in their order, repeated headers included."""

    max_content_length = MAX_BODY_BYTES

    @cached_property
    def target(self) -> SplitResult:
        """Path and query as sent; two leading slashes are part of the path, not the start of a host."""
        sent: str = self.environ["REQUEST_URI"]
        return urlsplit("/" + sent.lstrip("/") if sent.startswith("/") else sent)

    @cached_property
    def headers_as_sent(self) -> Sequence[tuple[str, str]]:
        """Names and values; without `HEADERS_AS_SENT` those that WSGI passes on."""
        return self.environ.get(HEADERS_AS_SENT) or list(self.headers.items())

    def last_header(self, name: str) -> str | None:
        """Return the last value of a header, whatever its case; ``None`` without the header."""
        return next((value for sent, value in reversed(self.headers_as_sent) if sent.lower() == name), None)

    def read_body(self) -> bytes:
        """Return the whole body.

        Raises:
            BadRequest: It has no usable ``Content-Length``, or it ends too early.
            RequestEntityTooLarge: It has more than `MAX_BODY_BYTES`. The server reads the rest after the answer.
        """
        length = self.environ.get("CONTENT_LENGTH") or "0"
        if self.environ.get("HTTP_TRANSFER_ENCODING") or not (length.isascii() and length.isdecimal()):
            raise BadRequest
        return self.get_data()


def listen(*, host: str, port: int) -> socket.socket:
    """Return a socket that listens on *port*, for 0 on a free port. Callers wait until it is served.

    Raises:
        TidemillError: It cannot listen there.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        remedy = f"--port {port % MAX_PORT + 1}" if is_taken else "--bind 0.0.0.0 means all addresses of this machine"
        why = error.strerror or "it is not an address"
        raise TidemillError(f"cannot listen on {host}:{port} ({why}): choose another, {remedy}") from None
    return listener


@contextmanager
def serve(listener: socket.socket, application: Any) -> Iterator[None]:  # noqa: ANN401 - of WSGI
    """Answer the callers of *listener* with a WSGI application until the block ends."""
    host, port = listener.getsockname()
    server = _Server(host, port, application, _Handler, fd=listener.fileno())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


class _Server(ThreadedWSGIServer):
    def handle_error(self, *_: object) -> None:
        """Ignore it: a caller that hangs up early is no error."""


class _Handler(WSGIRequestHandler):
    timeout = IDLE_CALLER_TIMEOUT_SEC

    def make_environ(self) -> dict[str, Any]:
        """Add the target and the headers as sent."""
        return super().make_environ() | {"REQUEST_URI": self.path, HEADERS_AS_SENT: tuple(self.headers.items())}

    def log(self, *_: object) -> None:
        """Leave the log to the application."""
