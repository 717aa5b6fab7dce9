"""The codes of errors: which there are of each status, and what each means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[int, Mapping[str, str]]] = {
    400: {
        "invalid_json": "the body is empty or no JSON object, has a name twice, or a number beyond 64 bits",
        "invalid_body": "the body is no UTF-8",
        "invalid_key": "the Idempotency-Key is empty or too long, or there are two",
        "request_refused": "it does not get past the gateway",
    },
    403: {"forbidden": "send a valid API key in the header x-api-key", "request_refused": "the gateway lets it not in"},
    404: {"not_found": "there is no such task, it is another API key's, or its retention is over"},
    409: {"key_in_use": "an idempotency key was used with another request"},
    413: {"too_large": "the body is larger than 4 MB"},
    415: {
        "unsupported_type": "the body is not called application/json, or not in UTF-8",
        "unsupported_encoding": "the body is compressed",
    },
    422: {"not_allowed": "it can be read and is not allowed; `details` names each field"},
    429: {"throttled": "too many requests: slow down"},
    503: {
        "unavailable": "the database does not answer",
        "misconfigured": "the queue is not set up: tell its operator",
    },
    500: {"internal": "a failure on our side"},
}
"""What a caller over HTTP may get to see, API Gateway's own answers included; any 5xx but 503 has the codes of 500."""


def listed(status: int) -> str:
    """Return the codes of *status* and what they mean, as a Markdown sentence."""
    return "; ".join(f"`{code}`: {meaning}" for code, meaning in CODES[status].items()) + "."


def every_code() -> list[str]:
    """Return all codes, sorted."""
    return sorted({code for codes in CODES.values() for code in codes})
