"""The feed: each attempt as it ends, read from the execution logs of the tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pymongo.database import Database

from demo.front import Accepted
from demo.ledger import stories
from tidemill.model import TaskId

LINES = 8


class Feed:
    """Reads the attempts that have ended since the last time.

    Attributes:
        lines: The latest attempts, oldest first: second, behaviour, end of the task id, attempt, status and note.
    """

    def __init__(self, db: Database[Any]) -> None:
        self.lines: deque[str] = deque(maxlen=LINES)
        self._db = db
        self._read: dict[TaskId, int] = {}

    def read(self, accepted: Mapping[TaskId, Accepted], *, at: float) -> None:
        """Add what has ended of the *accepted* tasks, seen *at* seconds after the start."""
        found = stories(self._db, accepted)
        ended = [
            (attempt["started_at"], task_id, attempt)
            for task_id, story in found.items()
            for attempt in story["attempt_log"][self._read.get(task_id, 0) :]
        ]
        for _, task_id, attempt in sorted(ended, key=lambda entry: (entry[0], entry[1])):
            note = f": {attempt['note']}" if attempt["note"] else f" in {attempt['duration_ms']} ms"
            self.lines.append(
                f"{at:5.1f} s  {accepted[task_id].behaviour:24}  ..{str(task_id)[-4:]}  attempt {attempt['attempt']} "
                f"{attempt['status']}{note}"
            )
        self._read |= {task_id: len(story["attempt_log"]) for task_id, story in found.items()}
