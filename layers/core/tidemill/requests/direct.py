"""What the enqueue function takes when it is invoked directly: one task, many, or an occurrence of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, model_validator

from tidemill.errors import InvalidRequestError, Problem
from tidemill.requests.problems import Request, parsed
from tidemill.requests.retries import RetryOptions
from tidemill.requests.tasks import MAX_TASKS, Moment, NewTask

HOW_TO_RECUR: Final = (
    'an EventBridge Scheduler schedule must pass {"tasks": [...], "occurrence": '
    '{"schedule": "<aws.scheduler.schedule-arn>", "at": "<aws.scheduler.scheduled-time>"}}'
)
"""The two placeholders are filled in by EventBridge Scheduler; by nothing else."""


_NAMES: Final = {*NewTask.model_fields, *RetryOptions.model_fields}


def _filled_in(schedule: str) -> str:
    if schedule.startswith("<") or not schedule.isprintable() or schedule.strip() != schedule:
        raise ValueError(f"is no name of a schedule: {HOW_TO_RECUR}")
    return schedule


class Occurrence(Request):
    """One time at which a schedule was to fire, however often and however late that is delivered."""

    schedule: Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_filled_in)]
    at: Moment


class DirectRequest(Request):
    """The tasks of a direct invocation, in order."""

    tasks: list[NewTask] = Field(min_length=1, max_length=MAX_TASKS)
    occurrence: Occurrence | None = None

    @model_validator(mode="after")
    def _one_key(self) -> DirectRequest:
        if self.occurrence is not None and any(one.idempotency_key is not None for one in self.tasks):
            raise ValueError("the occurrence is the key: leave out idempotency_key")
        return self


def is_single(event: Mapping[str, Any]) -> bool:
    """Tell whether *event* is the body of one task."""
    return "tasks" not in event


def read_direct(event: object) -> DirectRequest:
    """Return what *event* asks for: the body of ``POST /tasks`` or ``POST /tasks/batch``, perhaps of a schedule.

    Raises:
        InvalidRequestError: With every problem found; it tells how a schedule is written where one may be meant.
    """
    if not isinstance(event, Mapping) or not event:
        raise InvalidRequestError([Problem("event", 'holds no task: send {"name": ..., "payload": {...}}, or "tasks"')])
    if "detail-type" in event:
        raise InvalidRequestError([Problem("occurrence", f"is missing: {HOW_TO_RECUR}")])
    if "occurrence" in event and event["occurrence"] is None:
        raise InvalidRequestError([Problem("occurrence", f"must not be null: {HOW_TO_RECUR}")])
    if not is_single(event):
        return parsed(DirectRequest, event, names=_NAMES)
    task = {name: value for name, value in event.items() if name != "occurrence"}
    try:
        return parsed(
            DirectRequest,
            {"tasks": [task]} | {name: event[name] for name in event if name == "occurrence"},
            names=_NAMES,
        )
    except InvalidRequestError as error:
        raise InvalidRequestError([_of_single(one) for one in error.problems]) from None


def _of_single(problem: Problem) -> Problem:
    field = problem.field.removeprefix("tasks.0")
    return Problem(field.removeprefix(".") or "event", problem.message)
