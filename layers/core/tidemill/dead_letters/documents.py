"""Documents of dead letters: read them, build them from failed tasks, convert their ids, record failed attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode, decode_shallow, encode_fields, id_key, is_text, read_task, splice_fields
from tidemill.model import Malformed, Task, TaskError, TaskId
from tidemill.policy.fingerprint import fingerprint
from tidemill.store.tasks import MAX_ERROR_BYTES, build_list_stages, shorten_error

MAX_REDRIVES: Final = 2**31 - 1
"""Maximum number of redrives of a task. A larger number was written by hand."""

REDRIVE_MARK_FIELDS: Final = ("redrive_started_at", "redrive_due_at", "redrive_token", "redrive_drops_expiry")
"""Fields of a dead letter whose redrive is in progress."""

ARCHIVE_ATTEMPT_FIELDS: Final = ("archive_attempts", "archive_error", "archive_retry_at")
EXPORT_ATTEMPT_FIELDS: Final = ("export_attempts", "export_error", "export_retry_at")
"""Fields of failed attempts to move a task, and to export a dead letter."""

CHANGING_FIELDS: Final = ("archived_at", *EXPORT_ATTEMPT_FIELDS, *REDRIVE_MARK_FIELDS, "redriven_at", "retain_from")
"""Fields of a dead letter that change after the move. The export leaves them out."""

MARK_FIELDS: Final = ("dead_lettered_at", "fingerprint", *CHANGING_FIELDS)
"""Fields that a dead letter has and its task has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterId:
    """Id of a dead letter: the id of its task, and how often that had been redriven when it failed.

    A dead letter that was inserted by hand may be stored under the bare id of its task.
    """

    task: TaskId
    redrives: int
    is_bare: bool = False

    def document(self) -> Any:  # noqa: ANN401 - of any type
        """Return the id as it is stored."""
        return self.task if self.is_bare else {"task": self.task, "redrives": self.redrives}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Dead letter at the time of the read.

    Attributes:
        task: The failed task, under its own id.
        export_attempts: How often the bucket refused the dead letter; ``export_error`` says why.
        redrive_started_at: Set while a redrive is in progress, or was interrupted.
    """

    id: DeadLetterId
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

    @property
    def redrives(self) -> int:
        """Number of redrives before the failure."""
        return self.id.redrives

    @property
    def name(self) -> str | None:
        """Name of the task; ``None`` if the task is malformed."""
        return None if isinstance(self.task, Malformed) else self.task.name

    @property
    def error(self) -> TaskError | None:
        """Failure of the task, if it is known."""
        return None if isinstance(self.task, Malformed) else self.task.error


def read_dead_letter(raw: RawBSONDocument) -> DeadLetter:
    """Return the dead letter that *raw* holds, even if it was edited by hand."""
    document = decode(raw)
    letter_id = decode_id(document.get("_id"))
    attempts = document.get("export_attempts")
    return DeadLetter(
        id=letter_id,
        task=read_task_of(document, letter_id.task),
        dead_lettered_at=read_date(document.get("dead_lettered_at")),
        fingerprint=_read_text(document, "fingerprint") or "",
        reason=_read_text(document, "reason"),
        archived_at=read_date(document.get("archived_at")),
        redrive_started_at=read_date(document.get("redrive_started_at")),
        redriven_at=read_date(document.get("redriven_at")),
        export_attempts=attempts if isinstance(attempts, int) else 0,
        export_error=_read_text(document, "export_error"),
        export_retry_at=read_date(document.get("export_retry_at")),
    )


def read_task_of(document: Mapping[str, Any], task_id: TaskId) -> Task | Malformed:
    """Return the failed task of the decoded dead letter *document*, under its own id."""
    return read_task(RawBSONDocument(bson.encode({**document, "_id": task_id})))


def decode_id(stored: Any) -> DeadLetterId:  # noqa: ANN401 - documents are edited by hand
    """Return the id that finds the dead letter stored under the decoded id *stored*."""
    if isinstance(stored, dict) and list(stored) == ["task", "redrives"] and isinstance(stored["redrives"], int):
        return DeadLetterId(task=stored["task"], redrives=stored["redrives"])
    return DeadLetterId(task=stored, redrives=0, is_bare=True)


def read_date(value: object) -> datetime | None:
    """Return *value* if it is a time, else ``None``."""
    return value if isinstance(value, datetime) else None


def read_key(raw: RawBSONDocument) -> bytes:
    """Return the id of the document *raw* as a hashable key."""
    return id_key(decode_shallow(raw)["_id"])


def _read_text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if is_text(value) else None


_IS_LARGE: Final = {"$gt": [{"$bsonSize": {"of": "$error"}}, MAX_ERROR_BYTES]}
_IS_DATED: Final = {"$eq": [{"$type": "$error.at"}, "date"]}
_LONG_ERROR: Final = {
    "code": "too_long", "message": "the error is too long for a list: `tidemill dlq show` has it", "at": "$error.at",
}  # fmt: skip
"""Replaces an error that is too long for a list."""

SUMMARY_STAGES: Final[tuple[dict[str, Any], ...]] = (
    {"$set": {"error": {"$cond": [{"$and": [_IS_LARGE, _IS_DATED]}, _LONG_ERROR, "$error"]}}},
    *build_list_stages(*MARK_FIELDS),
)
"""Last stages of an aggregation that reads dead letters for a list."""


def read_summary(raw: RawBSONDocument) -> DeadLetter:
    """Return the dead letter that an aggregation with `SUMMARY_STAGES` read."""
    letter = read_dead_letter(raw)
    return replace(letter, task=shorten_error(letter.task))


def replace_id(ours: Mapping[str, Any], theirs: RawBSONDocument) -> RawBSONDocument:
    """Return a document of *ours*, followed by all of *theirs* except its id, byte for byte.

    Raises:
        ValueError: *theirs* does not begin with its id, or the id is text that is not UTF-8.
    """
    their_fields, id_field = encode_fields(theirs), encode_fields({"_id": decode_shallow(theirs)["_id"]})
    if not their_fields.startswith(id_field):
        raise ValueError("the document does not begin with its id")
    return splice_fields(encode_fields(ours), their_fields[len(id_field) :])


MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
RESERVED_BYTES: Final = 1024
"""Bytes to keep free, where possible, for the fields that exports and redrives add."""

_SPARE_FIELDS: Final = ("attempt_log", "result", "trace", "settled_by", "updated_at")
"""Fields to drop if there is no room: they neither belong to the request nor tell how the task ended."""


def build_dead_letter(raw: RawBSONDocument, *, now: datetime, redrives: int | None = None) -> RawBSONDocument:
    """Return the dead letter of a failed task: our fields, followed by its own fields byte for byte.

    *redrives* replaces the task's own number in the id. Fields that are not needed to run the task again are dropped
    if there is no room for ours.

    Raises:
        ValueError: The document cannot be read, or there is no room even then.
    """
    task = decode_shallow(raw)
    own = read_redrives(task) if redrives is None else redrives
    marks = _build_marks(task, now=now, redrives=own)
    letter = replace_id(marks, raw)
    if len(letter.raw) > MAX_DOCUMENT_BYTES - RESERVED_BYTES:
        letter = replace_id(marks, _drop_spare_fields(task))
    if len(letter.raw) > MAX_DOCUMENT_BYTES:
        raise ValueError("there is no room for the marks of a dead letter")
    return letter


def read_redrives(task: Mapping[str, Any]) -> int:
    """Return the number of redrives that *task* records."""
    value = task.get("redrives")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REDRIVES else 0


def _build_marks(task: Mapping[str, Any], *, now: datetime, redrives: int) -> dict[str, Any]:
    error = task.get("error")
    details = error if isinstance(error, Mapping) else {}
    code, message = str(details.get("code", "malformed")), str(details.get("message", ""))
    marks = {
        "_id": {"task": task["_id"], "redrives": redrives},
        "dead_lettered_at": now,
        "fingerprint": fingerprint(name=str(task.get("name")), code=code, message=message),
    }
    if "reason" not in task:  # the status was set by hand, or the cause is unknown
        marks["reason"] = "not_retryable"
    return marks


def _drop_spare_fields(task: Mapping[str, Any]) -> RawBSONDocument:
    fields = {name: value for name, value in task.items() if value is not None and name not in _SPARE_FIELDS}
    if isinstance(fields.get("error"), Mapping):
        fields["error"] = {**fields["error"], "message": "the document is full"}
    return RawBSONDocument(bson.encode(fields))


_FIRST_RETRY_WAIT_MS: Final = 600_000
_MAX_RETRY_WAIT_MS: Final = 86_400_000
_MAX_COUNTED_ATTEMPTS: Final = 1000


def record_failed_attempt(what: str, *, why: str, now: datetime) -> list[dict[str, Any]]:
    """Return the update that records a failed attempt to *what*: ``archive`` or ``export``.

    The wait until the next attempt is ten minutes, and doubles with each attempt, up to a day.
    """
    before = {"$min": [{"$max": [{"$ifNull": [f"${what}_attempts", 0]}, 0]}, _MAX_COUNTED_ATTEMPTS]}
    wait = {"$min": [{"$multiply": [_FIRST_RETRY_WAIT_MS, {"$pow": [2, before]}]}, _MAX_RETRY_WAIT_MS]}
    fields = {
        f"{what}_attempts": {"$add": [before, 1]},
        f"{what}_error": {"$literal": why},
        f"{what}_retry_at": {"$add": [now, {"$toLong": wait}]},
    }
    return [{"$set": fields}]
