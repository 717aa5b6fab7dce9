"""A small HTTP server for a WSGI application, with a thread for each request."""

from __future__ import annotations

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


@contextmanager
def serving(application: Callable[..., Any], *, host: str, port: int) -> Iterator[int]:
    """Serve until the block ends; gives the port, a free one for 0.

    Raises:
        PortTakenError: It cannot listen there.
    """
    try:
        server = _Server((host, port), _Request)
    except OSError as error:
        why = error.strerror or "it is not an address"
        raise PortTakenError(f"cannot listen on {host}:{port} ({why}): choose another, PORT=8001 make serve") from None
    with server:
        server.set_app(application)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, *_: object) -> None:
        """A caller that hangs up early is no error."""


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
