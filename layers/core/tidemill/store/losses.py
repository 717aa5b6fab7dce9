"""What vanished workers held: found by the end of the lease, or by the name of an owner known dead."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tidemill import indexes
from tidemill.documents import read
from tidemill.model import Malformed, Task
from tidemill.store.collections import Tasks, translated


def expired_leases(tasks: Tasks, *, before: datetime, limit: int) -> list[Task | Malformed]:
    """Return tasks whose lease ended before *before*, the longest lost first."""
    where = {"status": "processing", "lease.expires_at": {"$lt": before}}
    return _processing(tasks, where, indexes.LEASES, limit=limit)


def leaseless(tasks: Tasks, *, limit: int) -> list[Task | Malformed]:
    """Return processing tasks without the end of a lease: no claim wrote them, so none will ever settle them."""
    where = {"status": "processing", "lease.expires_at": {"$not": {"$type": "date"}}}
    return _processing(tasks, where, indexes.LEASES, limit=limit)


def held_by(tasks: Tasks, owner: str, *, limit: int) -> list[Task | Malformed]:
    """Return what *owner* holds under a lease."""
    return _processing(tasks, {"status": "processing", "lease.owner": owner}, indexes.OWNERS, limit=limit)


def _processing(tasks: Tasks, where: dict[str, Any], index: str, *, limit: int) -> list[Task | Malformed]:
    with translated():
        return [read(raw) for raw in tasks.find(where, hint=index).limit(limit)]
