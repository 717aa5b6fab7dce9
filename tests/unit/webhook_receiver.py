"""Receivers of webhooks on loopback: one that speaks HTTP, one that does whatever a test says."""

from __future__ import annotations

import socket
import socketserver
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from threading import Event, Thread
from typing import Any, TypeVar

import pytest
from bson import ObjectId

from tasks._egress import Egress
from tasks.deliver_webhook import Sender, Webhook, deliver
from tidemill import Fail, Retry, TaskContext

Talk = Callable[[socket.socket, Event], None]
E = TypeVar("E", bound=Retry | Fail)


def context(*, attempt: int = 1, left: timedelta = timedelta(hours=1)) -> TaskContext:
    """Return the context of an attempt that has *left* to run."""
    deadline = time.monotonic() + left.total_seconds()
    return TaskContext(task_id=TASK_ID, attempt=attempt, is_last_attempt=False, deadline=deadline)


TASK_ID = ObjectId("665f1c2ab8d1e2f3a4b5c6d7")
CTX = context()
LOOPBACK = Sender(egress=Egress(networks=(ip_network("127.0.0.0/8"),)))


def refusal(error: type[E], url: str, *, sender: Sender = LOOPBACK, **payload: Any) -> E:
    """Deliver, and return the *error* that comes of it."""
    with pytest.raises(error) as caught:
        deliver(Webhook(url=url, **payload), CTX, sender=sender)
    return caught.value


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """One response."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


@dataclass
class Receiver:
    """A server that keeps what it was sent."""

    port: int
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def receiver(
    answer: Callable[[Received], Answer] = lambda _: Answer(), *, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """Serve HTTP, or HTTPS, on a free port until the block ends."""

    class Handler(_Handler):
        def do_POST(self) -> None:
            request = Received(
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self.rfile.read(int(self.headers["Content-Length"])),
            )
            state.received.append(request)
            self.reply(answer(request))

    with _Server(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        state = Receiver(port=server.server_address[1])
        with _running(server):
            yield state


@contextmanager
def raw_receiver(talk: Talk) -> Iterator[Receiver]:
    """Call *talk* with each connection, and an event that is set when the block ends."""
    over = Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            talk(self.request, over)

    with _RawServer(("127.0.0.1", 0), Handler) as server, _running(server):
        try:
            yield Receiver(port=server.server_address[1])
        finally:
            over.set()


def silent(_conn: socket.socket, over: Event) -> None:
    """Accept and say nothing."""
    over.wait()


def dripping(start: bytes) -> Talk:
    """Say *start*, then one byte after the other."""

    def talk(conn: socket.socket, over: Event) -> None:
        conn.sendall(start)
        while not over.wait(0.02):
            conn.sendall(b"x")

    return talk


@contextmanager
def closed_port() -> Iterator[int]:
    """Hold a port that accepts no connection."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


class _Handler(BaseHTTPRequestHandler):
    def reply(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that refuse a certificate or hang up early are what is tested."""


class _RawServer(socketserver.ThreadingTCPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing, as above."""


@contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
