"""What waits, in four numbers that cost the same however much it is."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tidemill.documents import DEAD_LETTERS
from tidemill.store import Tasks, gauges, open_tasks

GAUGES: Final = (
    "due_fresh",  # due in the lane fresh, over all queues, paused ones too; 10,000 says at least so many
    "due_retry",  # the same of the lane retry
    "oldest_due_sec",  # since when the longest waiting of them is due; 0 with none
    "dead_letters",  # kept as such, redriven or not; 10,000 says at least so many
)


def measured(tasks: Tasks, *, now: datetime) -> dict[str, int]:
    """Return the `GAUGES`: three commands where nothing is due, else five with up to a hundred queues.

    Raises:
        TidemillError: MongoDB did not count.
    """
    fresh, retry = (gauges.due_anywhere(tasks, lane, now=now) for lane in ("fresh", "retry"))
    oldest = gauges.oldest_due_anywhere(tasks, now=now) if fresh or retry else None
    return {
        "due_fresh": fresh,
        "due_retry": retry,
        "oldest_due_sec": 0 if oldest is None else int((now - oldest).total_seconds()),
        "dead_letters": gauges.dead_letters(open_tasks(tasks.database, DEAD_LETTERS)),
    }
