"""One HTTP request over a new connection, within one deadline.

A socket's own timeout restarts with every byte, so a server that sends its answer slowly never reaches it. Here each
wait is limited by the time that remains until the deadline.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException
from ssl import SSLContext, SSLEOFError, create_default_context
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, cast

from tasks._egress import Route

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BODY_READ_BYTES = 1024

Tls = Callable[[], SSLContext]
"""Returns the context with the trusted certificates; called for https only."""

_LOAD_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the moment *seconds* from now."""
        return cls(monotonic() + seconds)

    def remaining_sec(self) -> float:
        """Return the remaining seconds, always more than 0.

        Raises:
            TimeoutError: The deadline has passed.
        """
        remaining_sec = self.at - monotonic()
        if remaining_sec <= 0:
            raise TimeoutError("the deadline has passed")
        return remaining_sec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Status and headers of a response that the delivery uses; the body is not kept."""

    status: int
    location: str | None
    retry_after: str | None


def post(route: Route, *, headers: Mapping[str, str], body: bytes, deadline: Deadline, tls: Tls) -> Reply:
    """Send one POST to the route's first address that accepts a connection.

    The certificate is checked against the host's name. Nothing is sent twice, and no proxy is used.

    Raises:
        OSError: No connection, a broken connection or an invalid certificate; a `TimeoutError` if not in time.
        HTTPException: The answer is not HTTP.
    """
    with closing(_connect(route, deadline)) as raw, _open_stream(raw, route, deadline=deadline, tls=tls) as sock:
        conn = HTTPConnection(route.target.host)
        conn.auto_open = 0  # otherwise it would connect to the name
        conn.sock = cast(socket.socket, _DeadlineSocket(sock, deadline))
        # A server that refuses early may close before it has read everything; its answer can still be read.
        with suppress(BrokenPipeError, ConnectionResetError, SSLEOFError):
            conn.request("POST", route.target.path, body, {"Host": route.target.authority, **headers})
        with closing(conn), conn.getresponse() as response:
            reply = Reply(
                status=response.status,
                location=response.getheader("Location"),
                retry_after=response.getheader("Retry-After"),
            )
            # The answer is known. Reading a little of the body lets a normal server finish without an error.
            with suppress(OSError, HTTPException):
                response.read(MAX_BODY_READ_BYTES)
            return reply


def default_tls() -> SSLContext:
    """Return the context that trusts the system's certificates, loaded once per process at first use."""
    with _LOAD_LOCK:  # without it, each worker thread would load the certificates
        return _load_tls()


@cache
def _load_tls() -> SSLContext:
    return create_default_context()


def _connect(route: Route, deadline: Deadline) -> socket.socket:
    last_error: OSError = TimeoutError()
    for tried, address in enumerate(route.addresses):
        timeout_sec = deadline.remaining_sec() / (len(route.addresses) - tried)
        try:
            return socket.create_connection((address, route.target.port), timeout=timeout_sec)
        except OSError as error:
            last_error = error
    raise last_error


@contextmanager
def _open_stream(sock: socket.socket, route: Route, *, deadline: Deadline, tls: Tls) -> Iterator[socket.socket]:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if route.target.scheme == "http":
        yield sock
        return
    sock.settimeout(deadline.remaining_sec())
    with tls().wrap_socket(sock, server_hostname=route.target.host) as stream:
        yield stream


class _DeadlineSocket:
    """The socket methods that http.client uses. The opener closes the socket itself."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._deadline.remaining_sec())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline))

    def close(self) -> None:
        pass


class _DeadlineReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._sock.settimeout(self._deadline.remaining_sec())
        return self._sock.recv_into(buffer)
