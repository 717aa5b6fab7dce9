"""Where to look for due tasks next: a scan of one lane, and the filter that makes it read only live index entries.

An index keeps the entries of recently claimed tasks for minutes, and reading over them costs as much as over
live ones. A scan therefore remembers, for each priority, the last key it took, and asks for what lies behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from tidemill.model import Lane

MAX_WIDTH: Final = 8
MAX_PRIORITIES: Final = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The last key that was taken of one priority: all before it is taken, too."""

    priority: int | float
    due_at: Any
    id: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Where the next scan of one lane of one queue starts, and how wide it reads.

    ``passed`` holds the keys taken, highest priority first; empty is a full look from the head. ``width`` above 1
    takes a random part of a window so many times as wide: claimers that collide spread out. ``narrow`` divides
    the next claims after the server refused a stamp, until the one document that cannot be stamped is alone.
    """

    queue: str
    lane: Lane
    passed: tuple[Passed, ...] = ()
    width: int = 1
    narrow: int = 1

    def from_head(self) -> Scan:
        """Return the scan that looks at everything again: what was put back behind it is seen only so."""
        return replace(self, passed=())


ORDER: Final = {"priority": -1, "due_at": 1, "_id": 1}
"""The order of claims within a lane."""


def due_filter(scan: Scan, *, now: datetime) -> dict[str, Any]:
    """Return the filter of what is due and not passed.

    The alternatives are at the root, each with the whole equality prefix: only then does the server merge
    covered index scans instead of fetching (measured on 6.0).
    """
    lane = {"status": "pending", "queue": scan.queue, "lane": scan.lane}
    if not scan.passed:
        return lane | {"due_at": {"$lte": now}}
    return {"$or": [lane | part for part in _not_passed(scan.passed, now=now)]}


def advanced(scan: Scan, keys: Sequence[dict[str, Any]]) -> Scan:
    """Return the scan behind *keys*, which were taken without a gap, in order."""
    last = {one.priority: one for one in scan.passed}
    for key in keys:
        priority = key.get("priority")
        if isinstance(priority, int | float) and not isinstance(priority, bool):
            last[priority] = Passed(priority=priority, due_at=key["due_at"], id=key["_id"])
    if len(last) > MAX_PRIORITIES:
        return scan.from_head()
    return replace(scan, passed=tuple(sorted(last.values(), key=lambda one: -one.priority)))


def _not_passed(passed: Sequence[Passed], *, now: datetime) -> Iterator[dict[str, Any]]:
    above: dict[str, Any] = {}
    for one in passed:
        yield {"priority": {"$gt": one.priority, **above}, "due_at": {"$lte": now}}
        yield {"priority": one.priority, "due_at": one.due_at, "_id": {"$gt": one.id}}
        yield {"priority": one.priority, "due_at": {"$gt": one.due_at, "$lte": now}}
        above = {"$lt": one.priority}
    yield {"priority": above, "due_at": {"$lte": now}}
