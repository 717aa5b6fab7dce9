"""Addresses that no webhook may reach, however they are written and whoever leads there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

from tasks._egress import Egress, is_public, parse_url
from tidemill import Fail
from tools.chaos.found import Found

PUBLIC: Final = "93.184.216.34"
KIND: Final = "addresses that no webhook may reach"
NOT_PUBLIC: Final = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "169.254.169.254/32", "127.0.0.1/32"),
    )
)
PREFIXES: Final = ("::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::", "64:ff9b:1:ffff::")
"""What an IPv4 address can be the end of: mapped, compatible, translated, NAT64 of the Internet and of a network."""

V6: Final = ("::", "::1", "fe80::1", "fe80::1%1", "fd00:ec2::254", "fc00::1", "fec0::1", "ff02::1", "2001::1", "100::1")
_FULL_WIDTH: Final = {ord(digit): 0xFF10 + int(digit) for digit in "0123456789"} | {ord("."): 0x3002}


def attack(rng: random.Random, *, rounds: int) -> Found:
    """Try *rounds* addresses, each in all its spellings, in a URL and as the answer of a name server."""
    found = Found()
    for _ in range(rounds):
        network = rng.choice(NOT_PUBLIC)
        address = IPv4Address(rng.randrange(int(network[0]), int(network[-1]) + 1))
        for host in _spellings(address, rng):
            found.faults[KIND] += 1
            found.broken += _reached(f"http://{host}/", answers=[PUBLIC])
            found.broken += _reached(f"https://{host}:8443/a?b", answers=[PUBLIC])
        for answer in (str(address), *map(str, _embedded(address, rng)), *V6):
            found.faults[KIND] += 1
            found.broken += _reached("http://hooks.example/", answers=[PUBLIC, answer])
            found.broken += _reached("http://hooks.example/", answers=[answer])
    found.broken += _disagreements(rng, rounds=rounds)
    return found


def _reached(url: str, *, answers: list[str]) -> Iterator[str]:
    try:
        route = Egress(resolve=lambda _: answers).route(parse_url(url), timeout=5)
    except (Fail, OSError):
        return
    yield f"{url} leads to {route.addresses}, where {answers} were told"


def _spellings(address: IPv4Address, rng: random.Random) -> Iterator[str]:
    """Yield how it may be written as a host, by those who know how hosts are read elsewhere."""
    number, octets = int(address), address.packed
    yield from (str(address), f"{address}.", f"{number}", f"{number:#x}", f"{number:#o}".replace("o", ""))
    yield from (".".join(f"{one:#x}" for one in octets), ".".join(f"0{one:o}" for one in octets))
    yield from (f"{octets[0]}.{number & 0xFFFFFF}", f"{octets[0]}.{octets[1]}.{number & 0xFFFF}")
    yield from (
        str(address).translate(_FULL_WIDTH),
        str(address).replace(".", "%2e"),
        str(address).replace(".", "\u3002"),
    )
    yield from (f"{PUBLIC}@{address}", f"user:{PUBLIC}@{address}", f"{address}#@{PUBLIC}", f"{address}\\@{PUBLIC}")
    yield from (f"{address}\t", f"{address}\r\nHost: {PUBLIC}", f" {address}", f"{address}\x00.{PUBLIC}")
    yield from (f"[{one}]" for one in (*_embedded(address, rng), *V6))


def _embedded(address: IPv4Address, rng: random.Random) -> Iterator[IPv6Address]:
    """Yield IPv6 addresses that stand for it."""
    for prefix in PREFIXES:
        yield IPv6Address(int(IPv6Address(prefix)) | int(address))
    yield IPv6Address(0x2002 << 112 | int(address) << 80 | rng.getrandbits(80))  # 6to4
    yield IPv6Address(0x2001_0000 << 96 | rng.getrandbits(64) << 32 | (int(address) ^ 0xFFFF_FFFF))  # Teredo


def _disagreements(rng: random.Random, *, rounds: int) -> Iterator[str]:
    """Yield what is public to the guard and not to Python, of addresses from anywhere."""
    for _ in range(rounds * 10):
        address = rng.choice((IPv4Address(rng.getrandbits(32)), IPv6Address(rng.getrandbits(128))))
        if is_public(address) and (not address.is_global or address.is_multicast):
            yield f"{address} is public to the guard"
