"""Claims of due tasks, and the reads that choose the next queue and task.

A claim reads the next ids in order, stamps the tasks that are still free with a new token, and reads them back. It
takes three round trips for any number of tasks, and a few more after a leap beyond the last due task.

The driver does not retry a multi-update, and a multi-update can fail half-way. After any error the read-back
therefore decides which tasks were claimed. A token is never used for a second stamp.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError, WriteError

from tidemill import indexes
from tidemill.documents import LENIENT_OPTIONS, MAX_ATTEMPTS, decode, id_key, is_text, read_task
from tidemill.model import EARLIEST, Lease, Malformed, Task, TaskId
from tidemill.policy.scheduling import Lanes
from tidemill.store.connection import Tasks, majority_read, translate_errors
from tidemill.store.scan import CLAIM_ORDER, Scan, adjust_width, advance_scan, draw_skip, due_filter

COUNTABLE_ATTEMPTS: Final[dict[str, Any]] = {"$gte": 0, "$lt": MAX_ATTEMPTS, "$not": {"$type": "array"}}
"""Filter on ``attempts`` that can be incremented. A single document with another value would end the whole stamp."""

MAX_RELATIVE_LEAP: Final = 1 / 4
"""Largest fraction of a leap beyond the last task that the next leap may have."""

QUEUES_PER_ANSWER: Final = 10_000
"""Queues in one answer of the server."""

_EMPTY_SCAN: Final = Scan(queue="", lanes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Result of one claim.

    Attributes:
        scan: The scan of the next claim.
        tasks: Tasks under the lease, in the order of the queue.
        retries: Ids of the tasks that were read in the lane ``retry``.
        unclaimable: Free documents that no claim can ever take.
        scanned: Number of ids that were read and tried.
        lost: Number of ids that another claimer took first.
        denied: Number of retries that were read but not granted.
        dry: All ids that were found were tried, and nothing else is due.
        error: The error that interrupted the stamp. *tasks* is right nevertheless, unless ``unresolved``.
        unresolved: The read-back failed, so unknown tasks may carry the token.
        look_sec: Time to read the ids.
    """

    scan: Scan
    tasks: tuple[Task | Malformed, ...] = ()
    retries: tuple[TaskId, ...] = ()
    unclaimable: tuple[Malformed, ...] = ()
    scanned: int = 0
    lost: int = 0
    denied: int = 0
    dry: bool = False
    error: PyMongoError | None = None
    unresolved: bool = False
    look_sec: float = 0.0

    @property
    def is_unconfirmed(self) -> bool:
        """True if unknown tasks may carry the token: a stamp can take effect after the read-back."""
        return self.unresolved or not (self.error is None or isinstance(self.error, OperationFailure))


def claim(
    tasks: Tasks,
    scan: Scan,
    *,
    limit: int,
    lease: Lease,
    now: datetime,
    rng: random.Random,
    grant: Callable[[int], int] = lambda wanted: wanted,
    without: Sequence[TaskId] = (),
    monotonic: Callable[[], float] = time.monotonic,
) -> Claim:
    """Take up to *limit* due tasks of the scan's lanes under *lease*, whose token must be new.

    *grant* receives the number of retries that were read and returns the number that may be taken. It is called
    before any task is taken; its exceptions are passed on, with nothing changed. Ids in *without* are left alone.

    Raises:
        UnavailableError: The ids could not be read; nothing was changed.
        MissingIndexError: The claim index does not exist.
    """
    limit = max(limit // scan.size_divisor, 1)
    started = monotonic()
    look = _read_next_due(tasks, scan, limit=limit, avoided=[*scan.hopeless, *without], now=now, rng=rng)
    look_sec = monotonic() - started
    chosen, denied = _choose_granted(look.keys, grant)
    if not chosen:
        scan = replace(scan, width=look.scan.width, passed=scan.passed and bool(look.keys))
        return Claim(scan=scan, dry=look.dry and not denied, denied=denied, look_sec=look_sec)
    taken = take(tasks, [key["_id"] for key in chosen], lease=lease, now=now, where=_build_lane_filter(chosen))
    retry_keys = {id_key(key["_id"]) for key in chosen if key["lane"] == "retry"}
    return replace(
        taken,
        retries=tuple(task.id for task in taken.tasks if id_key(task.id) in retry_keys),
        scan=_advance_scan(look, chosen, taken),
        dry=look.dry and taken.error is None and not denied,
        denied=denied,
        look_sec=look_sec,
        unclaimable=taken.unclaimable + _find_unstampable(chosen, taken),
    )


def take(
    tasks: Tasks,
    ids: list[TaskId],
    *,
    lease: Lease,
    now: datetime,
    where: dict[str, Any] | None = None,
) -> Claim:
    """Stamp the tasks of *ids* that are free, due and match *where* with *lease*, and read them back.

    An error of the driver is returned in the claim, not raised.
    """
    is_free = {"status": "pending", "due_at": {"$lte": now}, "attempts": COUNTABLE_ATTEMPTS}
    free = {"_id": {"$in": ids}} | (where or {}) | is_free
    stored = {"token": lease.token, "owner": lease.owner, "expires_at": lease.expires_at}
    stamp = {"$set": {"status": "processing", "lease": stored, "updated_at": now}, "$inc": {"attempts": 1}}
    error: PyMongoError | None = None
    stamped = -1
    try:
        stamped = tasks.update_many(free, stamp, hint=indexes.BY_ID).matched_count
    except PyMongoError as interrupted:
        error = interrupted
    with_token: dict[str, Any] = {"lease.token": lease.token}
    either = {"$or": [with_token, {"status": "pending"}]}
    where = {"_id": {"$in": ids}, **(with_token if stamped == len(ids) else either)}
    try:
        found = _read_back(tasks, where, size=len(ids) + 1, is_confirmed=error is None)
    except PyMongoError as read_error:
        return Claim(scan=_EMPTY_SCAN, scanned=len(ids), error=error or read_error, unresolved=True)
    return _sort_claimed(found, lease=lease, tried=len(ids), error=error)


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
    with translate_errors():
        found = tasks.with_options(codec_options=LENIENT_OPTIONS).aggregate(
            [{"$match": {"status": "pending"}}, {"$group": {"_id": "$queue"}}],
            hint=indexes.CLAIM,
            batchSize=QUEUES_PER_ANSWER,
        )
        return [group["_id"] for group in found]


def list_heads(tasks: Tasks) -> list[dict[str, Any]]:
    """Return ``queue, lane, priority, due_at, _id`` of the first pending task of each queue, due or not.

    With two lanes it is the first task of the lane that sorts first. It costs as much as `list_queues`: the server
    reads the first index key of each queue.
    """
    key = {"lane": 1, "priority": -1, "due_at": 1, "_id": 1}
    first = {name: {"$first": f"${name}"} for name in key if name != "_id"} | {"id": {"$first": "$_id"}}
    with translate_errors():
        found = tasks.with_options(codec_options=LENIENT_OPTIONS).aggregate(
            [
                {"$match": {"status": "pending"}},
                {"$sort": {"status": 1, "queue": 1, **key}},
                {"$group": {"_id": "$queue", **first}},
            ],
            hint=indexes.CLAIM,
            batchSize=QUEUES_PER_ANSWER,
        )
        return [{"queue": head.pop("_id"), "_id": head.pop("id", None), **head} for head in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class _DueKeys:
    """Result of one read: *keys* of due tasks behind ``scan``. *dry* if nothing else is due."""

    scan: Scan
    keys: list[dict[str, Any]]
    dry: bool


def _read_next_due(
    tasks: Tasks, scan: Scan, *, limit: int, avoided: Sequence[TaskId], now: datetime, rng: random.Random
) -> _DueKeys:
    """Read up to *limit* keys.

    After a leap beyond the last key, leaps get shorter. The last read starts at the head.
    """
    reach, avoided_keys = limit + len(avoided), set(map(id_key, avoided))
    skip = draw_skip(scan, limit=limit, draw=rng.random())
    while True:
        found = find_due_keys(tasks, scan, limit=reach, skip=skip, now=now)
        keys = [key for key in found if id_key(key["_id"]) not in avoided_keys]
        passed = scan.passed or skip > 0
        if keys or not passed:
            dry = not passed and len(found) < reach and len(keys) <= limit
            return _DueKeys(scan=replace(scan, passed=passed), keys=keys[:limit], dry=dry)
        if skip:
            scan, skip = replace(scan, width=max(skip / limit, 1.0)), int(skip * MAX_RELATIVE_LEAP * rng.random())
        else:
            scan = scan.from_head()
            skip = draw_skip(scan, limit=limit, draw=rng.random())


def _choose_granted(keys: list[dict[str, Any]], grant: Callable[[int], int]) -> tuple[list[dict[str, Any]], int]:
    """Return the *keys* that may be taken, and the number of retries that may not. The last retries are denied."""
    retries = [key for key in keys if key["lane"] == "retry"]
    denied = retries[grant(len(retries)) :] if retries else []
    denied_keys = set(map(id, denied))
    return [key for key in keys if id(key) not in denied_keys], len(denied)


def _build_lane_filter(keys: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the filter of tasks that are still in the lane they were read in: the grant is for that lane."""
    lanes = sorted({key["lane"] for key in keys})
    if len(lanes) == 1:
        return {"lane": lanes[0]}
    return {
        "$or": [{"lane": lane, "_id": {"$in": [key["_id"] for key in keys if key["lane"] == lane]}} for lane in lanes]
    }


def _advance_scan(look: _DueKeys, chosen: list[dict[str, Any]], taken: Claim) -> Scan:
    scan = look.scan
    if isinstance(taken.error, WriteError) and len(chosen) > 1:
        return replace(scan, size_divisor=scan.size_divisor * 2)
    if taken.error is not None and not isinstance(taken.error, WriteError):
        return scan
    without_gap = [key for key, picked in zip(look.keys, chosen, strict=False) if key is picked]
    hopeless = scan.hopeless + tuple(document.id for document in _find_unstampable(chosen, taken))
    scan = adjust_width(advance_scan(scan, without_gap), tried=len(chosen), lost=taken.lost)
    return replace(scan, size_divisor=max(scan.size_divisor // 2, 1), hopeless=hopeless)


def _find_unstampable(chosen: list[dict[str, Any]], taken: Claim) -> tuple[Malformed, ...]:
    if isinstance(taken.error, WriteError) and len(chosen) == 1 and not taken.tasks:
        return (Malformed(id=chosen[0]["_id"], problem="cannot be stamped with a lease", lease=None),)
    return ()


def _read_back(tasks: Tasks, where: dict[str, Any], *, size: int, is_confirmed: bool) -> list[RawBSONDocument]:
    """Return the matching documents. Unless the stamp *is_confirmed*, read only what a majority has."""
    if is_confirmed:
        return list(tasks.find(where, batch_size=size))
    with majority_read(tasks) as (majority_tasks, session):
        return list(majority_tasks.find(where, batch_size=size, session=session))


def _sort_claimed(found: list[RawBSONDocument], *, lease: Lease, tried: int, error: PyMongoError | None) -> Claim:
    claimed: list[Task | Malformed] = []
    unclaimable: list[Malformed] = []
    for raw in found:
        task = read_task(raw)
        if task.lease is not None and task.lease.token == lease.token:
            claimed.append(task)
        elif isinstance(task, Malformed) and not _is_countable(decode(raw).get("attempts")):
            unclaimable.append(task)
    return Claim(
        scan=_EMPTY_SCAN,
        tasks=tuple(sorted(claimed, key=_get_order)),
        unclaimable=tuple(unclaimable),
        scanned=tried,
        lost=tried - len(found),
        error=error,
    )


def _get_order(task: Task | Malformed) -> tuple[int, datetime]:
    return (-task.priority, task.due_at) if isinstance(task, Task) else (-(2**63), EARLIEST)


def _is_countable(attempts: object) -> bool:
    return isinstance(attempts, int | float) and not isinstance(attempts, bool) and 0 <= attempts < MAX_ATTEMPTS
