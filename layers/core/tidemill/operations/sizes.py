"""Answers that fit: Lambda returns 6 MB at most, and documents edited by hand may hold more."""

from __future__ import annotations

import json
from typing import Any, Final

from tidemill.classify import bounded

MAX_BYTES: Final = 5_000_000
_LIMITS: Final = (2000, 500, 100, 40)
"""Tried in this order: so many characters are left of a text (of times and
usual ids, all), and so many of the elements of a list."""

_WHOLE: Final = frozenset({"next"})
"""A part of a cursor leads nowhere."""


def bounded_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer*, or what is left of it once it fits; then it says ``truncated``."""
    if _size(answer) <= MAX_BYTES:
        return answer
    shorter = answer
    for limit in _LIMITS:
        cut = {name: _cut(value, limit) for name, value in answer.items() if name not in _WHOLE}
        shorter = answer | cut | {"truncated": True}
        if _size(shorter) <= MAX_BYTES:
            break
    return shorter


def _size(document: object) -> int:
    return len(json.dumps(document))


def _cut(value: Any, limit: int) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            return bounded(value, limit)
        case list():
            # The first says how it began, the newest how it stands.
            kept = value if len(value) <= limit else [value[0], *value[1 - limit :]]
            return [_cut(one, limit) for one in kept]
        case dict():
            return {name: _cut(one, limit) for name, one in value.items()}
        case _:
            return value
