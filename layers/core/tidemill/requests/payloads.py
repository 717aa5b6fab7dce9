"""What can be stored as a payload: strict JSON's values and MongoDB's, of a bounded size and depth."""

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
"""What BSON needs at least for an element: its type, and the end of its name."""

_LEAVES: Final = frozenset({str, int, bool, NoneType})
"""What most elements are, and nothing has to be looked at of: told by their exact type, which is cheap."""


def fitting(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Return *value*, which can be stored; in which form is added to the validation's context, a list, if there is one.

    Raises:
        UnfitError: It cannot.
    """
    stored = encoded(value, max_bytes=MAX_PAYLOAD_BYTES)
    if info.context is not None:
        info.context.append(stored)
    return value


def storage_problem(value: dict[str, Any], *, max_bytes: int) -> str | None:
    """Return why *value* cannot be stored and told in strict JSON, or ``None`` where it can."""
    try:
        encoded(value, max_bytes=max_bytes)
    except UnfitError as error:
        return str(error)
    return None


class UnfitError(ValueError):
    """A structure that cannot be stored, and why."""


def encoded(value: dict[str, Any], *, max_bytes: int) -> bytes:
    """Return *value* as MongoDB stores it.

    Raises:
        UnfitError: It cannot be stored, or not be told in strict JSON.
    """
    try:
        if not _holds_more(value, max_bytes // MIN_ELEMENT_BYTES):
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


def _holds_more(value: dict[str, Any], limit: int) -> bool:
    """Tell whether *value* has more than *limit* elements, level by level, without unfolding it any further."""
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
