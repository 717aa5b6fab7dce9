"""Dead letters as tests want them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tests.builders import document
from tidemill.store import Tasks

FINGERPRINT = "00000000000000aa"


def letter(died_at: datetime, *, redrives: int = 0, **fields: Any) -> dict[str, Any]:
    """A dead letter of a task that failed, but for *fields*; its task's id is ``_id``."""
    error = {"message": "the receiver answered 503", "code": "http_503", "at": died_at}
    task = document(died_at, status="failed", finished_at=died_at, attempts=3, max_retries=2, error=error)
    marks = {"dead_lettered_at": died_at, "fingerprint": FINGERPRINT, "reason": "exhausted"}
    made = task | {"redrives": redrives} | marks | fields
    return made | {"_id": {"task": made["_id"], "redrives": redrives}}


def bury(dead: Tasks, letters: Iterable[dict[str, Any]]) -> list[Any]:
    """Insert *letters* as they are and return the ids of their tasks."""
    inserted = list(letters)
    dead.insert_many(inserted)
    return [one["_id"]["task"] for one in inserted]
