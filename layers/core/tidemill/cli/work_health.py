"""``/healthz`` of a worker: whether it claims, and whether MongoDB answers."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from pymongo.database import Database

from tidemill.errors import SettingsError
from tidemill.executor.lifetime import Worker
from tidemill.store.connection import is_reachable

PATH: Final = "/healthz"

STALL_SEC: Final = 30.0
"""Longest time of a step of a worker that works: each of its operations ends within 10 s."""

CLIENT_TIMEOUT_SEC: Final = 5.0
"""Limit of the wait for a request over an open connection."""

SHUTDOWN_POLL_SEC: Final = 0.1
"""Time between two looks whether to close the port."""

PING_INTERVAL_SEC: Final = 1.0
"""Time for which one answer of MongoDB counts, however many requests arrive."""


class Health:
    """State of *worker* for requests: `find_problem` may be called from any thread.

    Args:
        is_stopping: Returns whether a signal has stopped the worker.
    """

    def __init__(
        self,
        worker: Worker,
        db: Database[Any],
        *,
        is_stopping: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._db = db
        self._is_stopping = is_stopping
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._pinged_at = -1e9
        self._is_reachable = False

    def find_problem(self) -> str | None:
        """Return why the worker does not claim now, in one sentence without an address; ``None`` if it does."""
        error = self._worker.error
        if self._is_stopping():
            return "the worker is stopping: it claims no more tasks"
        if error is not None:
            return str(error)
        stalled_sec = self._monotonic() - self._worker.stepped_at
        if stalled_sec > STALL_SEC:
            return f"the worker has made no step for {stalled_sec:.0f} s: restart it"
        return None if self._ping() else "MongoDB does not answer: check the server and the network"

    def _ping(self) -> bool:
        with self._lock:
            if self._monotonic() - self._pinged_at >= PING_INTERVAL_SEC:
                self._is_reachable = is_reachable(self._db)
                self._pinged_at = self._monotonic()
            return self._is_reachable


class HealthServer:
    """Context in which daemon threads answer ``GET /healthz`` at *address* and *port*; port 0 is any free one.

    The answer is 200 while *find_problem* returns ``None``, else 503 with its sentence.

    Raises:
        SettingsError: The port cannot be opened.
    """

    def __init__(self, address: str, port: int, find_problem: Callable[[], str | None]) -> None:
        try:
            self._server = _Server(address, port, find_problem)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SettingsError(
                f"the health port {port} of {address} cannot be opened: {reason}; choose another --health-port "
                "or --health-address"
            ) from None
        self._thread = threading.Thread(target=self._serve, name="tidemill-health", daemon=True)

    @property
    def url(self) -> str:
        """The URL of the answer."""
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}{PATH}"

    def __enter__(self) -> Self:
        """Start to answer."""
        os.register_at_fork(after_in_child=self._server.socket.close)  # or the child would keep the port
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=SHUTDOWN_POLL_SEC)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, port: int, find_problem: Callable[[], str | None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.find_problem = find_problem
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket; the base class would also look up a name for the address, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client that goes away is no fault of the worker."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_SEC
    server: _Server

    def do_GET(self) -> None:
        """Answer with the state of the worker."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._answer()

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return "tidemill"

    def log_message(self, *_arguments: object) -> None:
        """Print no line for a request."""

    def _answer(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._send(HTTPStatus.NOT_FOUND, f"there is only {PATH}")
            return
        problem = self.server.find_problem()
        self._send(HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE, problem or "ok")

    def _send(self, status: HTTPStatus, sentence: str) -> None:
        body = f"{sentence}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
