"""A function as a team deploys it, whose runs are counted."""

from __future__ import annotations

from typing import Any

from tests.chaos.crash_points.functions import RUNS
from tidemill import task


@task("ends", http=True)
def ends(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what it was enqueued as."""
    RUNS.began(payload)
    return {"n": payload.get("n")}
