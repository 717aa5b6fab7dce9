"""Why no server was reached, in words of ours: the driver's name its hosts."""

from __future__ import annotations

from typing import Final

_REASONS: Final = (
    ("SSL", "TLS did not come about: see tls in its URI, and the certificates"),
    ("Connection refused", "nobody listens there: is it up, and the port right?"),
    ("Name or service not known", "its name is not known"),
    ("nodename nor servname", "its name is not known"),
    ("No address associated", "its name is not known"),
    ("replica set name", "no member is of the replicaSet in its URI"),
    ("Could not reach any servers", "its members have names that are not reached from here"),
    ("No primary available", "there is no primary now"),
)
"""What of the driver's text tells which reason, the surest first."""

_SILENCE: Final = "no answer: does a firewall or an access list let it?"


def reason(text: str) -> str:
    """Return why a server could not be selected, of which the driver says *text*."""
    return next((told for sign, told in _REASONS if sign in text), _SILENCE)
