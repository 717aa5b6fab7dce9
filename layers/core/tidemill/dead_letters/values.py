"""A dead letter as it is read, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode, is_text, read
from tidemill.model import Malformed, Task, TaskId

MAX_REDRIVES: Final = 2**31 - 1
"""So often a task may have come back; what is above was written by hand."""

REDRIVE_MARKS: Final = ("redrive_started_at", "redrive_due_at", "redrive_token", "redrive_drops_expiry")
"""The fields of a dead letter that is on its way back."""

CHANGING: Final = (
    "archived_at",
    "export_attempts",
    "export_error",
    "export_retry_at",
    *REDRIVE_MARKS,
    "redriven_at",
    "retain_from",
)
"""The fields of a dead letter that change after the move; the export leaves them out."""

MARKS: Final = ("dead_lettered_at", "fingerprint", *CHANGING)
"""The fields that a dead letter has and its task has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterId:
    """A task, and how often it had come back from the dead letters when it died."""

    task: TaskId
    redrives: int

    def document(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {"task": self.task, "redrives": self.redrives}


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as it stood when it was read.

    Attributes:
        task: As it died, under its own id.
        export_attempts: How often the bucket has refused it; ``export_error`` says why.
        redrive_started_at: Set while a redrive is under way, or was cut short.
    """

    id: LetterId
    task: Task | Malformed
    dead_lettered_at: datetime | None
    fingerprint: str
    reason: str | None
    archived_at: datetime | None
    redrive_started_at: datetime | None
    redriven_at: datetime | None
    export_attempts: int
    export_error: str | None
    export_retry_at: datetime | None


def read_letter(raw: RawBSONDocument) -> Letter:
    """Return the dead letter that *raw* holds, whatever people have made of it."""
    document = decode(raw)
    letter_id = id_of(document.get("_id"))
    own = RawBSONDocument(bson.encode({**document, "_id": letter_id.task}))
    tried = document.get("export_attempts")
    return Letter(
        id=letter_id,
        task=read(own),
        dead_lettered_at=date_in(document.get("dead_lettered_at")),
        fingerprint=_text(document, "fingerprint") or "",
        reason=_text(document, "reason"),
        archived_at=date_in(document.get("archived_at")),
        redrive_started_at=date_in(document.get("redrive_started_at")),
        redriven_at=date_in(document.get("redriven_at")),
        export_attempts=tried if isinstance(tried, int) else 0,
        export_error=_text(document, "export_error"),
        export_retry_at=date_in(document.get("export_retry_at")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BareId(LetterId):
    """The id of a letter that is stored under ``task`` itself: a person has put it there."""

    redrives: int = 0

    def document(self) -> Any:  # noqa: ANN401 - of any type
        """Return it as it is stored."""
        return self.task


def id_of(stored: Any) -> LetterId:  # noqa: ANN401 - whatever people have made of it
    """Return the id that a decoded dead letter is stored under."""
    if isinstance(stored, dict) and list(stored) == ["task", "redrives"] and isinstance(stored["redrives"], int):
        return LetterId(task=stored["task"], redrives=stored["redrives"])
    return LetterId(task=stored, redrives=0)


def exact_id(stored: Any) -> LetterId:  # noqa: ANN401 - whatever people have made of it
    """Return the id that leads back to the letter that is stored under *stored*."""
    usual = id_of(stored)
    return BareId(task=stored) if usual.task is stored else usual


def date_in(value: object) -> datetime | None:
    """Return *value* where it is a time, whatever else people may have written there."""
    return value if isinstance(value, datetime) else None


def id_bytes(value: Any) -> bytes:  # noqa: ANN401 - an id of any type
    """Return an id as something to look up by."""
    return bson.encode({"": value})


def _text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if is_text(value) else None
