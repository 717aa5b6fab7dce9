"""Strict parser of URLs: two parsers must never disagree about the host of an accepted URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from tidemill import Fail

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
_MAX_NAME = 253
_URL = re.compile(r"[!-\[\]-~]+")  # printable ASCII; some clients read a backslash as a slash
_NETLOC = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Parts of a URL.

    Attributes:
        host: A lower-case name without a final dot, or an address in the form of `ipaddress`.
        path: Path and query, as sent in the request line.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str) -> Target:
    """Parse *url*.

    Raises:
        Fail: It is not a plain http(s) URL. The message quotes no part of it, since it may hold secrets.
    """
    if not _URL.fullmatch(url):
        raise _bad_url("may hold printable ASCII only; write a host like xn--bcher-kva.example in that form")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad_url("cannot be read") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise _bad_url("must start with http:// or https://")
    host, port = _parse_netloc(parts.netloc)
    query = f"?{parts.query}" if parts.query else ""
    return Target(
        scheme=parts.scheme,
        host=host,
        port=port or _DEFAULT_PORTS[parts.scheme],
        path=(parts.path or "/") + query,
    )


def canonical_host(text: str) -> str:
    """Return the canonical spelling of a host name or an address.

    Raises:
        ValueError: *text* is neither, or is an address in short, octal, hexadecimal or integer form.
    """
    host = text.lower().removesuffix(".")
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return str(ip_address(host))
    if len(host) > _MAX_NAME or not _NAME.fullmatch(host):
        raise ValueError("not a host name")
    return host


def _parse_netloc(netloc: str) -> tuple[str, int | None]:
    if "@" in netloc:
        raise _bad_url("must not hold credentials; send them in a header")
    match = _NETLOC.fullmatch(netloc)
    if match is None:
        raise _bad_url("has no usable host")
    try:
        host = canonical_host(match["v6"] or match["name"])
    except ValueError:
        raise _bad_url("has a host that is neither a name nor an address in its usual form") from None
    if match["port"] is None:
        return host, None
    port = int(match["port"])
    if not 0 < port <= _MAX_PORT:
        raise _bad_url("has a port outside 1 to 65535")
    return host, port


def _bad_url(problem: str) -> Fail:
    return Fail(f"the url {problem}", code="bad_url")
