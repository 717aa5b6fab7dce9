"""What a look for due tasks costs the server: counted, not timed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pymongo.database import Database

from tidemill import indexes
from tidemill.store.scan import CLAIM_ORDER, Scan, due_filter


def skipped(db: Database[Any]) -> int:
    """Entries of the claim index that cursors have stepped over because they are no longer there.

    The count is this collection's alone: the server's own work, such as the TTL monitor's, is not in it.
    """
    [found] = db["tasks"].aggregate([{"$collStats": {"storageStats": {}}}])
    cursor = found["storageStats"]["indexDetails"][indexes.CLAIM]["cursor"]
    return sum(count for name, count in cursor.items() if name.startswith("Total number of entries skipped by cursor"))


def explain(db: Database[Any], scan: Scan, *, limit: int, now: datetime) -> dict[str, Any]:
    """How the server finds the next *limit* ids of *scan*, executed."""
    query = {
        "find": "tasks",
        "filter": due_filter([scan], now=now),
        "projection": {"_id": 1, "lane": 1, "priority": 1, "due_at": 1},
        "sort": CLAIM_ORDER,
        "hint": indexes.CLAIM,
        "limit": limit,
    }
    plan: dict[str, Any] = db.command("explain", query, verbosity="executionStats")["executionStats"]
    return plan


def stages(plan: dict[str, Any]) -> set[str]:
    """The names of all stages of a plan."""
    below = [plan["inputStage"]] if "inputStage" in plan else plan.get("inputStages", [])
    return {plan["stage"]}.union(*(stages(one) for one in below))
