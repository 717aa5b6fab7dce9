"""Where to look for due tasks next: a scan of one lane or of both in one order, reading only live index entries.

An index keeps the entries of recently claimed tasks for minutes, and reading over them costs as much as over
live ones. A scan therefore remembers the last key it took and starts there; what comes up before that key is
seen by a full look from the head, which its owner takes once in a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from tidemill.model import TaskId
from tidemill.selection import Lanes

FIRST_WIDTH: Final = 32
"""How wide a window becomes with the first tasks that others were quicker with: enough for eight claimers."""

MAX_WIDTH: Final = 128
"""Windows of four times as many batches as there are claimers lose about one id in twenty."""

WIDENING: Final = 3.0
"""By how much of itself a window widens for a claim that lost all."""

NARROWING: Final = 0.97
"""What is left of the width after a claim that lost nothing: alone again, a claimer is soon in exact order."""

MANY_LOST: Final = 0.05
"""A part of a claim that shows that others are at work in the same place."""

STEP: Final = 1 / 4
"""How much of the window a claimer that lost nothing may pass over, lest it goes on side by side with another."""

AT_THE_HEAD: Final = 1 / 8
"""The part of full looks that start at the very first task, however many others claim."""

ORDER: Final = {"priority": -1, "due_at": 1, "_id": 1}
"""The order of claims within a lane, and of lanes that are scanned as one."""


_TIMES: Final = (datetime, DatetimeMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the claim index below its lane."""

    priority: int | float
    due_at: Any
    id: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Where the next scan of one queue's lanes starts, and how wide it reads.

    ``after`` is the last key taken; ``None`` is a full look from the head, which starts at ``head`` where somebody has
    just seen that key come first. Behind a key only numbers are found, and ids of its kind: what has no priority is
    not, so that only a look without one tells that nothing is left. ``width`` above 1 passes over a random part of so
    many batches, so that claimers that collide spread out; one that is ``beaten`` has just lost tasks to another, and
    ``passed`` says that due tasks were left behind. ``narrow`` divides the next claims after the server refused a
    stamp, until the one document that cannot be stamped is alone: then it is ``hopeless``.
    """

    queue: str
    lanes: Lanes
    after: Key | None = None
    head: Key | None = None
    width: float = 1.0
    beaten: bool = False
    passed: bool = False
    narrow: int = 1
    hopeless: tuple[TaskId, ...] = ()

    def from_head(self, head: Key | None = None) -> Scan:
        """Return the scan that takes a full look; *head* is known to come first."""
        return replace(self, after=None, head=head, passed=False)


def due_filter(scan: Scan, *, now: datetime) -> dict[str, Any]:
    """Return the filter of what is due and lies behind ``scan.after``.

    The alternatives are at the root, each with the whole equality prefix: only then does the server merge
    covered index scans instead of fetching and sorting. None of them asks for what lies before the key: to find that
    nothing is there, the server would step over all that was.
    """
    return any_of([scan], now=now)


def any_of(scans: Sequence[Scan], *, now: datetime) -> dict[str, Any]:
    """Return the filter of what is due in any of *scans*; see `due_filter`."""
    alternatives = [
        one
        for scan in scans
        for lane in scan.lanes
        for one in _alternatives({"status": "pending", "queue": scan.queue, "lane": lane}, scan, now=now)
    ]
    return alternatives[0] if len(alternatives) == 1 else {"$or": alternatives}


def advanced(scan: Scan, keys: Sequence[dict[str, Any]]) -> Scan:
    """Return the scan behind *keys*, which were taken without a gap, in order."""
    for document in reversed(keys):
        key = key_of(document)
        if key is not None:
            return replace(scan, after=key, head=None)
    return scan


def leap(scan: Scan, *, limit: int, draw: float) -> int:
    """Return how many due tasks to pass over before taking *limit*: none where nobody else claims.

    *draw* is a number in [0, 1). Whoever was beaten goes anywhere in the window. A full look stays near the head more
    often than not: what goes first is to be found soon, if not by all.
    """
    room = (scan.width - 1) * limit
    if scan.after is None and draw < AT_THE_HEAD:
        return 0
    if scan.beaten:
        return int(room * draw)
    return int(room * draw**2) if scan.after is None else int(room * STEP * draw)


def spread(scan: Scan, *, tried: int, lost: int) -> Scan:
    """Return the scan of a claimer that *lost* so many tasks to others: wider at once, and narrower by and by."""
    if lost > MANY_LOST * tried:
        wider = scan.width * (1 + WIDENING * lost / tried)
        return replace(scan, width=min(max(wider, FIRST_WIDTH), MAX_WIDTH), beaten=True)
    return replace(scan, width=max(NARROWING * scan.width, 1.0), beaten=False)


def key_of(document: Mapping[str, Any]) -> Key | None:
    """Return the key of a task, of which no more than this has to have been read; ``None`` if none can start there.

    Comparisons are among values of a kind: behind a time that is text, no time is found.
    """
    priority, due_at = document.get("priority"), document.get("due_at")
    if not isinstance(priority, int | float) or isinstance(priority, bool):
        return None
    return Key(priority=priority, due_at=due_at, id=document["_id"]) if isinstance(due_at, _TIMES) else None


def _alternatives(lane: dict[str, Any], scan: Scan, *, now: datetime) -> list[dict[str, Any]]:
    start = scan.after or scan.head
    if start is None:
        return [lane | {"due_at": {"$lte": now}}]
    behind = "$gte" if scan.after is None else "$gt"
    at: dict[str, Any] = {"$eq": start.due_at, "$lte": now}  # what comes first need not be due yet
    return [
        lane | {"priority": start.priority, "due_at": at, "_id": {behind: start.id}},
        lane | {"priority": start.priority, "due_at": {"$gt": start.due_at, "$lte": now}},
        lane | {"priority": {"$lt": start.priority}, "due_at": {"$lte": now}},
    ]
