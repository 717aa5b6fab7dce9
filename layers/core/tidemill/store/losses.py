"""What vanished workers held: found by the end of the lease, or by the name of an owner known dead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from pymongo import UpdateOne

from tidemill import indexes
from tidemill.documents import read
from tidemill.model import Malformed, Task, TaskId
from tidemill.store.collections import Tasks, translated
from tidemill.store.lean import LEAN
from tidemill.store.writes import Written, write_each

_WHOLE: Final = {
    "$and": [
        {"$eq": [{"$type": f"$lease.{field}"}, kind]}
        for field, kind in (("token", "string"), ("owner", "string"), ("expires_at", "date"))
    ]
}
"""What is so of every lease a claim wrote."""


def expired_leases(tasks: Tasks, *, before: datetime, limit: int, but: Sequence[TaskId] = ()) -> list[Task | Malformed]:
    """Return tasks whose lease ended before *before*, the longest lost first, without those of *but*."""
    where = {"status": "processing", "lease.expires_at": {"$lt": before}}
    return _processing(tasks, where, indexes.LEASES, limit=limit, but=but)


def leaseless(tasks: Tasks, *, limit: int, but: Sequence[TaskId] = ()) -> list[Task | Malformed]:
    """Return processing tasks without the end of a lease: no claim wrote them, so none will ever settle them."""
    where = {"status": "processing", "lease.expires_at": {"$not": {"$type": "date"}}}
    return _processing(tasks, where, indexes.LEASES, limit=limit, but=but)


def held_by(tasks: Tasks, owner: str, *, limit: int, but: Sequence[TaskId] = ()) -> list[Task | Malformed]:
    """Return what *owner* holds under a lease, without *but*."""
    where = {"status": "processing", "lease.owner": owner}
    return _processing(tasks, where, indexes.OWNERS, limit=limit, but=but)


def clear(tasks: Tasks, ids: Sequence[TaskId]) -> Written:
    """Take away what stands for a lease in *ids* and is none, written by no claim: nobody could ever prove it.

    Stopped after that, a task is one that `leaseless` finds.
    """
    scraps = {"status": "processing", "$expr": {"$not": [_WHOLE]}}
    return write_each(tasks, [UpdateOne({"_id": one} | scraps, {"$unset": {"lease": ""}}) for one in ids])


def _processing(
    tasks: Tasks, where: dict[str, Any], index: str, *, limit: int, but: Sequence[TaskId]
) -> list[Task | Malformed]:
    others = {"_id": {"$nin": list(but)}} if but else {}
    stages: list[dict[str, Any]] = [{"$match": where | others}, {"$limit": limit}, LEAN]
    with translated():
        return [read(raw) for raw in tasks.aggregate(stages, hint=index, batchSize=limit + 1)]
