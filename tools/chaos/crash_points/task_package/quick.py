"""A function as a team deploys it, whose runs are counted."""

from __future__ import annotations

from typing import Any

from tidemill import task
from tools.chaos.crash_points.functions import RUNS


@task("ends", http=True)
def ends(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what it was enqueued as."""
    RUNS.began(payload)
    return {"n": payload.get("n")}
