"""What an operator may ask for: one model for each operation, told apart by ``op``."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Status
from tidemill.policies import Adaptive, Budget, QueueOptions, Selection
from tidemill.requests import REQUEST, listed

MAX_LIMIT: Final = 100
MAX_SINCE_SEC: Final = 1e9
"""Thirty years: longer than any counter is kept."""

_MAX_TEXT: Final = 1000


def _held_to(kind: type, field: str) -> BeforeValidator:
    """Return what holds a value to the rule that *kind* has for its *field*."""

    def check(value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
        try:
            kind(**{field: value})
        except ValueError as error:  # begins with the field
            raise ValueError(str(error).removeprefix(f"{field} ")) from None
        return value

    return BeforeValidator(check)


Name = Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)]
"""Of a queue, a function or a task: as a document may have it, not only as it is allowed for a new one."""


class QueueList(BaseModel):
    """All queues, with their sizes."""

    model_config = REQUEST

    op: Literal["queue.list"]


class QueueDeclare(BaseModel):
    """Let HTTP enqueue into a queue."""

    model_config = REQUEST

    op: Literal["queue.declare"]
    queue: Name


class QueueStatusOf(BaseModel):
    """How full a queue is, what it runs and has chosen."""

    model_config = REQUEST

    op: Literal["queue.status"]
    queue: Name


class QueuePause(BaseModel):
    """Start no more tasks of a queue."""

    model_config = REQUEST

    op: Literal["queue.pause"]
    queue: Name


class QueueResume(BaseModel):
    """Start the tasks of a queue again."""

    model_config = REQUEST

    op: Literal["queue.resume"]
    queue: Name


class AdaptiveChange(BaseModel):
    """Switch adaptive back-off on; what is left out stays, or is the default."""

    model_config = REQUEST

    scale: Annotated[int | None, _held_to(Adaptive, "scale")] = None
    max_sec: Annotated[float | None, _held_to(Adaptive, "max_sec")] = None


class BudgetChange(BaseModel):
    """Switch the retry budget on; what is left out stays, or is the default."""

    model_config = REQUEST

    per_minute: Annotated[int | None, _held_to(Budget, "per_minute")] = None
    factor: Annotated[float | None, _held_to(Budget, "factor")] = None


class QueueSet(BaseModel):
    """Change what a queue chooses for itself: what is left out stays, ``null`` takes a choice back."""

    model_config = REQUEST

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


class TaskList(BaseModel):
    """A page of the living tasks, newest first."""

    model_config = REQUEST

    op: Literal["task.list"]
    status: Status | None = None
    queue: Name | None = None
    name: Name | None = None
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)
    cursor: Name | None = None


class TaskShow(BaseModel):
    """One task with its execution log."""

    model_config = REQUEST

    op: Literal["task.show"]
    id: Name


class TaskExplain(BaseModel):
    """Why a task is not running."""

    model_config = REQUEST

    op: Literal["task.explain"]
    id: Name


class TaskRetry(BaseModel):
    """Make a delayed task due now."""

    model_config = REQUEST

    op: Literal["task.retry"]
    id: Name


class TaskCancel(BaseModel):
    """Cancel a task; with ``force`` also one that runs, whatever it still does."""

    model_config = REQUEST

    op: Literal["task.cancel"]
    id: Name
    force: bool = False


class Stats(BaseModel):
    """How retries went."""

    model_config = REQUEST

    op: Literal["stats"]
    since_sec: float = Field(default=86400.0, gt=0, le=MAX_SINCE_SEC)
    queue: Name | None = None


Operation: TypeAlias = (
    QueueList
    | QueueDeclare
    | QueueStatusOf
    | QueuePause
    | QueueResume
    | QueueSet
    | TaskList
    | TaskShow
    | TaskExplain
    | TaskRetry
    | TaskCancel
    | Stats
)

_ADAPTER: Final[TypeAdapter[Operation]] = TypeAdapter(Annotated[Operation, Field(discriminator="op")])
OPERATIONS: Final[tuple[str, ...]] = tuple(
    get_args(model.model_fields["op"].annotation)[0] for model in get_args(Operation)
)
"""What ``op`` may be."""

_ALL: Final = f"the operations are {', '.join(OPERATIONS)}"


class NoOperationError(InvalidRequestError):
    """The event is not of the kind that asks for an operation."""


def read(event: object) -> Operation:
    """Return what *event* asks for.

    Raises:
        NoOperationError: It is no object with an ``op``.
        InvalidRequestError: The operation is unknown, or is not asked for as it has to be.
    """
    if not isinstance(event, dict) or "op" not in event:
        raise NoOperationError([Problem("op", f'is missing: send {{"op": "queue.list"}}, for example; {_ALL}')])
    if event["op"] not in OPERATIONS:
        raise InvalidRequestError([Problem("op", _unknown(event["op"]))])
    try:
        return _ADAPTER.validate_python(event)
    except ValidationError as error:
        # The first part of each location is the operation.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        placed: list[dict[str, Any]] = [{**one, "loc": one["loc"][1:]} for one in found]
        raise InvalidRequestError(listed(placed, below="event")) from None


def _unknown(op: object) -> str:
    close = difflib.get_close_matches(op, OPERATIONS, n=1) if isinstance(op, str) else []
    guess = f", did you mean {close[0]}?" if close else ";"
    return f"is unknown{guess} {_ALL}"
