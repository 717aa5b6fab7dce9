"""Whether a payload is what a test expects of it, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tidemill.clock import truncated


def fits(expected: Any, found: Any) -> bool:  # noqa: ANN401 - payloads hold anything
    """Tell whether *found*, as the database returned it, is what is *expected*, at least.

    Objects may hold more than is expected of them. Lists may not, and a tuple is one. A time is compared as it is
    stored: in whole milliseconds, and in UTC where it had no time zone. Anything else is asked whether it is equal.
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(key in found and fits(value, found[key]) for key, value in expected.items())
    if isinstance(expected, list | tuple) and isinstance(found, list):
        return len(expected) == len(found) and all(map(fits, expected, found))
    if isinstance(expected, datetime):
        aware = expected if expected.utcoffset() is not None else expected.replace(tzinfo=UTC)
        return bool(truncated(aware) == found)
    return bool(expected == found)
