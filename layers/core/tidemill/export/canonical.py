"""Canonical Extended JSON, written as UTF-8 piece by piece: as text it may take four times the memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

from bson import json_util

_CANONICAL: Final = json_util.CANONICAL_JSON_OPTIONS


def canonical(document: dict[str, Any]) -> bytes:
    """Return *document* as canonical Extended JSON; what is no ASCII stays as it is."""
    text = io.BytesIO()
    _write(document, lambda part: text.write(part.encode()))
    return text.getvalue()


def _write(value: Any, add: Callable[[str], object]) -> None:  # noqa: ANN401 - whatever BSON has
    if type(value) is str:  # JavaScript is an heir of it
        add(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, dict):
        before = "{"
        for name, one in value.items():
            add(f"{before}{json.dumps(name, ensure_ascii=False)}:")
            _write(one, add)
            before = ","
        add("}" if value else "{}")
    elif isinstance(value, list):
        before = "["
        for one in value:
            add(before)
            _write(one, add)
            before = ","
        add("]" if value else "[]")
    else:
        add(json_util.dumps(value, json_options=_CANONICAL))
