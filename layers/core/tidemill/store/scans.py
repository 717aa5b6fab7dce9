"""Where to look for due tasks next: a scan of one lane or of both in one order, reading only live index entries.

An index keeps the entries of recently claimed tasks for minutes, and reading over them costs as much as over
live ones. A scan therefore remembers the last key it took and starts there; what comes up before that key is
seen by a full look from the head, which its owner takes once in a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from tidemill.model import TaskId
from tidemill.selection import Lanes

MAX_WIDTH: Final = 8

ORDER: Final = {"priority": -1, "due_at": 1, "_id": 1}
"""The order of claims within a lane, and of lanes that are scanned as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the claim index below its lane."""

    priority: int | float
    due_at: Any
    id: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Where the next scan of one queue's lanes starts, and how wide it reads.

    ``after`` is the last key taken; ``None`` is a full look from the head. ``width`` above 1 takes a random part
    of a window so many times as wide: claimers that collide spread out. ``narrow`` divides the next claims after
    the server refused a stamp, until the one document that cannot be stamped is alone: then it is ``hopeless``.
    """

    queue: str
    lanes: Lanes
    after: Key | None = None
    width: int = 1
    narrow: int = 1
    hopeless: tuple[TaskId, ...] = ()

    def from_head(self) -> Scan:
        """Return the scan that takes a full look."""
        return replace(self, after=None)


def due_filter(scan: Scan, *, now: datetime) -> dict[str, Any]:
    """Return the filter of what is due and lies behind ``scan.after``.

    The alternatives are at the root, each with the whole equality prefix: only then does the server merge
    covered index scans instead of fetching and sorting. None of them asks for what lies before the key: to find that
    nothing is there, the server would step over all that was.
    """
    lanes = [{"status": "pending", "queue": scan.queue, "lane": lane} for lane in scan.lanes]
    alternatives = [one for lane in lanes for one in _alternatives(lane, scan.after, now=now)]
    return alternatives[0] if len(alternatives) == 1 else {"$or": alternatives}


def advanced(scan: Scan, keys: Sequence[dict[str, Any]]) -> Scan:
    """Return the scan behind *keys*, which were taken without a gap, in order."""
    for key in reversed(keys):
        priority = key.get("priority")
        if isinstance(priority, int | float) and not isinstance(priority, bool):
            return replace(scan, after=Key(priority=priority, due_at=key["due_at"], id=key["_id"]))
    return scan


def _alternatives(lane: dict[str, Any], after: Key | None, *, now: datetime) -> list[dict[str, Any]]:
    if after is None:
        return [lane | {"due_at": {"$lte": now}}]
    return [
        lane | {"priority": after.priority, "due_at": after.due_at, "_id": {"$gt": after.id}},
        lane | {"priority": after.priority, "due_at": {"$gt": after.due_at, "$lte": now}},
        lane | {"priority": {"$lt": after.priority}, "due_at": {"$lte": now}},
    ]
