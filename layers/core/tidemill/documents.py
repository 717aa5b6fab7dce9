"""The shape of a task document: written for a new task, read with suspicion.

Documents are edited by people and by older releases, so reading one never raises: it yields a ``Task`` or says
what is ``Malformed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final, TypeGuard, TypeVar

import bson
from bson import DBRef
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from tidemill.model import EARLIEST, LANES, LATEST, Attempt, Lease, Malformed, Status, Task, TaskError
from tidemill.policies import Backoff

TASKS: Final = "tasks"
DEAD_LETTERS: Final = "tasks_dlq"
TASK_TYPES: Final = "task_types"
QUEUES: Final = "queues"
CONTROL: Final = "control"
QUEUE_STATS: Final = "queue_stats"
OCCURRENCES: Final = "occurrences"

RAW: Final = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_STRICT: Final = CodecOptions[dict[str, Any]](tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO)
FORGIVING: Final = _STRICT.with_options(unicode_decode_error_handler="replace")
_OPENED: Final = RAW.with_options(tz_aware=True, unicode_decode_error_handler="replace")
MAX_ATTEMPTS: Final = 2**31 - 1
"""What ``attempts`` stays below, so that one more can be counted."""

STATUSES: Final[tuple[Status, ...]] = ("pending", "processing", "done", "failed", "cancelled")
_T = TypeVar("_T")


def schedule(at: datetime | None, *, now: datetime) -> dict[str, datetime | None]:
    """Return the two fields that say when a pending task is due; nothing else sets them.

    *at* is the end of a delay or the time of a retry; ``None`` is no delay, due from *now*.
    """
    return {"due_at": at or now, "next_retry_at": at}


def decode(raw: RawBSONDocument) -> dict[str, Any]:
    """Return the content of *raw*; text that is not UTF-8 comes with replacement characters."""
    try:
        return _decoded(raw, _STRICT)
    except InvalidBSON:
        return _decoded(raw, FORGIVING)


def opened(raw: RawBSONDocument) -> RawBSONDocument:
    """Return *raw* with its first level decoded as `decode` does it; what is below keeps its bytes."""
    return RawBSONDocument(bytes(raw.raw), _OPENED)


def read(raw: RawBSONDocument) -> Task | Malformed:
    """Return the task that *raw* holds, or what keeps it from being one."""
    try:
        document = _decoded(raw, _STRICT)
    except InvalidBSON:
        return _malformed(_decoded(raw, FORGIVING), "holds text that is not UTF-8")
    try:
        return _task(document)
    except _Wrong as wrong:
        return _malformed(document, str(wrong))


def is_text(value: object) -> TypeGuard[str]:
    """Tell whether a stored *value* is text. Code is none, though the driver makes a ``str`` of it that has no hash."""
    return type(value) is str


def error_document(*, message: str, code: str, at: datetime) -> dict[str, Any]:
    """Return the stored form of a failure."""
    return {"message": message, "code": code, "at": at}


def attempt_document(attempt: Attempt) -> dict[str, Any]:
    """Return the stored form of one line of the execution log."""
    return {
        "attempt": attempt.attempt,
        "status": attempt.status,
        "started_at": attempt.started_at,
        "duration_ms": attempt.duration_ms,
        "note": attempt.note,
    }


def backoff_document(backoff: Backoff | None) -> dict[str, Any] | None:
    """Return the stored form of a back-off."""
    return None if backoff is None else asdict(backoff)


class _Wrong(Exception):  # noqa: N818 - raised and caught within this file
    """A field is not what it has to be. Private: `read` makes a value of it."""


def _decoded(raw: RawBSONDocument, options: CodecOptions[dict[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = bson.decode(raw.raw, options)
    return _without_references(document) if b"$ref" in raw.raw else document


def _without_references(value: Any) -> Any:  # noqa: ANN401 - anything may stand in a document, here and below
    """Return *value* with the plain objects that the driver takes for a DBRef because they hold $ref and $id."""
    if isinstance(value, DBRef):
        value = value.as_doc()
    if isinstance(value, dict):
        return {name: _without_references(one) for name, one in value.items()}
    return [_without_references(one) for one in value] if isinstance(value, list) else value


def _task(doc: dict[str, Any]) -> Task:
    status = _need(doc, "status", _one_of(STATUSES))  # first: nobody looks at a document without one
    due_at = _need(doc, "due_at", _date)
    trace = doc.get("trace") if isinstance(doc.get("trace"), dict) else {}
    return Task(
        id=doc.get("_id"),
        name=_need(doc, "name", _word),
        queue=_need(doc, "queue", _word),
        payload=_need(doc, "payload", _object),
        status=status,
        lane=_need(doc, "lane", _one_of(LANES)),
        priority=_may(doc, "priority", _whole, 0),
        due_at=due_at,
        next_retry_at=_may(doc, "next_retry_at", _date, None),
        attempts=_need(doc, "attempts", _attempts),
        max_retries=_may(doc, "max_retries", _count, None),
        backoff=_may(doc, "backoff_policy", _backoff, None),
        timeout=_may(doc, "timeout_sec", _span, None),
        expires_at=_may(doc, "expires_at", _date, None),
        created_at=_may(doc, "created_at", _date, due_at),
        updated_at=_may(doc, "updated_at", _date, due_at),
        finished_at=_may(doc, "finished_at", _date, None),
        lease=_lease(doc.get("lease")),
        settled_by=_text(doc, "settled_by"),
        cancel_requested_at=_may(doc, "cancel_requested_at", _date, None),
        error=_error(doc.get("error")),
        reason=_text(doc, "reason"),
        attempt_log=_attempt_log(doc.get("attempt_log")),
        crashes=_crashes(doc.get("crashes")),
        redrives=_may(doc, "redrives", _count, 0),
        result=doc.get("result"),
        idempotency_key=_text(doc, "idempotency_key"),
        source=_text(trace, "source"),
        correlation_id=_text(trace, "correlation_id"),
        traceparent=_text(trace, "traceparent"),
        archive_error=_text(doc, "archive_error"),
    )


def _malformed(doc: dict[str, Any], problem: str) -> Malformed:
    return Malformed(
        id=doc.get("_id"),
        problem=problem,
        lease=_lease(doc.get("lease")),
        attempt_log=_attempt_log(doc.get("attempt_log")),
        status=_text(doc, "status"),
    )


def _need(doc: Mapping[str, Any], name: str, kind: Callable[[Any], _T]) -> _T:
    if name not in doc:
        raise _Wrong(f"{name} is missing")
    try:
        return kind(doc[name])
    except (TypeError, ValueError):
        raise _Wrong(f"{name} is not what it has to be") from None


def _may(doc: Mapping[str, Any], name: str, kind: Callable[[Any], _T], default: _T) -> _T:
    return default if doc.get(name) is None else _need(doc, name, kind)


def _word(value: Any) -> str:  # noqa: ANN401
    if not is_text(value) or not value:
        raise TypeError
    return value


def _object(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, dict):
        raise TypeError
    return value


def _whole(value: Any) -> int:  # noqa: ANN401 - shells write 3 as 3.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not -(2**63) <= value < 2**63 or value != int(value):
        raise ValueError
    return int(value)


def _count(value: Any) -> int:  # noqa: ANN401
    number = _whole(value)
    if number < 0:
        raise ValueError
    return number


def _crashes(value: Any) -> int:  # noqa: ANN401 - whatever it is: not nothing is a suspect
    try:
        return min(_count(value or 0), MAX_ATTEMPTS - 1)
    except (TypeError, ValueError):
        return 1


def _attempts(value: Any) -> int:  # noqa: ANN401
    number = _count(value)
    if number >= MAX_ATTEMPTS:
        raise ValueError
    return number


def _date(value: Any) -> datetime:  # noqa: ANN401
    if isinstance(value, DatetimeMS):  # before year 1 or after 9999
        return EARLIEST if int(value) < 0 else LATEST
    if not isinstance(value, datetime):
        raise TypeError
    return value


def _span(value: Any) -> timedelta:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TypeError
    return timedelta(seconds=min(value, 1e9))


def _backoff(value: Any) -> Backoff:  # noqa: ANN401
    given = _object(value)
    return Backoff(**{name: given[name] for name in Backoff.__dataclass_fields__ if given.get(name) is not None})


def _one_of(words: tuple[_T, ...]) -> Callable[[Any], _T]:
    def kind(value: Any) -> _T:  # noqa: ANN401
        return words[words.index(value)]

    return kind


def _lease(value: Any) -> Lease | None:  # noqa: ANN401
    if not isinstance(value, dict):
        return None
    token, owner, expires_at = value.get("token"), value.get("owner"), value.get("expires_at")
    if is_text(token) and is_text(owner) and isinstance(expires_at, datetime | DatetimeMS):
        return Lease(token=token, owner=owner, expires_at=_date(expires_at))
    return None


def _error(value: Any) -> TaskError | None:  # noqa: ANN401
    try:
        return TaskError(message=_word(value["message"]), code=_word(value["code"]), at=_date(value["at"]))
    except (TypeError, ValueError, KeyError):
        return None


def _attempt_log(value: Any) -> tuple[Attempt, ...]:  # noqa: ANN401
    lines = value if isinstance(value, list) else []
    return tuple(line for line in map(_attempt, lines) if line is not None)


def _attempt(value: Any) -> Attempt | None:  # noqa: ANN401
    try:
        return Attempt(
            attempt=_count(value["attempt"]),
            status=value["status"],
            started_at=_date(value["started_at"]),
            duration_ms=_count(value["duration_ms"]),
            note=str(value["note"]),
        )
    except (TypeError, ValueError, KeyError):
        return None


def _text(trace: Any, name: str) -> str | None:  # noqa: ANN401
    value = trace.get(name)
    return value if is_text(value) else None
