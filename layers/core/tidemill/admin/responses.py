"""Responses of operations, for the operate function and the command line, in UTC and seconds.

No response has payloads, results or lease tokens.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.redrive import MAX_EXAMPLES
from tidemill.explain.reasons import Reason
from tidemill.model import QueueOptions
from tidemill.store.tasks import format_id
from tidemill.text import iso_timestamp

Id = Annotated[str, BeforeValidator(lambda value: format_id(value.task if isinstance(value, DeadLetterId) else value))]
"""Id of a task, or of the task of a dead letter, as text."""

Time = Annotated[datetime, PlainSerializer(iso_timestamp, return_type=str)]
Count: TypeAlias = int | str  # text like 10000+ if it was not counted to the end


class View(BaseModel):
    """Part of a response. Fields not given are absent in JSON; unknown ones, of a newer function, are ignored."""

    model_config = ConfigDict(frozen=True, from_attributes=True, hide_input_in_errors=True)

    @classmethod
    def copy_fields(cls, source: object) -> dict[str, Any]:
        """Return the values of the fields that *source* has, too."""
        return {name: getattr(source, name) for name in cls.model_fields if hasattr(source, name)}


class Response(View):
    """Base of all responses.

    ``now`` is the time of the server at the beginning. ``truncated`` responses of the operate function were too large.
    """

    warnings: tuple[str, ...] = ()
    database: str = ""
    now: Time = datetime.min.replace(tzinfo=UTC)
    truncated: bool = False

    def document(self) -> dict[str, Any]:
        """Return the response in plain JSON types, with the fields of all responses at the end."""
        document = self.model_dump(mode="json", exclude_unset=True)
        last_fields = ("next", "warnings", "database", "now", "truncated")
        return document | {name: document.pop(name) for name in last_fields if name in document}


class Page(Response):
    """Response with a part of the result. ``next`` is the cursor of the next part, ``None`` after the last one."""

    next: str | None

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return sum(len(value) for name, value in self if isinstance(value, tuple) and name != "warnings")

    def merge(self, later: Self) -> Self:
        """Return both parts as one: rows joined, numbers summed up, everything else and what is left as in *later*."""
        fields = later.model_fields_set - Response.model_fields.keys() - {"left"}
        merged = {name: _merge(getattr(self, name), getattr(later, name)) for name in fields}
        if "examples" in merged:
            merged["examples"] = merged["examples"][:MAX_EXAMPLES]
        return later.model_copy(update=merged | ({"truncated": True} if self.truncated else {}))


def _merge(before: Any, later: Any) -> Any:  # noqa: ANN401 - values of any field
    match before, later:
        case bool(), _:
            return later
        case (int(), int()) | (tuple(), tuple()):
            return before + later
        case dict(), dict():
            return {name: before.get(name, 0) + later.get(name, 0) for name in {**before, **later}}
    return later


class RunningTask(View):
    """Running task of a queue. ``attempts`` includes this run; ``since`` is the time of the claim."""

    id: str
    name: str
    attempts: int
    is_retry: bool
    since: Time


class QueueView(View):
    """Sizes and options of a queue.

    Attributes:
        queue_size: Pending tasks of the lane fresh, due or not.
        retry_queue_size: Pending tasks of the lane retry, due or in back-off.
        delayed: Pending tasks of both lanes that are not due yet.
        processing: Tasks under a lease.
        failed: Failed tasks that are no dead letters yet.
        oldest_due_age_sec: Time since the oldest due task became due; ``None`` without due tasks.
        current: Some of the running tasks; only in the status of one queue.
    """

    queue: str
    queue_size: Count
    retry_queue_size: Count
    delayed: Count
    processing: Count
    failed: Count
    paused: bool
    oldest_due_age_sec: float | None
    current: tuple[RunningTask, ...] = ()
    options: QueueOptions


class ChangedQueue(View):
    """Options of a queue after a change."""

    queue: str
    paused: bool
    options: QueueOptions


class QueuePage(Page):
    """Response of ``queue.list``."""

    queues: tuple[QueueView, ...]


class QueueResponse(Response):
    """Response of ``queue.status``."""

    queue: QueueView


class QueueChangeResponse(Response):
    """Response of ``queue.declare``, ``queue.pause``, ``queue.resume`` and ``queue.set``."""

    queue: ChangedQueue


class QueueStatistics(View):
    """Statistics of retries, from counters. The time saved is what they gained by going before fresh tasks."""

    queue: str
    total_retries: int
    successful_retries: int
    retry_success_rate: float | None
    retries_exhausted: int
    backoff_sec_sum: float
    backoff_sec_mean: float | None
    retry_queue_size: Count
    time_saved_sec_estimate: float


class StatisticsResponse(Response):
    """Response of ``stats``."""

    statistics: tuple[QueueStatistics, ...]


class ErrorView(View):
    """Last failure of a task."""

    code: str
    message: str
    at: Time


class LeaseView(View):
    """Lease of a task, without its token."""

    owner: str
    expires_at: Time


class AttemptView(View):
    """Attempt of a task."""

    attempt: int
    status: Annotated[str, BeforeValidator(str)]  # anything, if it was edited by hand
    started_at: Time
    duration_ms: int
    note: str


class TaskView(View):
    """Task, or a dead letter's task. A list has neither ``has_result`` nor ``attempt_log``.

    With ``attempts_allowed_assumed`` the deployment may allow another number of attempts.
    """

    id: Id
    dead_letter: bool
    name: str
    queue: str
    status: str
    lane: str
    priority: int
    attempts: int
    due_at: Time
    next_retry_at: Time | None
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    expires_at: Time | None
    cancel_requested_at: Time | None
    reason: str | None
    archive_error: str | None
    error: ErrorView | None
    crashes: int
    redrives: int
    source: str | None
    correlation_id: str | None
    attempts_allowed: int
    attempts_allowed_assumed: bool
    lease: LeaseView | None
    has_result: bool = False
    attempt_log: tuple[AttemptView, ...] = ()


class MalformedView(View):
    """Document that is no valid task. ``malformed`` describes the fault."""

    id: Id
    dead_letter: bool
    malformed: str
    lease: LeaseView | None
    attempt_log: tuple[AttemptView, ...] = ()


AnyTask: TypeAlias = TaskView | MalformedView


class TaskPage(Page):
    """Response of ``task.list``."""

    tasks: tuple[AnyTask, ...]


class TaskResponse(Response):
    """Response of ``task.show``."""

    task: AnyTask


class ExplanationView(View):
    """All reasons why a task is not running, the decisive one first."""

    task_id: Id
    status: str
    is_dead_letter: bool
    reasons: tuple[Reason, ...]


class ExplanationResponse(Response):
    """Response of ``task.explain``."""

    explanation: ExplanationView


class RetryResponse(TaskResponse):
    """Response of ``task.retry``. ``queue_paused`` is ``None`` if that is unknown."""

    queue_paused: bool | None


class CancelResponse(TaskResponse):
    """Response of ``task.cancel``: the task after it, its status before, and whether it changed."""

    was: str
    changed: bool


class Marks(View):
    """Fields that dead letters have and tasks have not."""

    redrives: int
    fingerprint: str
    reason: str | None
    export_attempts: int
    export_error: str | None
    dead_lettered_at: Time | None
    archived_at: Time | None
    export_retry_at: Time | None
    redrive_started_at: Time | None
    redriven_at: Time | None


class DeadLetterView(Marks, TaskView):
    """Dead letter."""


class MalformedDeadLetterView(Marks, MalformedView):
    """Dead letter of a malformed document."""


AnyDeadLetter: TypeAlias = DeadLetterView | MalformedDeadLetterView


class OtherFailure(View):
    """Another failure of a task whose dead letter is shown."""

    redrives: int
    dead_lettered_at: Time | None
    reason: str | None
    fingerprint: str
    error: ErrorView | None
    redriven_at: Time | None


class Sample(View):
    """Latest dead letter of a group. ``name`` is ``None`` if its document is malformed."""

    id: Id
    redrives: int
    name: str | None
    reason: str | None
    error: ErrorView | None


class GroupRow(View):
    """Open dead letters that failed for the same reason. ``trend`` counts those of each of the last 24 hours."""

    fingerprint: str
    dead_letters: int
    first_at: Time | None
    last_at: Time | None
    trend: tuple[int, ...]
    sample: Sample | None


class GroupsResponse(Response):
    """Response of ``dlq.groups``. ``sampled_newest`` is set if only that many dead letters, the newest, are counted."""

    groups: tuple[GroupRow, ...]
    dead_letters: int
    total_groups: int
    sampled_newest: int | None


class DeadLetterPage(Page):
    """Response of ``dlq.list``."""

    dead_letters: tuple[AnyDeadLetter, ...]


class DeadLetterResponse(Response):
    """Response of ``dlq.show``: one dead letter of a task, and its other failures, the newest first."""

    letter: AnyDeadLetter
    other_failures: tuple[OtherFailure, ...]


class RefusalExample(View):
    """Dead letter that was not redriven, and the reason."""

    id: Id
    redrives: int
    code: str
    message: str


class RedriveResponse(Page):
    """Response of ``dlq.redrive``: counts, by code and by name. ``not_archived`` tasks are no dead letters yet."""

    dry_run: bool
    examined: int
    redriven: int
    refused: dict[str, int]
    unregistered: dict[str, int]
    not_archived: dict[str, int] = {}
    examples: tuple[RefusalExample, ...]


class PurgeResponse(Page):
    """Response of ``dlq.purge``: counts. ``in_progress`` dead letters are being redriven and were kept."""

    dry_run: bool
    examined: int
    purged: int
    unexported: int
    in_progress: int


class ExportResponse(Page):
    """Response of ``dlq.export``: counts of this call, and the number of dead letters left. It has no cursor."""

    next: None = None
    exported: int
    refused: int
    failed: int
    left: int
    last_error: str | None
