"""Documents of tasks: collections, decoding, parsing, parts of a new document, and the defaults of adopted documents.

People and older releases edit documents. A read therefore never raises: it returns a ``Task``, or ``Malformed`` with
the problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

import bson
from bson import DBRef, ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from tidemill.model import (
    EARLIEST,
    JITTERS,
    LANES,
    LATEST,
    Attempt,
    Backoff,
    Lease,
    Malformed,
    Status,
    Task,
    TaskError,
    TaskId,
)

TASKS: Final = "tasks"
DEAD_LETTERS: Final = "tasks_dlq"
TASK_TYPES: Final = "task_types"
QUEUES: Final = "queues"
CONTROL: Final = "control"
QUEUE_STATS: Final = "queue_stats"
OCCURRENCES: Final = "occurrences"
COLLECTIONS: Final = (TASKS, DEAD_LETTERS, TASK_TYPES, QUEUES, CONTROL, QUEUE_STATS, OCCURRENCES)
"""Names of all collections, without a prefix."""

PREFIX_PATTERN: Final = r"(?!system\.)[A-Za-z_][A-Za-z0-9_.-]{0,31}"
PREFIX_RULE: Final = "must be 1 to 32 letters, digits, _ . or -, the first a letter or _, and not begin with system."

RAW_OPTIONS: Final = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_STRICT_OPTIONS: Final = CodecOptions[dict[str, Any]](
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
LENIENT_OPTIONS: Final = _STRICT_OPTIONS.with_options(unicode_decode_error_handler="replace")
_SHALLOW_OPTIONS: Final = RAW_OPTIONS.with_options(tz_aware=True, unicode_decode_error_handler="replace")
MAX_ATTEMPTS: Final = 2**31 - 1
"""Upper bound of ``attempts``. The count stays below it, so a claim can always add 1."""

_JITTER_FIELD: Final = "backoff_policy.jitter"
_MAX_WORD_CHARS: Final = 40
STATUSES: Final[tuple[Status, ...]] = ("pending", "processing", "done", "failed", "cancelled")
_T = TypeVar("_T")


ClaimKey: TypeAlias = tuple[bytes, str | None]
"""Hashable key of one claim of a task: the key of its id, and the token of its lease."""


def id_key(task_id: TaskId) -> bytes:
    """Return *task_id* as a hashable key, because an id may be any BSON value."""
    if type(task_id) is ObjectId:
        return task_id.binary
    return bson.encode({"_id": task_id})


def claim_key(task: Task | Malformed) -> ClaimKey:
    """Return the key of this claim of *task*."""
    return id_key(task.id), task.lease.token if task.lease is not None else None


def schedule(at: datetime | None, *, now: datetime) -> dict[str, datetime | None]:
    """Return the two fields that make a pending task due; no other code sets them.

    *at* is the end of a delay or the time of a retry. ``None``: the task is due from *now*.
    """
    return {"due_at": at or now, "next_retry_at": at}


def decode(raw: RawBSONDocument) -> dict[str, Any]:
    """Return the content of *raw*. Bytes that are not UTF-8 become replacement characters."""
    try:
        return _decode_with(raw, _STRICT_OPTIONS)
    except InvalidBSON:
        return _decode_with(raw, LENIENT_OPTIONS)


def decode_shallow(raw: RawBSONDocument) -> RawBSONDocument:
    """Return *raw* with its first level decoded as by `decode`. Lower levels keep their bytes."""
    return RawBSONDocument(bytes(raw.raw), _SHALLOW_OPTIONS)


def encode_fields(document: Mapping[str, Any]) -> bytes:
    """Return the fields of *document* as BSON, for `splice_fields`. Fields of a raw document keep their bytes."""
    return bson.encode(document)[4:-1]


def splice_fields(*parts: bytes) -> RawBSONDocument:
    """Return the document of the encoded fields in *parts*. Nothing is decoded, so every byte survives."""
    fields = b"".join(parts)
    return RawBSONDocument((len(fields) + 5).to_bytes(4, "little") + fields + b"\x00")


def read_task(raw: RawBSONDocument) -> Task | Malformed:
    """Return the task in *raw*, or the problem that makes it malformed."""
    try:
        document = _decode_with(raw, _STRICT_OPTIONS)
    except InvalidBSON:
        return _make_malformed(_decode_with(raw, LENIENT_OPTIONS), "holds text that is not UTF-8")
    try:
        return _parse_task(document)
    except _InvalidFieldError as error:
        return _make_malformed(document, str(error))


def is_text(value: object) -> TypeGuard[str]:
    """Return True if a stored *value* is text. BSON code is not: the driver's ``Code`` is a ``str`` without a hash."""
    return type(value) is str


def error_document(*, message: str, code: str, at: datetime) -> dict[str, Any]:
    """Return the stored form of a failure."""
    return {"message": message, "code": code, "at": at}


def attempt_document(attempt: Attempt) -> dict[str, Any]:
    """Return the stored form of a line of the execution log."""
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


def missing_fields(raw: RawBSONDocument, *, now: datetime, adopt_as: str | None) -> dict[str, Any] | Malformed:
    """Return the fields that *raw* needs to be a task, or the problem that no fields can solve.

    A document of the shape ``{payload, status, attempts, next_retry_at}`` needs only defaults. *adopt_as* is the name
    of the function that runs it. Only missing and null fields are added. A field with a wrong value was meant
    differently, so it stays. The exception is an unknown jitter of such a document: its delays get no jitter.
    """
    completed = complete(raw, now=now, adopt_as=adopt_as)
    return completed if isinstance(completed, Malformed) else completed[1]


def complete(raw: RawBSONDocument, *, now: datetime, adopt_as: str | None) -> tuple[Task, dict[str, Any]] | Malformed:
    """Return the task that *raw* becomes, with the fields of `missing_fields`, or the problem."""
    document = decode(raw)
    defaults = _build_defaults(document, now, adopt_as)
    fields = {name: value for name, value in defaults.items() if document.get(name) is None}
    if (jitter := _find_unknown_jitter(document)) is not None:
        document["backoff_policy"]["jitter"] = "none"
        fields["adoption_note"] = f"its jitter {jitter[:_MAX_WORD_CHARS]!r} is unknown, so its delays have none"
    task = read_task(RawBSONDocument(bson.encode(document | fields)))
    if isinstance(task, Malformed):
        return task
    return task, fields | ({} if jitter is None else {_JITTER_FIELD: "none"})


def build_adoption_filter(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filter of a document that still lacks *fields*, or still has an unknown jitter."""
    return {name: {"$nin": list(JITTERS)} if name == _JITTER_FIELD else None for name in fields}  # null matches missing


def _find_unknown_jitter(document: Mapping[str, Any]) -> str | None:
    policy = document.get("backoff_policy")
    is_foreign = document.get("lane") is None and document.get("due_at") is None
    jitter = policy.get("jitter") if isinstance(policy, dict) else None
    return jitter if is_foreign and is_text(jitter) and jitter not in JITTERS else None


class _InvalidFieldError(Exception):
    """A required field is missing, or a field has a wrong type or value. `read` turns it into a value."""


def _decode_with(raw: RawBSONDocument, options: CodecOptions[dict[str, Any]]) -> dict[str, Any]:
    content = bytes(raw.raw)  # the driver gives a memoryview of a large document, in which no text is ever found
    document: dict[str, Any] = bson.decode(content, options)
    return _replace_references(document) if b"$ref" in content else document


def _replace_references(value: Any) -> Any:  # noqa: ANN401 - any value of a document, here and below
    """Return *value* with plain objects in place of each DBRef, which the driver makes of $ref and $id."""
    if isinstance(value, DBRef):
        value = value.as_doc()
    if isinstance(value, dict):
        return {name: _replace_references(field) for name, field in value.items()}
    return [_replace_references(element) for element in value] if isinstance(value, list) else value


def _parse_task(doc: dict[str, Any]) -> Task:
    # The status is first: no query finds a document without one.
    status = _parse_required(doc, "status", _make_choice_parser(STATUSES))
    due_at = _parse_required(doc, "due_at", _parse_date)
    trace = doc.get("trace") if isinstance(doc.get("trace"), dict) else {}
    return Task(
        id=doc.get("_id"),
        name=_parse_required(doc, "name", _parse_word),
        queue=_parse_required(doc, "queue", _parse_word),
        payload=_parse_required(doc, "payload", _parse_object),
        status=status,
        lane=_parse_required(doc, "lane", _make_choice_parser(LANES)),
        priority=_parse_optional(doc, "priority", _parse_whole, 0),
        due_at=due_at,
        next_retry_at=_parse_optional(doc, "next_retry_at", _parse_date, None),
        attempts=_parse_required(doc, "attempts", _parse_attempts),
        max_retries=_parse_optional(doc, "max_retries", _parse_count, None),
        backoff=_parse_optional(doc, "backoff_policy", _parse_backoff, None),
        timeout=_parse_optional(doc, "timeout_sec", _parse_seconds, None),
        expires_at=_parse_optional(doc, "expires_at", _parse_date, None),
        created_at=_parse_optional(doc, "created_at", _parse_date, due_at),
        updated_at=_parse_optional(doc, "updated_at", _parse_date, due_at),
        finished_at=_parse_optional(doc, "finished_at", _parse_date, None),
        lease=_parse_lease(doc.get("lease")),
        settled_by=_get_text(doc, "settled_by"),
        cancel_requested_at=_parse_optional(doc, "cancel_requested_at", _parse_date, None),
        error=_parse_error(doc.get("error")),
        reason=_get_text(doc, "reason"),
        attempt_log=_parse_attempt_log(doc.get("attempt_log")),
        crashes=_parse_crashes(doc.get("crashes")),
        redrives=_parse_optional(doc, "redrives", _parse_count, 0),
        result=doc.get("result"),
        idempotency_key=_get_text(doc, "idempotency_key"),
        source=_get_text(trace, "source"),
        correlation_id=_get_text(trace, "correlation_id"),
        traceparent=_get_text(trace, "traceparent"),
        archive_error=_get_text(doc, "archive_error"),
        adoption_note=_get_text(doc, "adoption_note"),
    )


def _make_malformed(doc: dict[str, Any], problem: str) -> Malformed:
    return Malformed(
        id=doc.get("_id"),
        problem=problem,
        lease=_parse_lease(doc.get("lease")),
        attempt_log=_parse_attempt_log(doc.get("attempt_log")),
        status=_get_text(doc, "status"),
    )


def _parse_required(doc: Mapping[str, Any], name: str, parse: Callable[[Any], _T]) -> _T:
    if name not in doc:
        raise _InvalidFieldError(f"{name} is missing")
    try:
        return parse(doc[name])
    except (TypeError, ValueError):
        raise _InvalidFieldError(f"{name} is not what it has to be") from None


def _parse_optional(doc: Mapping[str, Any], name: str, parse: Callable[[Any], _T], default: _T) -> _T:
    return default if doc.get(name) is None else _parse_required(doc, name, parse)


def _parse_word(value: Any) -> str:  # noqa: ANN401
    if not is_text(value) or not value:
        raise TypeError
    return value


def _parse_object(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, dict):
        raise TypeError
    return value


def _parse_whole(value: Any) -> int:  # noqa: ANN401 - MongoDB's shells write 3 as 3.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not -(2**63) <= value < 2**63 or value != int(value):
        raise ValueError
    return int(value)


def _parse_count(value: Any) -> int:  # noqa: ANN401
    number = _parse_whole(value)
    if number < 0:
        raise ValueError
    return number


def _parse_crashes(value: Any) -> int:  # noqa: ANN401
    """Return the count of crashes. Any other value reads as 1: the task may have killed its worker."""
    try:
        return min(_parse_count(value or 0), MAX_ATTEMPTS - 1)
    except (TypeError, ValueError):
        return 1


def _parse_attempts(value: Any) -> int:  # noqa: ANN401
    number = _parse_count(value)
    if number >= MAX_ATTEMPTS:
        raise ValueError
    return number


def _parse_date(value: Any) -> datetime:  # noqa: ANN401
    if isinstance(value, DatetimeMS):  # before year 1 or after 9999
        return EARLIEST if int(value) < 0 else LATEST
    if not isinstance(value, datetime):
        raise TypeError
    return value


def _parse_seconds(value: Any) -> timedelta:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TypeError
    return timedelta(seconds=min(value, 1e9))


def _parse_backoff(value: Any) -> Backoff:  # noqa: ANN401
    document = _parse_object(value)
    return Backoff(**{name: document[name] for name in Backoff.__dataclass_fields__ if document.get(name) is not None})


def _make_choice_parser(choices: tuple[_T, ...]) -> Callable[[Any], _T]:
    def parse(value: Any) -> _T:  # noqa: ANN401
        return choices[choices.index(value)]

    return parse


def _parse_lease(value: Any) -> Lease | None:  # noqa: ANN401
    if not isinstance(value, dict):
        return None
    token, owner, expires_at = value.get("token"), value.get("owner"), value.get("expires_at")
    if is_text(token) and is_text(owner) and isinstance(expires_at, datetime | DatetimeMS):
        return Lease(token=token, owner=owner, expires_at=_parse_date(expires_at))
    return None


def _parse_error(value: Any) -> TaskError | None:  # noqa: ANN401
    try:
        return TaskError(
            message=_parse_word(value["message"]), code=_parse_word(value["code"]), at=_parse_date(value["at"])
        )
    except (TypeError, ValueError, KeyError):
        return None


def _parse_attempt_log(value: Any) -> tuple[Attempt, ...]:  # noqa: ANN401
    lines = value if isinstance(value, list) else []
    return tuple(line for line in map(_parse_attempt, lines) if line is not None)


def _parse_attempt(value: Any) -> Attempt | None:  # noqa: ANN401
    try:
        return Attempt(
            attempt=_parse_count(value["attempt"]),
            status=value["status"],
            started_at=_parse_date(value["started_at"]),
            duration_ms=_parse_count(value["duration_ms"]),
            note=str(value["note"]),
        )
    except (TypeError, ValueError, KeyError):
        return None


def _get_text(trace: Any, name: str) -> str | None:  # noqa: ANN401
    value = trace.get(name)
    return value if is_text(value) else None


def _build_defaults(document: dict[str, Any], now: datetime, adopt_as: str | None) -> dict[str, Any]:
    attempts = document.get("attempts")
    has_failed = isinstance(attempts, int | float) and attempts > 0
    defaults: dict[str, Any] = {
        "queue": "default",
        "lane": "retry" if has_failed else "fresh",
        "priority": 0,
        "created_at": now,
        "updated_at": now,
        "crashes": 0,
        "redrives": 0,
        "attempt_log": [],
        "due_at": schedule(document.get("next_retry_at"), now=now)["due_at"],
    }
    return defaults | ({"name": adopt_as} if adopt_as else {})
