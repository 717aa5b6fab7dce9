"""The values Tidemill speaks in. Times are aware UTC, truncated to milliseconds; spans are timedeltas."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from tidemill.policies import Backoff

TaskId: TypeAlias = object
"""An ObjectId where this package made it; whatever BSON allows where a person wrote the document."""

Status: TypeAlias = Literal["pending", "processing", "done", "failed", "cancelled"]
Lane: TypeAlias = Literal["fresh", "retry"]
AttemptStatus: TypeAlias = Literal["succeeded", "failed", "timed_out", "lost", "cancelled"]
Reason: TypeAlias = Literal[
    "exhausted", "worker_lost", "not_retryable", "expired", "unknown_task", "malformed", "timeout_too_long"
]

LANES: tuple[Lane, ...] = ("fresh", "retry")
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The proof of a claim. The token is new for every claim; the owner is an invocation or a process."""

    token: str
    owner: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """The last failure of a task, bounded."""

    message: str
    code: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One line of the execution log; ``attempt`` 0 is the initial run."""

    attempt: int
    status: AttemptStatus
    started_at: datetime
    duration_ms: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One unit of work as it stood when it was read. The fields are those of the document.

    ``archive_error``: why it could not be moved to the dead letters, where it could not.
    """

    id: TaskId
    name: str
    queue: str
    payload: dict[str, Any]
    status: Status
    lane: Lane
    priority: int
    due_at: datetime
    next_retry_at: datetime | None
    attempts: int
    max_retries: int | None
    backoff: Backoff | None
    timeout: timedelta | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    lease: Lease | None
    settled_by: str | None
    cancel_requested_at: datetime | None
    error: TaskError | None
    reason: str | None
    attempt_log: tuple[Attempt, ...]
    crashes: int
    redrives: int
    result: Any
    idempotency_key: str | None
    source: str | None
    correlation_id: str | None
    traceparent: str | None
    archive_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A document that cannot be a task: what is wrong with it, in words that repeat no value.

    ``status`` is what stands there, where that is text.
    """

    id: TaskId
    problem: str
    lease: Lease | None
    attempt_log: tuple[Attempt, ...] = ()
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong with one attempt.

    ``by_function`` tells what the function itself did (raised, ran too long) from what befell it.
    ``retry_after`` beats the policy and its cap.
    """

    message: str
    code: str
    retryable: bool = True
    retry_after: timedelta | None = None
    by_function: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The function returned; *result* can be stored."""

    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The attempt failed and another follows at *next_retry_at*."""

    failure: Failure
    next_retry_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task failed for good, and why there is no further try."""

    failure: Failure
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Snoozed:
    """Not now: due again at *until*, and the attempt is refunded."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """It was asked to stop and it stopped."""


Outcome: TypeAlias = Succeeded | Retried | Failed | Snoozed | Cancelled

OUTCOME_NAMES: dict[type[Outcome], str] = {
    Succeeded: "done",
    Retried: "retried",
    Failed: "failed",
    Snoozed: "snoozed",
    Cancelled: "cancelled",
}
"""What outcomes are called where they are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How long one attempt took and what is to be said of it."""

    started_at: datetime
    duration: timedelta
    status: AttemptStatus
    note: str = ""
