"""Scan of a queue: the start of the next read of due tasks, and its width; the reads of the claim index.

A scan reads one lane, or two lanes in one order. An index keeps the entries of recently claimed tasks for minutes, and
stepping over them costs as much as over live entries. A scan therefore starts behind the last key that it took. Tasks
that become due before that key are found by a full look from the head, which the owner of the scan takes regularly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from tidemill import indexes
from tidemill.documents import LENIENT_OPTIONS, id_key, is_text
from tidemill.model import TaskId
from tidemill.policy.scheduling import Lanes
from tidemill.store.connection import Tasks, translate_errors

FIRST_CONTENDED_WIDTH: Final = 32
"""Width of a window, in batches, after the first tasks lost to other claimers: enough for eight claimers."""

MAX_WIDTH: Final = 128
"""Largest width in batches. Windows of four batches a claimer lose about one id in twenty."""

WIDENING_FACTOR: Final = 3.0
"""Growth of a window, as a multiple of its width, after a claim that lost every task."""

NARROWING_FACTOR: Final = 0.97
"""Factor of the width after a claim that lost nothing: a claimer that is alone soon claims in exact order."""

CONTENDED_FRACTION: Final = 0.05
"""Fraction of lost tasks above which other claimers read the same window."""

MAX_SKIPPED_FRACTION: Final = 1 / 4
"""Largest fraction of the window that a claimer skips after no loss: it separates claimers that run in step."""

HEAD_LOOK_FRACTION: Final = 1 / 8
"""Fraction of full looks that start at the very first task, for any number of claimers."""

QUEUES_PER_ANSWER: Final = 10_000
"""Queues in one answer of the server."""

CLAIM_ORDER: Final = {"priority": -1, "due_at": 1, "_id": 1}
"""Order of claims within a lane, and within lanes that are scanned together."""

_TIME_TYPES: Final = (datetime, DatetimeMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Key of the claim index, below its lane."""

    priority: int | float
    due_at: Any
    id: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Start and width of the next read of one queue's lanes.

    Behind a key the server finds only numeric priorities, and ids of the key's type. A task without a priority is
    therefore found only by a look without a key. Only a look without a key proves that nothing is left.

    Attributes:
        queue: The queue.
        lanes: The lanes, read in one order.
        after: The last key that was taken. ``None`` is a full look from the head.
        head: A key that was just read as the first; a full look starts there.
        width: Size of the window in batches. Above 1 a random part is skipped, so that colliding claimers spread out.
        was_contended: The last claim lost tasks to another claimer.
        passed: Due tasks were skipped.
        size_divisor: Divisor of the size of the next claims. It grows while the server refuses the stamp, until the
            document that cannot be stamped is alone in its claim.
        hopeless: Ids of the documents that cannot be stamped.
    """

    queue: str
    lanes: Lanes
    after: Key | None = None
    head: Key | None = None
    width: float = 1.0
    was_contended: bool = False
    passed: bool = False
    size_divisor: int = 1
    hopeless: tuple[TaskId, ...] = ()

    def from_head(self, head: Key | None = None) -> Scan:
        """Return the scan of a full look. *head* is a key that is known to be first."""
        return replace(self, after=None, head=head, passed=False)


def due_filter(scans: Sequence[Scan], *, now: datetime) -> dict[str, Any]:
    """Return the filter of due tasks behind ``after`` of any of *scans*.

    The alternatives are at the root, each with the whole equality prefix. Only then does the server merge covered
    index scans instead of fetching and sorting. No alternative covers keys before ``after``: to find nothing there,
    the server would step over the entries of all claimed tasks.
    """
    alternatives = [
        alternative
        for scan in scans
        for lane in scan.lanes
        for alternative in _build_alternatives({"status": "pending", "queue": scan.queue, "lane": lane}, scan, now=now)
    ]
    return alternatives[0] if len(alternatives) == 1 else {"$or": alternatives}


def find_due_keys(tasks: Tasks, scan: Scan, *, limit: int, now: datetime, skip: int = 0) -> list[dict[str, Any]]:
    """Return ``_id, lane, priority, due_at`` of the due tasks after the first *skip*.

    The read is covered by the index, at one key a task.
    """
    with translate_errors():
        found = tasks.with_options(codec_options=LENIENT_OPTIONS).find(
            due_filter([scan], now=now), {"_id": 1, "lane": 1, "priority": 1, "due_at": 1}, hint=indexes.CLAIM
        )
        keys = list(found.sort(CLAIM_ORDER).skip(skip).limit(limit).batch_size(limit + 1))
    for key in keys:
        if not is_text(key["lane"]):  # an array, matched by one of its elements
            key["lane"] = next((lane for lane in scan.lanes if lane in key["lane"]), scan.lanes[0])
    return keys


def find_first_due(
    tasks: Tasks, queues: Sequence[str], *, lanes: Lanes, without: Sequence[TaskId], now: datetime
) -> dict[str, Any] | None:
    """Return ``_id, queue, lane, priority, due_at`` of a task of *queues* that is first in one of *lanes*.

    Ids in *without* are left out. ``None``: nothing else is due.
    """
    scans = [Scan(queue=queue, lanes=(lane,)) for queue in queues for lane in lanes]
    reach, avoided_keys = 1 + len(without), set(map(id_key, without))
    with translate_errors():
        keys = tasks.with_options(codec_options=LENIENT_OPTIONS).find(
            due_filter(scans, now=now),
            {"_id": 1, "queue": 1, "lane": 1, "priority": 1, "due_at": 1},
            hint=indexes.CLAIM,
        )
        found = keys.limit(reach).batch_size(reach + 1)
        return next((key for key in found if id_key(key["_id"]) not in avoided_keys), None)


def list_queues(tasks: Tasks) -> list[Any]:
    """Return the distinct queues of pending tasks. A value that is not text belongs to a document to adopt."""
    return [group["_id"] for group in _aggregate_pending(tasks, {"$group": {"_id": "$queue"}})]


def list_heads(tasks: Tasks) -> list[dict[str, Any]]:
    """Return ``queue, lane, priority, due_at, _id`` of the first pending task of each queue, due or not.

    With two lanes it is the first task of the lane that sorts first. It costs as much as `list_queues`: the server
    reads the first index key of each queue.
    """
    key = {"lane": 1, "priority": -1, "due_at": 1, "_id": 1}
    first = {name: {"$first": f"${name}"} for name in key if name != "_id"} | {"id": {"$first": "$_id"}}
    sort, group = {"$sort": {"status": 1, "queue": 1, **key}}, {"$group": {"_id": "$queue", **first}}
    heads = _aggregate_pending(tasks, sort, group)
    return [{"queue": head.pop("_id"), "_id": head.pop("id", None), **head} for head in heads]


def advance_scan(scan: Scan, keys: Sequence[dict[str, Any]]) -> Scan:
    """Return the scan behind *keys*, which were taken in order and without a gap."""
    for document in reversed(keys):
        key = read_key(document)
        if key is not None:
            return replace(scan, after=key, head=None)
    return scan


def draw_skip(scan: Scan, *, limit: int, draw: float) -> int:
    """Return the number of due tasks to skip before taking *limit*; 0 if no other claimer is at work.

    *draw* is a number in [0, 1). After a loss the skip is uniform over the window. Otherwise a full look stays near
    the head in most cases, so that some claimer soon finds the first tasks.
    """
    room = (scan.width - 1) * limit
    if scan.after is None and draw < HEAD_LOOK_FRACTION:
        return 0
    if scan.was_contended:
        return int(room * draw)
    return int(room * draw**2) if scan.after is None else int(room * MAX_SKIPPED_FRACTION * draw)


def adjust_width(scan: Scan, *, tried: int, lost: int) -> Scan:
    """Return the scan with its width after *lost* of *tried* tasks: it widens at once and narrows slowly."""
    if lost > CONTENDED_FRACTION * tried:
        wider = scan.width * (1 + WIDENING_FACTOR * lost / tried)
        return replace(scan, width=min(max(wider, FIRST_CONTENDED_WIDTH), MAX_WIDTH), was_contended=True)
    return replace(scan, width=max(NARROWING_FACTOR * scan.width, 1.0), was_contended=False)


def read_key(document: Mapping[str, Any]) -> Key | None:
    """Return the key of a task, or ``None`` if no scan can start there. *document* needs only the fields of the key.

    The server compares values of one type only: behind a due time that is text, it finds no dates.
    """
    priority, due_at = document.get("priority"), document.get("due_at")
    if not isinstance(priority, int | float) or isinstance(priority, bool):
        return None
    return Key(priority=priority, due_at=due_at, id=document["_id"]) if isinstance(due_at, _TIME_TYPES) else None


def _aggregate_pending(tasks: Tasks, *stages: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the groups of pending tasks that *stages* make, read by the claim index."""
    lenient, pending = tasks.with_options(codec_options=LENIENT_OPTIONS), {"$match": {"status": "pending"}}
    with translate_errors():
        return list(lenient.aggregate([pending, *stages], hint=indexes.CLAIM, batchSize=QUEUES_PER_ANSWER))


def _build_alternatives(lane: dict[str, Any], scan: Scan, *, now: datetime) -> list[dict[str, Any]]:
    start = scan.after or scan.head
    if start is None:
        return [lane | {"due_at": {"$lte": now}}]
    behind = "$gte" if scan.after is None else "$gt"
    at: dict[str, Any] = {"$eq": start.due_at, "$lte": now}  # the first key need not be due yet
    return [
        lane | {"priority": start.priority, "due_at": at, "_id": {behind: start.id}},
        lane | {"priority": start.priority, "due_at": {"$gt": start.due_at, "$lte": now}},
        lane | {"priority": {"$lt": start.priority}, "due_at": {"$lte": now}},
    ]
