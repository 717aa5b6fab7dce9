"""What arrives over HTTP, as it was sent: WSGI joins repeated headers and decodes the path, API Gateway does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import quote, urlsplit

Environ: TypeAlias = Mapping[str, Any]

MAX_BODY_BYTES: Final = 10 * 1024 * 1024
"""What API Gateway takes."""

RAW_TARGET: Final = "REQUEST_URI"
RAW_HEADERS: Final = "tidemill.headers"
"""Where our server leaves the headers as they came; another server's are put together from what WSGI has of them."""

_CHUNK_BYTES: Final = 64 * 1024


class UnreadableError(Exception):
    """The request does not say how long its body is."""


class TooLargeError(Exception):
    """The body is larger than API Gateway takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request; *path* and *query* are still percent-encoded, *headers* in their order, repeated ones included."""

    method: str
    path: str
    query: str = ""
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    address: str = "127.0.0.1"

    def header(self, name: str) -> str | None:
        """Return the last value of a header, whatever its case; ``None`` without one."""
        return next((value for given, value in reversed(self.headers) if given.lower() == name), None)


def received(environ: Environ) -> HttpRequest:
    """Return the request; its body has been read, even if it is refused.

    Raises:
        UnreadableError: It has no usable ``Content-Length``.
        TooLargeError: The body has more than `MAX_BODY_BYTES`.
    """
    target = urlsplit(_target(environ))
    return HttpRequest(
        method=environ["REQUEST_METHOD"],
        path=target.path,
        query=target.query,
        headers=_headers(environ),
        body=_body(environ),
        address=environ.get("REMOTE_ADDR") or "127.0.0.1",
    )


def shown(environ: Environ) -> str:
    """Return method and path for a log line: printable, and not too long."""
    text = f"{environ['REQUEST_METHOD']} {_target(environ)}"
    return "".join(char if char.isprintable() else "?" for char in text[:120])


def _target(environ: Environ) -> str:
    """Return path and query as sent; two slashes in front are part of the path, and name no host."""
    given = environ.get(RAW_TARGET)
    if isinstance(given, str) and given:
        return "/" + given.lstrip("/") if given.startswith("//") else given
    path = quote(str(environ.get("PATH_INFO", "")).encode("latin-1"), safe="/:@!$&'()*+,;=~")
    query = environ.get("QUERY_STRING")
    return f"{path}?{query}" if query else path


def _headers(environ: Environ) -> Sequence[tuple[str, str]]:
    given = environ.get(RAW_HEADERS)
    if given is not None:
        return tuple(given)
    names = {key: key[5:].replace("_", "-").title() for key in environ if key.startswith("HTTP_")}
    names |= {"CONTENT_TYPE": "Content-Type", "CONTENT_LENGTH": "Content-Length"}
    return tuple((name, environ[key]) for key, name in names.items() if environ.get(key))


def _body(environ: Environ) -> bytes:
    length = str(environ.get("CONTENT_LENGTH") or "0").strip()
    if environ.get("HTTP_TRANSFER_ENCODING") or not (length.isascii() and length.isdecimal()):
        raise UnreadableError
    left = int(length)
    if left > MAX_BODY_BYTES:
        _discard(environ["wsgi.input"], left)
        raise TooLargeError
    return bytes(environ["wsgi.input"].read(left))


def _discard(stream: BinaryIO, left: int) -> None:
    """Read what is not wanted: a caller that still sends would not hear the answer."""
    while left > 0:
        chunk = stream.read(min(left, _CHUNK_BYTES))
        if not chunk:
            return
        left -= len(chunk)
