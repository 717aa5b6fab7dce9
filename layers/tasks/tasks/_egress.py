"""Target of a request: a URL, parsed strictly, and the addresses it may be sent to.

Two parsers must never disagree about the host of an accepted URL. A name is resolved once and every address of the
answer is checked. The connection uses the checked addresses and never the name, so a name that changes its answer (DNS
rebinding) has no effect.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit

from tidemill import Fail, SettingsError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str], Sequence[str]]
T = TypeVar("T")

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
_MAX_NAME = 253
_URL = re.compile(r"[!-\[\]-~]+")  # printable ASCII; some clients read a backslash as a slash
_NETLOC = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# IANA special-purpose registries, and multicast. Not `is_global`: its answers differ between Python releases.
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local: metadata and credentials in clouds, Lambda's runtime API
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


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


def resolve(host: str) -> list[str]:
    """Resolve *host* with the system's resolver.

    Raises:
        OSError: The name cannot be resolved.
    """
    answer = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A target and its allowed addresses, in the order to try them."""

    target: Target
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """Destinations that a deployment allows.

    Attributes:
        hosts: Exact names and ``*.suffix`` patterns (of any depth, without the suffix itself); none: any host.
        networks: Allowed networks that are not public.
        resolve: Returns the addresses of a name, or raises `OSError`.
    """

    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    resolve: Resolver = resolve

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Egress:
        """Read WEBHOOK_ALLOWED_HOSTS and WEBHOOK_ALLOWED_NETWORKS, both comma-separated.

        Raises:
            SettingsError: One of them cannot be read.
        """
        return cls(
            hosts=_parse_list(environ, "WEBHOOK_ALLOWED_HOSTS", _parse_host_pattern),
            networks=_parse_list(environ, "WEBHOOK_ALLOWED_NETWORKS", ip_network),
        )

    def route(self, target: Target, *, timeout: float) -> Route:
        """Return the addresses to connect to; *timeout* is in seconds.

        Raises:
            Fail: The host, or one of its addresses, is not allowed.
            OSError: The name could not be resolved; a `TimeoutError` if not in time.
        """
        if not self._allows_host(target.host):
            raise Fail(f"{target.host} is not among the allowed hosts", code="refused")
        addresses = tuple(dict.fromkeys(self._look_up(target.host, timeout=timeout)))
        if not addresses:
            raise OSError("no address")
        if not all(self._allows_address(ip_address(address)) for address in addresses):
            raise Fail(f"{target.host} leads to an address that is not allowed", code="refused")
        return Route(target=target, addresses=addresses)

    def _allows_host(self, host: str) -> bool:
        return not self.hosts or any(
            host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern for pattern in self.hosts
        )

    def _allows_address(self, address: Address) -> bool:
        forms = (address, _extract_ipv4(address))
        return is_public(address) or any(form in network for network in self.networks for form in forms)

    def _look_up(self, host: str, *, timeout: float) -> Sequence[str]:
        try:
            return [str(ip_address(host))]
        except ValueError:
            return _resolve_within(timeout, lambda: self.resolve(host))


def is_public(address: Address) -> bool:
    """Return whether *address*, and an IPv4 address inside it, belong to the public Internet."""
    inner = _extract_ipv4(address)
    if isinstance(inner, IPv6Address) and inner not in _GLOBAL_V6:
        return False
    return not any(inner in network for network in _SPECIAL)


def _extract_ipv4(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 address (mapped, 6to4, NAT64), or *address* itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _resolve_within(timeout: float, look_up: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Run *look_up*, which takes no timeout, in a thread; a late thread is abandoned."""
    answer: Future[Sequence[str]] = Future()

    def run() -> None:
        try:
            answer.set_result(look_up())
        except OSError as error:
            answer.set_exception(error)

    Thread(target=run, name="webhook-dns", daemon=True).start()
    return answer.result(timeout)


def _parse_list(environ: Mapping[str, str], name: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    value = environ.get(name, "")
    if not value:
        return ()
    try:
        return tuple(parse(entry.strip()) for entry in value.split(","))
    except ValueError:
        raise SettingsError(f"{name} holds an entry that cannot be read") from None


def _parse_host_pattern(text: str) -> str:
    wildcard = "*." if text.startswith("*.") else ""
    return wildcard + canonical_host(text.removeprefix(wildcard))


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
