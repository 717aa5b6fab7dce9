"""Values of the domain: options, tasks, outcomes. Times are aware UTC in milliseconds; durations are timedeltas."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, get_args

Strategy: TypeAlias = Literal["exponential", "linear", "fixed", "fibonacci"]
Jitter: TypeAlias = Literal["none", "full", "decorrelated", "proportional"]
Selection: TypeAlias = Literal["weighted", "retries_first", "oldest_first"]

Status: TypeAlias = Literal["pending", "processing", "done", "failed", "cancelled"]
Lane: TypeAlias = Literal["fresh", "retry"]
AttemptStatus: TypeAlias = Literal["succeeded", "failed", "timed_out", "lost", "cancelled"]
Reason: TypeAlias = Literal[
    "exhausted", "worker_lost", "not_retryable", "expired", "unknown_task", "malformed", "timeout_too_long"
]

TaskId: TypeAlias = object
"""An ObjectId in documents of this package; any BSON value in documents from other writers."""

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
JITTERS: Final[tuple[Jitter, ...]] = get_args(Jitter)
SELECTIONS: Final[tuple[Selection, ...]] = get_args(Selection)

LANES: tuple[Lane, ...] = ("fresh", "retry")

MAX_RETRIES_LIMIT: Final = 1000
MAX_BACKOFF_SEC: Final = 7 * 86400.0
MAX_FACTOR: Final = 1000.0
MAX_COUNT: Final = 1_000_000
"""Upper bound of configured counts: retries in flight, retries a minute, ready tasks."""

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, tzinfo=UTC)

MAX_DELAY: Final = timedelta(days=366)
"""Longest time from now until a task is due, or expires, however it is said: enqueue, redrive, `Snooze`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Growth of the wait from failure to failure; see ``retry.backoff`` for the formulas.

    Only the strategy ``exponential`` uses ``factor``, only the jitter ``proportional`` uses ``jitter_factor``.

    Raises:
        ValueError: A word is unknown, or a number is not finite or out of range; the message starts with the field.
    """

    strategy: Strategy = "exponential"
    base_sec: float = 5.0
    factor: float = 2.0
    max_sec: float = 1800.0
    jitter: Jitter = "full"
    jitter_factor: float = 0.2

    def __post_init__(self) -> None:
        _require_word(self.strategy, STRATEGIES, "strategy")
        _require_number(self.base_sec, "base_sec", "above 0", above=0)
        _require_number(self.factor, "factor", f"from 1 to {MAX_FACTOR:g}", low=1, high=MAX_FACTOR)
        _require_number(self.max_sec, "max_sec", "from base_sec to 7 days", low=self.base_sec, high=MAX_BACKOFF_SEC)
        _require_word(self.jitter, JITTERS, "jitter")
        _require_number(self.jitter_factor, "jitter_factor", "above 0, at most 1", above=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Number of retries of a failed task, and the waits before them.

    ``max_retries=0`` is one run. The defaults are the preset ``default``; ``retry.PRESETS`` has more presets.
    """

    max_retries: int = 10
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        _require_whole(self.max_retries, 0, MAX_RETRIES_LIMIT, "max_retries")
        _require_kind(self.backoff, Backoff, "backoff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Longer waits while a queue has many ready tasks: one more wait for every *scale* of them, up to *max_sec*."""

    scale: int = 10
    max_sec: float = 60.0

    def __post_init__(self) -> None:
        _require_whole(self.scale, 1, MAX_COUNT, "scale")
        _require_number(self.max_sec, "max_sec", "above 0, up to 7 days", above=0, high=MAX_BACKOFF_SEC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Longer waits, by *factor*, after *per_minute* retries were scheduled in one clock minute."""

    per_minute: int = 100
    factor: float = 2.0

    def __post_init__(self) -> None:
        _require_whole(self.per_minute, 1, MAX_COUNT, "per_minute")
        _require_number(self.factor, "factor", f"from 1 to {MAX_FACTOR:g}", low=1, high=MAX_FACTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Options that lengthen the waits of a queue under load; ``None`` switches an option off."""

    adaptive: Adaptive | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.adaptive is not None:
            _require_kind(self.adaptive, Adaptive, "adaptive")
        if self.budget is not None:
            _require_kind(self.budget, Budget, "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of one queue; ``None`` means the deployment's choice.

    ``retry_share`` is the part of an executor's slots that retries occupy under the selection ``weighted``.
    ``max_in_flight_retries`` bounds the retries that are leased at once by all executors together; 0 pauses them.
    """

    paused: bool = False
    selection: Selection | None = None
    retry_share: float | None = None
    max_in_flight_retries: int | None = None
    pressure: Pressure = field(default_factory=Pressure)

    def __post_init__(self) -> None:
        _require(isinstance(self.paused, bool), "paused", "must be true or false")
        if self.selection is not None:
            _require_word(self.selection, SELECTIONS, "selection")
        if self.retry_share is not None:
            _require_number(self.retry_share, "retry_share", "from 0 to 1", low=0, high=1)
        if self.max_in_flight_retries is not None:
            _require_whole(self.max_in_flight_retries, 0, MAX_COUNT, "max_in_flight_retries")
        _require_kind(self.pressure, Pressure, "pressure")

    @property
    def has_paused_retries(self) -> bool:
        """True if no retry of the queue starts, whether or not its fresh tasks start."""
        return self.paused or self.max_in_flight_retries == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Proof of a claim. The token is new for every claim; the owner is an invocation or a process."""

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
    """One line of the execution log; ``attempt`` counts from 1."""

    attempt: int
    status: AttemptStatus
    started_at: datetime
    duration_ms: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One unit of work at the time of reading. The fields are the document's.

    ``archive_error`` is the reason of a failed move to the dead letters. ``adoption_note`` names a setting of another
    program's document that has no meaning here.
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
    adoption_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A document that is no valid task. ``problem`` describes the fault and repeats no value.

    ``status`` is the document's status if it is text.
    """

    id: TaskId
    problem: str
    lease: Lease | None
    attempt_log: tuple[Attempt, ...] = ()
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cause of one failed attempt.

    ``by_function`` is True if the function caused it (raised, ran too long), False if its worker or its task did.
    ``retry_after`` overrides the policy and its cap. ``traceback`` is for the output of a worker, and never stored.
    """

    message: str
    code: str
    retryable: bool = True
    retry_after: timedelta | None = None
    by_function: bool = True
    traceback: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The function returned; *result* can be stored."""

    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The attempt failed; the next attempt follows at *next_retry_at*."""

    failure: Failure
    next_retry_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task failed for good; *reason* says why no retry follows."""

    failure: Failure
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Snoozed:
    """The task is due again at *until*, and the attempt is refunded."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The task was cancelled before its run, or stopped its run when asked to."""


Outcome: TypeAlias = Succeeded | Retried | Failed | Snoozed | Cancelled

OUTCOME_NAMES: dict[type[Outcome], str] = {
    Succeeded: "done",
    Retried: "retried",
    Failed: "failed",
    Snoozed: "snoozed",
    Cancelled: "cancelled",
}
"""Names of outcomes in counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Duration and log note of one attempt."""

    started_at: datetime
    duration: timedelta
    status: AttemptStatus
    note: str = ""


def _require(condition: bool, field_name: str, sentence: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise ValueError(f"{field_name} {sentence}")


def _require_kind(value: object, kind: type, field_name: str) -> None:
    _require(isinstance(value, kind), field_name, f"must be a value of the class {kind.__name__}")


def _require_word(value: object, words: tuple[str, ...], field_name: str) -> None:
    _require(isinstance(value, str) and value in words, field_name, f"must be one of {', '.join(words)}")


def _require_whole(value: object, low: int, high: int, field_name: str) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    _require(is_whole, field_name, f"must be a whole number from {low} to {high}")


def _require_number(
    value: object, field_name: str, limits: str, *, above: float = -1, low: float = 0, high: float = sys.float_info.max
) -> None:
    is_number = (
        isinstance(value, int | float) and not isinstance(value, bool) and above < value and low <= value <= high
    )
    _require(is_number, field_name, f"must be a number {limits}")
