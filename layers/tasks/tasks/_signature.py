"""Signature of a delivery by the Standard Webhooks specification (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from tidemill import SettingsError

_VARIABLE = "WEBHOOK_SECRET"
_BASE64 = "whsec_"


def signing_key(environ: Mapping[str, str]) -> bytes | None:
    """Return the key in WEBHOOK_SECRET: ``whsec_`` and base64, or any other text as it is; ``None`` if unset.

    Raises:
        SettingsError: The key cannot be read, or has white space around it.
    """
    secret = environ.get(_VARIABLE, "")
    if not secret:
        return None
    try:
        key = _decode_secret(secret)
    except ValueError:
        raise SettingsError(f"{_VARIABLE} cannot be read: its base64 is not valid") from None
    if not key or secret != secret.strip():
        raise SettingsError(f"{_VARIABLE} is empty or has white space around it")
    return key


def signature(key: bytes, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Return ``v1,`` and the base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``.

    It covers the id, so that a captured delivery cannot be replayed under a new id, and the timestamp, so that it
    cannot be replayed late.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _decode_secret(secret: str) -> bytes:
    if secret.startswith(_BASE64):
        return base64.b64decode(secret.removeprefix(_BASE64), validate=True)
    return secret.encode()
