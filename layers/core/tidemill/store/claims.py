"""Claims of due tasks, and their leases: extended, or released if the task did not start.

A claim reads the next ids in order, stamps the tasks that are still free with a new token, and reads them back. It
takes three round trips for any number of tasks, and a few more after a leap beyond the last due task.

The driver does not retry a multi-update, and a multi-update can fail half-way. After any error the read-back
therefore decides which tasks were claimed. A token is never used for a second stamp. Writes of a lease are guarded by
the id of the task and the token of the lease.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import OperationFailure, PyMongoError, WriteError

from tidemill import indexes
from tidemill.documents import MAX_ATTEMPTS, decode, id_key, read_task
from tidemill.model import EARLIEST, Lease, Malformed, Task, TaskId
from tidemill.store.connection import Tasks, majority_read, translate_errors
from tidemill.store.scan import Scan, adjust_width, advance_scan, draw_skip, find_due_keys

COUNTABLE_ATTEMPTS: Final[dict[str, Any]] = {"$gte": 0, "$lt": MAX_ATTEMPTS, "$not": {"$type": "array"}}
"""Filter on ``attempts`` that can be incremented. A single document with another value would end the whole stamp."""

MAX_RELATIVE_LEAP: Final = 1 / 4
"""Largest fraction of a leap beyond the last task that the next leap may have."""

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


def take(tasks: Tasks, ids: list[TaskId], *, lease: Lease, now: datetime, where: dict[str, Any] | None = None) -> Claim:
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


def release(tasks: Tasks, leased_tasks: Sequence[Task], *, now: datetime) -> int:
    """Release claimed tasks that did not start, refund their attempts, and return the number of released tasks.

    A newer claim of the same task is left alone, even if another task of *leased_tasks* has its token.
    """
    by_token: defaultdict[str, list[TaskId]] = defaultdict(list)
    for task in leased_tasks:
        if task.lease is not None:
            by_token[task.lease.token].append(task.id)
    if not by_token:
        return 0
    claims = [_build_lease_filter(ids, [token]) for token, ids in by_token.items()]
    return _release(tasks, {"$or": claims}, now=now)


def release_unconfirmed(
    tasks: Tasks, *, owner: str, tokens: Sequence[str], started: Sequence[TaskId], now: datetime
) -> int:
    """Release the tasks of *owner* that have one of *tokens* and were not *started*: stamps that were not read back."""
    where = {
        "status": "processing",
        "lease.owner": owner,
        "lease.token": {"$in": list(tokens)},
        "_id": {"$nin": list(started)},
    }
    return _release(tasks, where, now=now, hint=indexes.OWNERS)


def extend(tasks: Tasks, leased_tasks: Sequence[Task], *, until: datetime) -> list[Task]:
    """Extend leases to *until* and return the tasks whose leases were lost.

    A lease that expired, but was not taken away, is extended too.

    Raises:
        UnavailableError: Some, all or none were extended; repeat the call.
    """
    leases = [(task, task.lease) for task in leased_tasks if task.lease is not None]
    if not leases:
        return []
    change = {"$set": {"lease.expires_at": until}}
    updates = [
        UpdateOne(_build_lease_filter([task.id], [lease.token]), change, hint=indexes.BY_ID) for task, lease in leases
    ]
    with translate_errors():
        if tasks.bulk_write(updates, ordered=False).matched_count == len(leases):
            return []
        where = _build_lease_filter([task.id for task, _ in leases], sorted({lease.token for _, lease in leases}))
        documents = [decode(raw) for raw in tasks.find(where, {"lease.token": 1})]
    kept = [(document["_id"], document["lease"]["token"]) for document in documents]
    return [task for task, lease in leases if (task.id, lease.token) not in kept]


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


def _release(tasks: Tasks, where: dict[str, Any], *, now: datetime, hint: str | None = None) -> int:
    """Make the tasks that *where* matches pending again, and return their number.

    There are two statements: a count edited by hand may be 0 or no number, and the error of ``$inc`` would end the
    release of all tasks. There is no pipeline: before MongoDB 5 the server refuses a pipeline if a name in a
    payload begins with "$".
    """
    update = {"$set": {"status": "pending", "updated_at": now}, "$unset": {"lease": ""}}
    countable = {"attempts": {"$gt": 0, "$not": {"$type": "array"}}}
    writes = [
        UpdateMany(where | countable, update | {"$inc": {"attempts": -1}}, hint=hint),
        UpdateMany(where | {"$nor": [countable]}, update, hint=hint),  # not just `where`: a stamp may take effect late
    ]
    with translate_errors():
        return tasks.bulk_write(writes).matched_count


def _build_lease_filter(ids: Sequence[TaskId], tokens: Sequence[str]) -> dict[str, Any]:
    # The status, too: a task that was ended or reset by hand may still have the lease.
    return {"_id": {"$in": list(ids)}, "status": "processing", "lease.token": {"$in": list(tokens)}}
