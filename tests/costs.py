"""What a look for due tasks costs the server: counted, not timed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pymongo.database import Database

from tidemill import indexes
from tidemill.store.scans import ORDER, Scan, due_filter


def skipped(db: Database[Any]) -> int:
    """Entries that cursors of the server have stepped over because they are no longer there."""
    cursor = db.client.admin.command("serverStatus")["wiredTiger"]["cursor"]
    return sum(count for name, count in cursor.items() if name.startswith("Total number of entries skipped by cursor"))


def explain(db: Database[Any], scan: Scan, *, limit: int, now: datetime) -> dict[str, Any]:
    """How the server finds the next *limit* ids of *scan*, executed."""
    query = {
        "find": "tasks",
        "filter": due_filter(scan, now=now),
        "projection": {"_id": 1, "lane": 1, "priority": 1, "due_at": 1},
        "sort": ORDER,
        "hint": indexes.CLAIM,
        "limit": limit,
    }
    plan: dict[str, Any] = db.command("explain", query, verbosity="executionStats")["executionStats"]
    return plan


def stages(plan: dict[str, Any]) -> set[str]:
    """The names of all stages of a plan."""
    below = [plan["inputStage"]] if "inputStage" in plan else plan.get("inputStages", [])
    return {plan["stage"]}.union(*(stages(one) for one in below))
