"""What can be stored as a payload: strict JSON's values and MongoDB's, of a bounded size and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson.errors import BSONError

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_DEPTH: Final = 64
MIN_ELEMENT_BYTES: Final = 2
"""What BSON needs at least for an element: its type, and the end of its name."""


def fitting(value: dict[str, Any]) -> dict[str, Any]:
    """Return *value*, which can be stored.

    Raises:
        ValueError: It cannot.
    """
    problem = storage_problem(value, max_bytes=MAX_PAYLOAD_BYTES)
    if problem is not None:
        raise ValueError(problem)
    return value


def storage_problem(value: dict[str, Any], *, max_bytes: int) -> str | None:
    """Return why *value* cannot be stored and told in strict JSON, or ``None`` where it can."""
    too_large = f"must not be larger than {max_bytes // 1024} KiB"
    try:
        if _holds_more(value, max_bytes // MIN_ELEMENT_BYTES):
            return too_large
        return too_large if len(bson.encode(value)) > max_bytes else None
    except _UnfitError as error:
        return str(error)
    except OverflowError:
        return "must not contain a whole number beyond 64 bits"
    except UnicodeEncodeError:
        return "must not contain half a surrogate pair"
    except (BSONError, ValueError, TypeError, RecursionError):
        return "must contain only what MongoDB can store, under keys that are text without NUL"


class _UnfitError(Exception):
    """A structure that cannot be stored. Private: `storage_problem` makes a sentence of it."""


def _holds_more(value: dict[str, Any], limit: int) -> bool:
    """Tell whether *value* has more than *limit* elements, without unfolding it any further."""
    containers: list[tuple[Any, int]] = [(value, 1)]
    while containers:
        container, level = containers.pop()
        if level > MAX_PAYLOAD_DEPTH:
            raise _UnfitError(f"must not nest deeper than {MAX_PAYLOAD_DEPTH} levels")
        for element in container.values() if isinstance(container, Mapping) else container:
            limit -= 1
            if limit < 0:
                return True
            if isinstance(element, Mapping | list | tuple):
                containers.append((element, level + 1))
            elif isinstance(element, float) and not math.isfinite(element):
                raise _UnfitError("must not contain NaN or Infinity")
    return False
