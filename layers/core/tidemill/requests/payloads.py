"""Validation of payloads and results: values of strict JSON and MongoDB, bounded in size and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

import bson
from bson.errors import BSONError
from pydantic import ValidationInfo

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_DEPTH: Final = 64
MIN_ELEMENT_BYTES: Final = 2
"""Smallest element of BSON: its type, and the NUL behind an empty name."""

_LEAVES: Final = frozenset({str, int, bool, NoneType})
"""Types of most elements; they need no further check, and comparing exact types is cheap."""


def require_storable(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Return *value* if it can be stored, and append its BSON to the validation context, if that is a list.

    Raises:
        UnfitError: *value* cannot be stored.
    """
    stored = encode_payload(value, max_bytes=MAX_PAYLOAD_BYTES)
    if info.context is not None:
        info.context.append(stored)
    return value


def find_storage_problem(value: dict[str, Any], *, max_bytes: int) -> str | None:
    """Return the reason why *value* cannot be stored or written as strict JSON, or ``None`` if it can."""
    try:
        encode_payload(value, max_bytes=max_bytes)
    except UnfitError as error:
        return str(error)
    return None


class UnfitError(ValueError):
    """A value cannot be stored; the message is the reason."""


def encode_payload(value: dict[str, Any], *, max_bytes: int) -> bytes:
    """Return *value* as MongoDB stores it.

    Raises:
        UnfitError: *value* cannot be stored, or cannot be written as strict JSON.
    """
    try:
        if not _has_more_elements(value, max_bytes // MIN_ELEMENT_BYTES):
            stored = bson.encode(value)
            if len(stored) <= max_bytes:
                return stored
    except UnfitError:
        raise
    except OverflowError:
        raise UnfitError("must not contain a whole number beyond 64 bits") from None
    except UnicodeEncodeError:
        raise UnfitError("must not contain half a surrogate pair") from None
    except (BSONError, ValueError, TypeError, RecursionError):
        raise UnfitError("must contain only what MongoDB can store, under keys that are text without NUL") from None
    raise UnfitError(f"must not be larger than {max_bytes // 1024} KiB")


def _has_more_elements(value: dict[str, Any], limit: int) -> bool:
    """Return True if *value* has more than *limit* elements.

    The count goes level by level and stops at the limit: a value that contains itself many times stays cheap.

    Raises:
        UnfitError: *value* nests too deep, or contains NaN or Infinity.
    """
    containers: list[Any] = [value]
    for _ in range(MAX_PAYLOAD_DEPTH):
        inner: list[Any] = []
        for container in containers:
            limit -= len(container)
            if limit < 0:
                return True
            for element in container if isinstance(container, (list, tuple)) else container.values():
                if type(element) in _LEAVES:
                    continue
                if isinstance(element, (dict, list, tuple, Mapping)):
                    inner.append(element)
                elif isinstance(element, float) and not math.isfinite(element):
                    raise UnfitError("must not contain NaN or Infinity")
        if not inner:
            return False
        containers = inner
    raise UnfitError(f"must not nest deeper than {MAX_PAYLOAD_DEPTH} levels")
