"""Tasks in rows, which fit into 80 columns."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tidemill.classify import bounded
from tidemill.cli.ops.asking import Document
from tidemill.cli.tables import ABSENT, clean, table
from tidemill.wording import span

_WHEN = {
    "pending": "due_at", "processing": "updated_at", "done": "finished_at", "failed": "finished_at",
    "cancelled": "finished_at",
}  # fmt: skip
"""The time that matters of a task: when it is due, when it was claimed, when it ended."""


MAX_ID: Final = 48
"""Characters of an id in a row; an UUID in JSON has as many."""


def lines(answer: Document) -> str:
    """Return a row for each task of a list."""
    now = datetime.fromisoformat(answer["now"])
    return table(
        {"task": "word", "name": "text", "queue": "text", "status": "word", "attempt": "number", "when": "word"},
        [_row(task, now) for task in answer["tasks"]],
    )


def is_cut(answer: Document) -> bool:
    """Tell whether an id is too long for its row."""
    return any(len(clean(task["id"])) > MAX_ID for task in answer["tasks"])


def _row(task: Document, now: datetime) -> tuple[str, ...]:
    task_id = bounded(clean(task["id"]), MAX_ID)
    if "malformed" in task:
        return task_id, ABSENT, ABSENT, "malformed", ABSENT, ABSENT
    status = task["status"]
    return task_id, task["name"], task["queue"], status, str(task["attempts"]), _when(task[_WHEN[status]], now)


def _when(stamp: str | None, now: datetime) -> str:
    """Return roughly how far from *now* that is."""
    if stamp is None:
        return ABSENT
    at = datetime.fromisoformat(stamp)
    distance = span(abs(at - now)).split()[0]
    return f"in {distance}" if at > now else f"{distance} ago"
