"""Bodies: JSON as strict as it is, no name twice, numbers that can be stored."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from tidemill.gateway.answers import HttpError

MAX_BODY_BYTES: Final = 4 * 1024 * 1024


def body_text(event: Mapping[str, Any]) -> str:
    """Return the body as text.

    Raises:
        HttpError: 400 where there is none, or it is no UTF-8, 413 where it is too large.
    """
    body = event.get("body")
    if not isinstance(body, str) or not body.strip():
        raise HttpError(400, "invalid_json", "the body is empty")
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            raise HttpError(400, "invalid_body", "the body is not UTF-8 text in base64") from None
    if len(body) > MAX_BODY_BYTES or len(body.encode("utf-8", "surrogatepass")) > MAX_BODY_BYTES:
        raise HttpError(413, "too_large", f"the body must not be larger than {MAX_BODY_BYTES // 1024**2} MB")
    if body.startswith("\ufeff"):
        raise HttpError(400, "invalid_json", "the body starts with a byte order mark")
    return body


def json_value(text: str) -> dict[str, Any]:
    """Return the JSON object that *text* is.

    Raises:
        HttpError: 400: it is none, or holds what JSON does not know or MongoDB cannot store.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_storable
        )
    except RecursionError:
        raise HttpError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as error:
        known = str(error) if isinstance(error, _UnfitError) else "the body is not valid JSON"
        raise HttpError(400, "invalid_json", known) from None
    if not isinstance(value, dict):
        raise HttpError(400, "invalid_json", "the body must be a JSON object")
    return value


class _UnfitError(ValueError):
    """JSON that Python would read and we do not take."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _UnfitError("the body has a name twice in one object")
    return value


def _no_constant(_: str) -> float:
    raise _UnfitError("the body holds NaN or Infinity, which are not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _UnfitError("the body holds a number that is too large")
    return number


def _storable(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:  # noqa: PLR2004 - digits and sign of 64 bits
        raise _UnfitError("the body holds a whole number beyond 64 bits")
    return int(digits)
