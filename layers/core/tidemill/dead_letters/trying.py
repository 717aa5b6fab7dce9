"""What could not be done with a document, noted in it: why, how often, and when to try again."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

FIRST_WAIT: Final = timedelta(minutes=10)
LONGEST_WAIT: Final = timedelta(days=1)

_MOST_TRIES: Final = 1000


def tried_in_vain(what: str, *, why: str, now: datetime) -> list[dict[str, Any]]:
    """Return the update that notes a try: the wait for the next doubles each time, up to a day.

    The fields are ``<what>_attempts``, ``<what>_error`` and ``<what>_retry_at``.
    """
    before = {"$min": [{"$max": [{"$ifNull": [f"${what}_attempts", 0]}, 0]}, _MOST_TRIES]}
    wait = {"$min": [{"$multiply": [_ms(FIRST_WAIT), {"$pow": [2, before]}]}, _ms(LONGEST_WAIT)]}
    noted = {
        f"{what}_attempts": {"$add": [before, 1]},
        f"{what}_error": {"$literal": why},
        f"{what}_retry_at": {"$add": [now, {"$toLong": wait}]},
    }
    return [{"$set": noted}]


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
