"""Words for people: of times, of spans of time, of what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_LONGEST: Final = 100
_CLOSE: Final = 0.7
_MINUTE: Final = timedelta(minutes=1)
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def guess(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that says *word* is unknown: which of *known* it may stand for, if any is close."""
    close = difflib.get_close_matches(word[:_LONGEST], [one for one in known if one != word], n=1, cutoff=_CLOSE)
    return f", did you mean {close[0]}?" if close else ""


def moment(at: datetime, *, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return a time in UTC as people read it; the zone is left to the label."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec=timespec)


def moment_from(at: datetime, *, now: datetime) -> str:
    """Return a time in UTC, and how far from *now* it is."""
    distance = f"in {span(at - now)}" if at > now else f"{span(now - at)} ago"
    return f"{moment(at)} UTC ({distance})"


def stamp(at: datetime | None) -> str | None:
    """Return a time as JSON holds it."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(length: timedelta) -> str:
    """Return a length of time in its two largest units, below a minute with a decimal: 250ms, 4.2s, 5m 3s, 2d 4h."""
    if length < timedelta(seconds=1):
        return f"{round(length / timedelta(milliseconds=1))}ms" if length else "0s"
    if round(length.total_seconds(), 1) < _MINUTE.total_seconds():
        return f"{round(length.total_seconds(), 1):g}s"
    parts, left = [], round(length.total_seconds())
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)
