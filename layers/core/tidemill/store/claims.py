"""Claiming: read the next ids in order, stamp those still free with a fresh token, read back what carries it.

Three round trips for any number of tasks; a few more where others claim, and a leap went too far. The driver does
not retry a multi-update and it can fail half-way, so after any error the read-back decides what was claimed; a token
is never used for a second stamp.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError, WriteError

from tidemill import indexes
from tidemill.documents import MAX_ATTEMPTS, decode, is_text, read
from tidemill.model import EARLIEST, Lease, Malformed, Task, TaskId
from tidemill.selection import Lanes
from tidemill.store.collections import Tasks, translated
from tidemill.store.confirming import confirmed
from tidemill.store.scans import ORDER, Scan, advanced, any_of, due_filter, leap, spread

COUNTABLE: Final[dict[str, Any]] = {"$gte": 0, "$lt": MAX_ATTEMPTS, "$not": {"$type": "array"}}
"""What ``attempts`` must be to be incremented: one document where it is not would end the whole stamp."""

NEARER: Final = 1 / 4
"""After a leap beyond the last task the next goes no further than this part of it."""

MANY_QUEUES: Final = 10_000
"""So many queues come in one answer."""

_KEYS: Final = CodecOptions[dict[str, Any]](
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one claim brought.

    Attributes:
        tasks: Held under the lease, in the order of the queue.
        retries: Ids of those tasks that were read in the lane retry.
        unclaimable: Still free, and no claim can ever take them.
        scanned, lost: Ids that were read and tried, and those another claimer was quicker with.
        denied: Retries that were read, but not granted.
        dry: All that was found was tried, and there was no more.
        error: What interrupted the stamp; *tasks* is nevertheless what it claimed, unless ``unresolved``:
            then some tasks may carry the token unseen.
        scan: Where to go on.
        look_sec: How long it took to read the ids.
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
    def is_doubtful(self) -> bool:
        """Whether more tasks may carry the token than were seen: a stamp may take effect after the look for it."""
        return self.unresolved or not (self.error is None or isinstance(self.error, OperationFailure))


def queues(tasks: Tasks) -> list[Any]:
    """Return the distinct queues of pending tasks; something other than text is a document to be adopted."""
    with translated():
        found = tasks.with_options(codec_options=_KEYS).aggregate(
            [{"$match": {"status": "pending"}}, {"$group": {"_id": "$queue"}}],
            hint=indexes.CLAIM,
            batchSize=MANY_QUEUES,
        )
        return [group["_id"] for group in found]


def heads(tasks: Tasks) -> list[dict[str, Any]]:
    """Return ``queue, lane, priority, due_at, _id`` of the first pending task of each queue, due or not.

    Where lanes are told apart, that is its first in the lane that comes first. As cheap as `queues`: of each queue the
    server goes to the first key of the index.
    """
    key = {"lane": 1, "priority": -1, "due_at": 1, "_id": 1}
    first = {name: {"$first": f"${name}"} for name in key if name != "_id"} | {"id": {"$first": "$_id"}}
    with translated():
        found = tasks.with_options(codec_options=_KEYS).aggregate(
            [
                {"$match": {"status": "pending"}},
                {"$sort": {"status": 1, "queue": 1, **key}},
                {"$group": {"_id": "$queue", **first}},
            ],
            hint=indexes.CLAIM,
            batchSize=MANY_QUEUES,
        )
        return [{"queue": one.pop("_id"), "_id": one.pop("id", None), **one} for one in found]


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

    *grant* is asked how many of so many retries may be taken, once it is known that they are there and before any
    is; what it raises comes through, with nothing changed. *without* are ids to be left alone.

    Raises:
        UnavailableError: The ids could not be read; nothing was changed.
        MissingIndexError: The claim index is not there.
    """
    limit = max(limit // scan.narrow, 1)
    started = monotonic()
    seen = _next_due(tasks, scan, limit=limit, avoided=[*scan.hopeless, *without], now=now, rng=rng)
    look_sec = monotonic() - started
    chosen, denied = _granted(seen.keys, grant)
    if not chosen:
        scan = replace(scan, width=seen.scan.width, passed=scan.passed and bool(seen.keys))
        return Claim(scan=scan, dry=seen.dry and not denied, denied=denied, look_sec=look_sec)
    taken = take(tasks, [key["_id"] for key in chosen], lease=lease, now=now, where=_as_read(chosen))
    return replace(
        taken,
        retries=tuple(task.id for task in taken.tasks if _lane_of(task, chosen) == "retry"),
        scan=_next_scan(seen, chosen, taken),
        dry=seen.dry and taken.error is None and not denied,
        denied=denied,
        look_sec=look_sec,
        unclaimable=taken.unclaimable + _unstampable(chosen, taken),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a look found: *keys* of tasks behind ``scan``; *dry* where there are no more."""

    scan: Scan
    keys: list[dict[str, Any]]
    dry: bool


def _next_due(
    tasks: Tasks, scan: Scan, *, limit: int, avoided: Sequence[TaskId], now: datetime, rng: random.Random
) -> _Seen:
    """Read up to *limit* keys; where a leap went beyond the last one, look nearer, and at last from the head."""
    reach = limit + len(avoided)
    skip = leap(scan, limit=limit, draw=rng.random())
    while True:
        found = due_keys(tasks, scan, limit=reach, skip=skip, now=now)
        keys = [key for key in found if key["_id"] not in avoided]
        passed = scan.passed or skip > 0
        if keys or not passed:
            dry = not passed and len(found) < reach and len(keys) <= limit
            return _Seen(scan=replace(scan, passed=passed), keys=keys[:limit], dry=dry)
        if skip:
            scan, skip = replace(scan, width=max(skip / limit, 1.0)), int(skip * NEARER * rng.random())
        else:
            scan = scan.from_head()
            skip = leap(scan, limit=limit, draw=rng.random())


def due_keys(tasks: Tasks, scan: Scan, *, limit: int, now: datetime, skip: int = 0) -> list[dict[str, Any]]:
    """Return ``_id, lane, priority, due_at`` of the next due tasks but *skip*, from the index alone: one key a task."""
    with translated():
        found = tasks.with_options(codec_options=_KEYS).find(
            due_filter(scan, now=now), {"_id": 1, "lane": 1, "priority": 1, "due_at": 1}, hint=indexes.CLAIM
        )
        keys = list(found.sort(ORDER).skip(skip).limit(limit).batch_size(limit + 1))
    for key in keys:
        if not is_text(key["lane"]):  # an array, which was found by one of its elements
            key["lane"] = next((lane for lane in scan.lanes if lane in key["lane"]), scan.lanes[0])
    return keys


def first_due(
    tasks: Tasks, queues: Sequence[str], *, lanes: Lanes, without: Sequence[TaskId], now: datetime
) -> dict[str, Any] | None:
    """Return ``_id, queue, lane, priority, due_at`` of a task of *queues* that comes first in one of *lanes*.

    Those *without* are left alone; ``None`` says that nothing is due but them.
    """
    scans = [Scan(queue=queue, lanes=(lane,)) for queue in queues for lane in lanes]
    reach = 1 + len(without)
    with translated():
        keys = tasks.with_options(codec_options=_KEYS).find(
            any_of(scans, now=now), {"_id": 1, "queue": 1, "lane": 1, "priority": 1, "due_at": 1}, hint=indexes.CLAIM
        )
        return next((key for key in keys.limit(reach).batch_size(reach + 1) if key["_id"] not in without), None)


def take(
    tasks: Tasks,
    ids: list[TaskId],
    *,
    lease: Lease,
    now: datetime,
    where: dict[str, Any] | None = None,
) -> Claim:
    """Stamp those of *ids* that are still free, due and as *where* says with *lease*; read back what carries it.

    Any error of the driver ends up in the returned claim.
    """
    error: PyMongoError | None = None
    stamped = -1
    try:
        stamped = tasks.update_many(
            {"_id": {"$in": ids}, **(where or {}), **_free(now)}, _stamp(lease, now), hint=indexes.BY_ID
        ).matched_count
    except PyMongoError as interrupted:
        error = interrupted
    with_token: dict[str, Any] = {"lease.token": lease.token}
    either = {"$or": [with_token, {"status": "pending"}]}
    where = {"_id": {"$in": ids}, **(with_token if stamped == len(ids) else either)}
    try:
        found = _found(tasks, where, size=len(ids) + 1, is_confirmed=error is None)
    except PyMongoError as blind:
        return Claim(scan=_NOWHERE, scanned=len(ids), error=error or blind, unresolved=True)
    return _sorted_out(found, lease=lease, tried=len(ids), error=error)


def _found(tasks: Tasks, where: dict[str, Any], *, size: int, is_confirmed: bool) -> list[RawBSONDocument]:
    """Return what is there; unless the stamp *is_confirmed*, only what no change of primary takes back."""
    if is_confirmed:
        return list(tasks.find(where, batch_size=size))
    with confirmed(tasks) as (lasting, session):
        return list(lasting.find(where, batch_size=size, session=session))


_NOWHERE: Final = Scan(queue="", lanes=())


def _as_read(keys: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the filter of tasks that are in the lane they were read in: what was granted holds for that one."""
    lanes = sorted({key["lane"] for key in keys})
    if len(lanes) == 1:
        return {"lane": lanes[0]}
    return {
        "$or": [{"lane": lane, "_id": {"$in": [key["_id"] for key in keys if key["lane"] == lane]}} for lane in lanes]
    }


def _free(now: datetime) -> dict[str, Any]:
    return {"status": "pending", "due_at": {"$lte": now}, "attempts": COUNTABLE}


def _stamp(lease: Lease, now: datetime) -> dict[str, Any]:
    stored = {"token": lease.token, "owner": lease.owner, "expires_at": lease.expires_at}
    return {
        "$set": {"status": "processing", "lease": stored, "updated_at": now},
        "$inc": {"attempts": 1},
    }


def _sorted_out(found: list[RawBSONDocument], *, lease: Lease, tried: int, error: PyMongoError | None) -> Claim:
    held: list[Task | Malformed] = []
    unclaimable: list[Malformed] = []
    for raw in found:
        task = read(raw)
        if task.lease is not None and task.lease.token == lease.token:
            held.append(task)
        elif isinstance(task, Malformed) and not _countable(decode(raw).get("attempts")):
            unclaimable.append(task)
    return Claim(
        scan=_NOWHERE,
        tasks=tuple(sorted(held, key=_queue_order)),
        unclaimable=tuple(unclaimable),
        scanned=tried,
        lost=tried - len(found),
        error=error,
    )


def _queue_order(task: Task | Malformed) -> tuple[int, datetime]:
    return (-task.priority, task.due_at) if isinstance(task, Task) else (-(2**63), EARLIEST)


def _countable(attempts: object) -> bool:
    return isinstance(attempts, int | float) and not isinstance(attempts, bool) and 0 <= attempts < MAX_ATTEMPTS


def _granted(keys: list[dict[str, Any]], grant: Callable[[int], int]) -> tuple[list[dict[str, Any]], int]:
    """Return the *keys* that may be taken, and how many retries may not: the last of them."""
    retries = sum(key["lane"] == "retry" for key in keys)
    denied = retries - (grant(retries) if retries else 0)
    allowed: list[dict[str, Any]] = []
    left = retries - denied
    for key in keys:
        if key["lane"] == "retry":
            left -= 1
        if key["lane"] != "retry" or left >= 0:
            allowed.append(key)
    return allowed, denied


def _lane_of(task: Task | Malformed, keys: list[dict[str, Any]]) -> str:
    if isinstance(task, Task):
        return task.lane
    return next((str(key["lane"]) for key in keys if key["_id"] == task.id), "")


def _next_scan(seen: _Seen, chosen: list[dict[str, Any]], taken: Claim) -> Scan:
    scan = seen.scan
    if isinstance(taken.error, WriteError) and len(chosen) > 1:
        return replace(scan, narrow=scan.narrow * 2)
    if taken.error is not None and not isinstance(taken.error, WriteError):
        return scan
    without_gap = [key for key, picked in zip(seen.keys, chosen, strict=False) if key is picked]
    hopeless = scan.hopeless + tuple(one.id for one in _unstampable(chosen, taken))
    scan = spread(advanced(scan, without_gap), tried=len(chosen), lost=taken.lost)
    return replace(scan, narrow=max(scan.narrow // 2, 1), hopeless=hopeless)


def _unstampable(chosen: list[dict[str, Any]], taken: Claim) -> tuple[Malformed, ...]:
    if isinstance(taken.error, WriteError) and len(chosen) == 1 and not taken.tasks:
        return (Malformed(id=chosen[0]["_id"], problem="cannot be stamped with a lease", lease=None),)
    return ()
