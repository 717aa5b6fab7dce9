"""A small HTTP server for a WSGI application, with a thread for each request."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from demo.serve.http import RAW_HEADERS, RAW_TARGET
from tidemill import TidemillError


class PortTakenError(TidemillError):
    """Another program listens there, or the address is none of this machine's."""


class Server(ThreadingMixIn, WSGIServer):
    """Listens from the start; who calls before it serves has to wait."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    @contextmanager
    def serving(self, application: Callable[..., Any]) -> Iterator[None]:
        """Serve *application* until the block ends."""
        self.set_app(application)
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, *_: object) -> None:
        """A caller that hangs up early is no error."""


def listening(*, host: str, port: int) -> Server:
    """Return a server that has its port, a free one for 0; it gives it back after the block it is used for.

    Raises:
        PortTakenError: It cannot listen there.
    """
    try:
        return Server((host, port), _Request)
    except OSError as error:
        remedy = "PORT=8001 make serve" if error.errno == errno.EADDRINUSE else "BIND=0.0.0.0 is all this machine has"
        why = error.strerror or "it is not an address"
        raise PortTakenError(f"cannot listen on {host}:{port} ({why}): choose another, {remedy}") from None


class _Request(WSGIRequestHandler):
    timeout = 30  # of a caller that says nothing more

    def get_environ(self) -> dict[str, Any]:
        """Add what WSGI itself loses."""
        return super().get_environ() | {RAW_TARGET: self.path, RAW_HEADERS: list(self.headers.items())}

    def address_string(self) -> str:
        """Return the address without looking up its name."""
        return str(self.client_address[0])

    def log_message(self, *_: object) -> None:
        """Leave the log to the application."""
