"""One HTTP request over one fresh connection, over by one deadline.

A socket's own timeout starts anew with every byte, so a server that drips its answer never meets it. Here
each wait is given what is left until the deadline.
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

MAX_BODY_READ = 1024

Tls = Callable[[], SSLContext]
"""Whose certificates are trusted; called only for https."""

_LOADING = Lock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the moment *seconds* from now."""
        return cls(monotonic() + seconds)

    def left(self) -> float:
        """Return the seconds that are left, always more than 0.

        Raises:
            TimeoutError: There are none.
        """
        left = self.at - monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is of interest in a response; its body is not."""

    status: int
    location: str | None
    retry_after: str | None


def post(route: Route, *, headers: Mapping[str, str], body: bytes, deadline: Deadline, tls: Tls) -> Reply:
    """Send one POST to one of the route's addresses; the certificate is checked against the host's name.

    The first address that accepts the connection is used. Nothing is sent twice, no proxy is asked.

    Raises:
        OSError: No connection, or it broke, or its certificate is not valid; `TimeoutError`: not in time.
        HTTPException: The answer is not HTTP.
    """
    with closing(_connect(route, deadline)) as raw, _secured(raw, route, deadline=deadline, tls=tls) as sock:
        conn = HTTPConnection(route.target.host)
        conn.auto_open = 0  # it would connect to the name
        conn.sock = cast(socket.socket, _DeadlineSocket(sock, deadline))
        # One that refuses early may close before it has read all: its answer is there nevertheless.
        with suppress(BrokenPipeError, ConnectionResetError, SSLEOFError):
            conn.request("POST", route.target.path, body, {"Host": route.target.authority, **headers})
        with closing(conn), conn.getresponse() as response:
            reply = Reply(
                status=response.status,
                location=response.getheader("Location"),
                retry_after=response.getheader("Retry-After"),
            )
            # The answer is known. Reading a little of the rest lets a normal server end in peace.
            with suppress(OSError, HTTPException):
                response.read(MAX_BODY_READ)
            return reply


def default_tls() -> SSLContext:
    """Return the context that trusts what the system trusts, loaded once per process, by the first who asks."""
    with _LOADING:  # slots are threads: without it each would load the certificates for itself
        return _loaded()


@cache
def _loaded() -> SSLContext:
    return create_default_context()


def _connect(route: Route, deadline: Deadline) -> socket.socket:
    failure: OSError = TimeoutError()
    for tried, address in enumerate(route.addresses):
        share = deadline.left() / (len(route.addresses) - tried)
        try:
            return socket.create_connection((address, route.target.port), timeout=share)
        except OSError as error:
            failure = error
    raise failure


@contextmanager
def _secured(sock: socket.socket, route: Route, *, deadline: Deadline, tls: Tls) -> Iterator[socket.socket]:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if route.target.scheme == "http":
        yield sock
        return
    sock.settimeout(deadline.left())
    with tls().wrap_socket(sock, server_hostname=route.target.host) as secured:
        yield secured


class _DeadlineSocket:
    """What http.client uses of a socket. Closing is left to whoever opened it."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._deadline.left())
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
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(buffer)
