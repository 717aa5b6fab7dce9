"""Requests of operations: one model for each, discriminated by ``op``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidemill.control.callers import KEY_ID_PATTERN, Right
from tidemill.control.queues import MAX_COMPARED_NAME
from tidemill.dead_letters.documents import MAX_REDRIVES
from tidemill.model import Adaptive, Budget, QueueOptions, Selection, Status
from tidemill.requests.tasks import Moment
from tidemill.requests.validation import Request

MAX_LIMIT: Final = 100
MAX_SINCE_SEC: Final = 1e9
"""Thirty years: longer than any counter is kept."""

MAX_ID: Final = 8_192
"""Maximum number of characters of an id."""

MAX_CURSOR: Final = 65_536
"""Maximum number of characters of a cursor; larger than any page's cursor, which holds an id."""


def _validate_as(kind: type, field: str) -> BeforeValidator:
    """Return a validator that applies the rule of *kind* for its *field*."""

    def check(value: Any) -> Any:  # noqa: ANN401 - the value has any type
        try:
            kind(**{field: value})
        except ValueError as error:  # its text begins with the field
            raise ValueError(str(error).removeprefix(f"{field} ")) from None
        return value

    return BeforeValidator(check)


def _require_key_id(text: str) -> str:
    if not re.fullmatch(KEY_ID_PATTERN, text):
        raise ValueError("is no id of an API key: give the id, up to 19 letters and digits, not the value of the key")
    return text


Name = Annotated[str, Field(min_length=1, max_length=MAX_COMPARED_NAME)]
"""Name of a queue or a function: as any document may have it, not only as new ones are allowed."""

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
"""Id of a task, as `tidemill.store.tasks` reads it."""

KeyId = Annotated[str, AfterValidator(_require_key_id), Field(json_schema_extra={"pattern": KEY_ID_PATTERN})]
"""Id of an API key."""

Cursor = Annotated[str, Field(min_length=1, max_length=MAX_CURSOR)]
Redrives = Annotated[int, Field(ge=0, le=MAX_REDRIVES)]


class Operation(Request):
    """Request of an operator."""

    op: str


class QueueList(Operation):
    """A page of all queues by name, with their sizes."""

    op: Literal["queue.list"]
    limit: int = Field(default=MAX_LIMIT, ge=1, le=MAX_LIMIT)
    cursor: Name | None = None


class QueueDeclare(Operation):
    """Declare a queue, so that HTTP may enqueue into it."""

    op: Literal["queue.declare"]
    queue: Name


class QueueStatusOf(Operation):
    """Sizes, running tasks and options of a queue."""

    op: Literal["queue.status"]
    queue: Name


class QueuePause(Operation):
    """Pause a queue: no more of its tasks start."""

    op: Literal["queue.pause"]
    queue: Name


class QueueResume(Operation):
    """Resume a queue: its tasks start again."""

    op: Literal["queue.resume"]
    queue: Name


class AdaptiveChange(Request):
    """Switch adaptive back-off on. A missing field stays, or gets its default."""

    scale: Annotated[int | None, _validate_as(Adaptive, "scale")] = None
    max_sec: Annotated[float | None, _validate_as(Adaptive, "max_sec")] = None


class BudgetChange(Request):
    """Switch the retry budget on. A missing field stays, or gets its default."""

    per_minute: Annotated[int | None, _validate_as(Budget, "per_minute")] = None
    factor: Annotated[float | None, _validate_as(Budget, "factor")] = None


class QueueSet(Operation):
    """Change options of a queue. A missing field stays; ``null`` resets an option."""

    op: Literal["queue.set"]
    queue: Name
    selection: Annotated[Selection | None, _validate_as(QueueOptions, "selection")] = None
    retry_share: Annotated[float | None, _validate_as(QueueOptions, "retry_share")] = None
    max_in_flight_retries: Annotated[int | None, _validate_as(QueueOptions, "max_in_flight_retries")] = None
    adaptive: AdaptiveChange | None = None
    budget: BudgetChange | None = None

    @model_validator(mode="after")
    def _require_change(self) -> QueueSet:
        choices = type(self).model_fields.keys() - {"op", "queue"}
        if not self.model_fields_set & choices:
            raise ValueError(f"nothing to change: give at least one of {', '.join(sorted(choices))}")
        return self


class CallerList(Operation):
    """The API keys that have rights."""

    op: Literal["caller.list"]


class CallerGrant(Operation):
    """Give a right to an API key, by the id of the key."""

    op: Literal["caller.grant"]
    key_id: KeyId
    right: Right


class CallerRevoke(Operation):
    """Take a right from an API key, by the id of the key."""

    op: Literal["caller.revoke"]
    key_id: KeyId
    right: Right


class TaskList(Operation):
    """A page of the living tasks, newest first."""

    op: Literal["task.list"]
    status: Status | None = None
    queue: Name | None = None
    name: Name | None = None
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)
    cursor: Cursor | None = None


class TaskShow(Operation):
    """One task with its execution log."""

    op: Literal["task.show"]
    id: Id


class TaskExplain(Operation):
    """Reasons why a task is not running."""

    op: Literal["task.explain"]
    id: Id


class TaskRetry(Operation):
    """Make a delayed task due now."""

    op: Literal["task.retry"]
    id: Id


class TaskCancel(Operation):
    """Cancel a task; with ``force`` also a running one, without waiting for its function."""

    op: Literal["task.cancel"]
    id: Id
    force: bool = False


class Stats(Operation):
    """Statistics of retries."""

    op: Literal["stats"]
    since_sec: float = Field(default=86400.0, gt=0, le=MAX_SINCE_SEC)
    queue: Name | None = None


MAX_DEAD_LETTERS: Final = 1_000
"""Maximum number of dead letters that one call redrives, purges or exports. The answer has the next call's cursor."""

MIN_PER_SEC: Final = 0.001
MAX_PER_SEC: Final = 1_000_000.0
_FILTER_FIELDS: Final = ("fingerprint", "name", "queue", "since", "until")


class FilterRequest(Operation):
    """Dead letters that match all given fields: moved from ``since`` on and before ``until``."""

    fingerprint: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    name: Name | None = None
    queue: Name | None = None
    since: Moment | None = None
    until: Moment | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("since must be before until")
        return self

    @property
    def filters(self) -> dict[str, Any]:
        """The given filters by field."""
        return self.model_dump(include=set(_FILTER_FIELDS), exclude_none=True)


class SelectionRequest(FilterRequest):
    """Dead letters to change: one, the matching ones, or expressly all."""

    id: Id | None = None
    redrives: Redrives | None = None
    all: bool = False
    dry_run: bool = False
    limit: int = Field(default=MAX_DEAD_LETTERS, ge=1, le=MAX_DEAD_LETTERS)
    cursor: Cursor | None = None

    @model_validator(mode="after")
    def _require_selection(self) -> Self:
        ways = (self.id is not None, bool(self.filters), self.all)
        if not any(ways):
            raise ValueError(f"say which dead letters: id, {', '.join(_FILTER_FIELDS)}, or all: true")
        if sum(ways) > 1:
            raise ValueError("id, filters and all exclude each other")
        if self.redrives is not None and self.id is None:
            raise ValueError("redrives goes with id")
        return self


class DeadLetterGroups(Operation):
    """The largest groups of open dead letters that failed for the same reason."""

    op: Literal["dlq.groups"]
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)


class DeadLetterList(FilterRequest):
    """A page of dead letters, the newest first. ``redriven`` selects the redriven ones, ``null`` both."""

    op: Literal["dlq.list"]
    redriven: bool | None = False
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)
    cursor: Cursor | None = None


class DeadLetterShow(Operation):
    """One dead letter with its execution log, and the other failures of its task."""

    op: Literal["dlq.show"]
    id: Id
    redrives: Redrives | None = None


class DeadLetterRedrive(SelectionRequest):
    """Run tasks again from the beginning. ``per_sec`` limits how many become due each second."""

    op: Literal["dlq.redrive"]
    per_sec: float | None = Field(default=None, ge=MIN_PER_SEC, le=MAX_PER_SEC)
    drop_expiry: bool = False


class DeadLetterPurge(SelectionRequest):
    """Delete dead letters."""

    op: Literal["dlq.purge"]


class DeadLetterExport(Operation):
    """Copy dead letters to the bucket that are not exported."""

    op: Literal["dlq.export"]
    limit: int = Field(default=MAX_DEAD_LETTERS, ge=1, le=MAX_DEAD_LETTERS)
