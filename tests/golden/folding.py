"""Values that differ from run to run, folded into names, so that what is left can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode

_HEX: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|[0-9a-f]{32}")
_ID: Final = re.compile(r"\b[0-9a-f]{24}\b")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d(T| )\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?")
_VOLATILE: Final = frozenset(
    {
        "duration_ms",
        "run_ms",
        "backoff_ms",
        "oldest_due_sec",
        "oldest_due_age_sec",
        "oldest_due_age_seconds",
        "run_time_seconds",
    }
    | {"retry_latency_seconds", "lateness_seconds", "clock_skew_seconds", "Timestamp", "due_fresh", "due_retry"}
)
_DATABASE: Final = re.compile(r"\b(?:test|golden)_[0-9a-f]{32}\b")


class Folding:
    """Gives every id and token a name of its own, the same wherever it comes again; or all the same name."""

    def __init__(self, *, is_numbered: bool = True) -> None:
        self._is_numbered = is_numbered
        self._names: dict[str, str] = {}

    def fold(self, value: Any, *, field: str = "") -> Any:
        """Return *value* as JSON, with names in the place of ids, tokens and times."""
        if isinstance(value, RawBSONDocument):
            value = decode(value)
        if isinstance(value, Mapping):
            return {str(name): self.fold(inner, field=str(name)) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            is_set = field == "$in" and all(isinstance(inner, str) for inner in value)
            return [self.fold(inner, field=field) for inner in (sorted(value) if is_set else value)]
        if isinstance(value, str):
            return "<place>" if field == "location" else self.fold_text(value)  # a line of our code
        return self._name("id", str(value)) if isinstance(value, ObjectId) else _folded(value, field=field)

    def fold_text(self, text: str) -> str:
        """Return *text* with names in the place of what differs from run to run."""
        text = _DATABASE.sub("<database>", text)
        text = _HEX.sub(lambda found: self._name("token", found.group()), text)
        text = _ID.sub(lambda found: self._name("id", found.group()), text)
        return _TIME.sub("<time>", text)

    def _name(self, kind: str, value: str) -> str:
        if not self._is_numbered:
            return f"<{kind}>"
        if value not in self._names:
            count = sum(name.startswith(f"<{kind} ") for name in self._names.values())
            self._names[value] = f"<{kind} {count + 1}>"
        return self._names[value]


def _folded(value: Any, *, field: str) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return "<number>" if field in _VOLATILE else int(value) if isinstance(value, int) else value
    return "<time>" if isinstance(value, datetime | DatetimeMS) else f"<{type(value).__name__}>"


def as_lines(value: Any) -> str:
    """Return folded JSON, an entry of the first level a line."""
    if isinstance(value, dict):
        return "".join(f"  {name}: {_compact(inner)}\n" for name, inner in value.items())
    return f"  {_compact(value)}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
