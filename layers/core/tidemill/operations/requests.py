"""What an operator may ask for: a union of one model for each operation, told apart by ``op``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tidemill.model import Status
from tidemill.policies import Adaptive, Budget, QueueOptions, Selection
from tidemill.requests import Request
from tidemill.status import MAX_NAME

MAX_LIMIT: Final = 100
MAX_SINCE_SEC: Final = 1e9
"""Thirty years: longer than any counter is kept."""

MAX_ID: Final = 8_192
"""Characters: 1,024 bytes, each of which may have to be spelled out as JSON does."""

MAX_CURSOR: Final = 65_536
"""Above what a page can name: a cursor holds an id."""


def _held_to(kind: type, field: str) -> BeforeValidator:
    """Return what holds a value to the rule that *kind* has for its *field*."""

    def check(value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
        try:
            kind(**{field: value})
        except ValueError as error:  # begins with the field
            raise ValueError(str(error).removeprefix(f"{field} ")) from None
        return value

    return BeforeValidator(check)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
"""Of a queue or a function: as a document may have it, not only as it is allowed for a new one."""

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
"""Of a task, as `tidemill.store.ids` reads it."""


class Operation(Request):
    """What an operator asks for."""

    op: str


class QueueList(Operation):
    """A page of all queues by name, with their sizes."""

    op: Literal["queue.list"]
    limit: int = Field(default=MAX_LIMIT, ge=1, le=MAX_LIMIT)
    cursor: Name | None = None


class QueueDeclare(Operation):
    """Let HTTP enqueue into a queue."""

    op: Literal["queue.declare"]
    queue: Name


class QueueStatusOf(Operation):
    """How full a queue is, what it runs and has chosen."""

    op: Literal["queue.status"]
    queue: Name


class QueuePause(Operation):
    """Start no more tasks of a queue."""

    op: Literal["queue.pause"]
    queue: Name


class QueueResume(Operation):
    """Start the tasks of a queue again."""

    op: Literal["queue.resume"]
    queue: Name


class AdaptiveChange(Request):
    """Switch adaptive back-off on; what is left out stays, or is the default."""

    scale: Annotated[int | None, _held_to(Adaptive, "scale")] = None
    max_sec: Annotated[float | None, _held_to(Adaptive, "max_sec")] = None


class BudgetChange(Request):
    """Switch the retry budget on; what is left out stays, or is the default."""

    per_minute: Annotated[int | None, _held_to(Budget, "per_minute")] = None
    factor: Annotated[float | None, _held_to(Budget, "factor")] = None


class QueueSet(Operation):
    """Change what a queue chooses for itself: what is left out stays, ``null`` takes a choice back."""

    op: Literal["queue.set"]
    queue: Name
    selection: Annotated[Selection | None, _held_to(QueueOptions, "selection")] = None
    retry_share: Annotated[float | None, _held_to(QueueOptions, "retry_share")] = None
    max_in_flight_retries: Annotated[int | None, _held_to(QueueOptions, "max_in_flight_retries")] = None
    adaptive: AdaptiveChange | None = None
    budget: BudgetChange | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> QueueSet:
        choices = type(self).model_fields.keys() - {"op", "queue"}
        if not self.model_fields_set & choices:
            raise ValueError(f"nothing to change: give at least one of {', '.join(sorted(choices))}")
        return self


class TaskList(Operation):
    """A page of the living tasks, newest first."""

    op: Literal["task.list"]
    status: Status | None = None
    queue: Name | None = None
    name: Name | None = None
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)
    cursor: Annotated[str, Field(min_length=1, max_length=MAX_CURSOR)] | None = None


class TaskShow(Operation):
    """One task with its execution log."""

    op: Literal["task.show"]
    id: Id


class TaskExplain(Operation):
    """Why a task is not running."""

    op: Literal["task.explain"]
    id: Id


class TaskRetry(Operation):
    """Make a delayed task due now."""

    op: Literal["task.retry"]
    id: Id


class TaskCancel(Operation):
    """Cancel a task; with ``force`` also one that runs, whatever it still does."""

    op: Literal["task.cancel"]
    id: Id
    force: bool = False


class Stats(Operation):
    """How retries went."""

    op: Literal["stats"]
    since_sec: float = Field(default=86400.0, gt=0, le=MAX_SINCE_SEC)
    queue: Name | None = None
