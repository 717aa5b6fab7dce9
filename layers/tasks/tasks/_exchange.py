"""One HTTP request over a new connection, within one deadline, and the outcome of its reply.

A socket's own timeout restarts with every byte, so a server that sends its answer slowly never reaches it. Here each
wait is limited by the time that remains until the deadline.

A reply, or its absence, becomes the outcome of the attempt. Messages name the host, never the URL.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ssl import SSLContext, SSLEOFError, SSLError, create_default_context
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, cast

from tasks._egress import Route
from tidemill import Fail, Retry

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BODY_READ_BYTES = 1024
MAX_RETRY_AFTER = timedelta(hours=24)
_MAX_DIGITS = 9  # enough for more seconds than the cap, and few enough for int()

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
        conn.response_class = _FinalResponse
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


def check_reply(host: str, reply: Reply, *, now: datetime) -> None:
    """Return if *reply* is a success.

    Raises:
        Retry: The status is 5xx or 429. The wait is at least the one of ``Retry-After``.
        Fail: The status is any other.
    """
    message, code = f"{host} answered {reply.status}", f"http_{reply.status}"
    match reply.status // 100, reply.status:
        case 2, _:
            return
        case (5, _) | (_, HTTPStatus.TOO_MANY_REQUESTS):
            raise Retry(message, after=retry_after(reply.retry_after, now=now), code=code)
        case _:
            raise Fail(message, code=code)


@contextmanager
def retry_without_reply(host: str) -> Iterator[None]:
    """Turn errors of the connection to *host* into a `Retry`.

    The cause is dropped, since it may quote text of the server.
    """
    try:
        yield
    except TimeoutError:
        raise Retry(f"{host} did not answer in time", code="timeout") from None
    except socket.gaierror:
        raise Retry(f"{host} was not found by name", code="dns") from None
    except SSLError as error:
        raise Retry(f"{host} offers no secure connection ({type(error).__name__})", code="tls") from None
    except (OSError, HTTPException) as error:
        raise Retry(f"{host} gave no answer ({type(error).__name__})", code="connection") from None


def retry_after(value: str | None, *, now: datetime) -> timedelta | None:
    """Parse a ``Retry-After`` header, in seconds or as a date; at most 24 hours.

    Return ``None``, which leaves the wait to the retry policy, if the header is absent, invalid, or asks for no wait:
    a server that always answers "now" must not cause a hot loop.
    """
    text = (value or "").strip()
    wait = _parse_seconds(text) if text.isdecimal() and text.isascii() else _parse_date(text, now=now)
    return min(wait, MAX_RETRY_AFTER) if wait > timedelta(0) else None


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


class _FinalResponse(HTTPResponse):
    """The response that decides. http.client skips 100 alone of the interim ones, like 103 Early Hints.

    101 is final: nothing asked to switch protocols, and no HTTP follows.
    """

    def begin(self) -> None:
        super().begin()
        while self.status // 100 == 1 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment] # begin reads the next response only without them
            super().begin()


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


def _parse_seconds(digits: str) -> timedelta:
    return timedelta(seconds=int(digits)) if len(digits) <= _MAX_DIGITS else MAX_RETRY_AFTER


def _parse_date(date: str, *, now: datetime) -> timedelta:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return timedelta(0)
    return (then if then.tzinfo else then.replace(tzinfo=UTC)) - now
