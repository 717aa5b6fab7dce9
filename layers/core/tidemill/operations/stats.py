"""How retries went."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidemill.operations.desk import Desk
from tidemill.operations.requests import Stats
from tidemill.operations.warnings import of_nobody
from tidemill.status import retry_statistics


def statistics(request: Stats, desk: Desk) -> dict[str, Any]:
    """Return what executors have counted, of each queue or of one."""
    since = desk.clock.now() - timedelta(seconds=request.since_sec)
    found = retry_statistics(desk.db, since=since, queue=request.queue)
    return {"statistics": [one.document() for one in found], "warnings": [] if found else of_nobody(desk)}
