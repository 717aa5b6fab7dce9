"""Entry of the administration: read an operation from an event, carry it out, describe a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from tidemill.admin import callers, dead_letters, queues, requests, tasks
from tidemill.admin.context import AdminContext
from tidemill.admin.requests import Operation
from tidemill.admin.responses import Response
from tidemill.errors import (
    InvalidRequestError,
    NotDelayedError,
    Problem,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.policy.failures import truncate_text
from tidemill.requests.validation import parse_request
from tidemill.text import did_you_mean

_ANSWERS: Final[Mapping[type[Operation], Callable[[Any, AdminContext], Response]]] = {
    requests.QueueList: queues.list_queues,
    requests.QueueDeclare: queues.declare,
    requests.QueueStatusOf: queues.show_status,
    requests.QueuePause: queues.set_paused,
    requests.QueueResume: queues.set_paused,
    requests.QueueSet: queues.change,
    requests.CallerList: callers.list_callers,
    requests.CallerGrant: callers.grant,
    requests.CallerRevoke: callers.revoke,
    requests.TaskList: tasks.list_tasks,
    requests.TaskShow: tasks.show,
    requests.TaskExplain: tasks.explain,
    requests.TaskRetry: tasks.retry,
    requests.TaskCancel: tasks.cancel,
    requests.DeadLetterGroups: dead_letters.list_groups,
    requests.DeadLetterList: dead_letters.list_dead_letters,
    requests.DeadLetterShow: dead_letters.show,
    requests.DeadLetterRedrive: dead_letters.redrive,
    requests.DeadLetterPurge: dead_letters.purge,
    requests.DeadLetterExport: dead_letters.export,
    requests.Stats: queues.show_statistics,
}
"""Function that carries out each operation."""

OPERATION_MODELS: Final = {get_args(model.model_fields["op"].annotation)[0]: model for model in _ANSWERS}
OPERATIONS: Final = tuple(OPERATION_MODELS)
"""All values of ``op``, and the model of each."""

_OPERATIONS_HINT: Final = f"the operations are {', '.join(OPERATIONS)}"


class NoOperationError(InvalidRequestError):
    """The event is not a request for an operation."""


def read_operation(event: object) -> Operation:
    """Return the operation that *event* requests.

    Raises:
        NoOperationError: *event* is not an object with an ``op``.
        InvalidRequestError: The operation is unknown, or its fields are invalid.
    """
    if not isinstance(event, dict) or "op" not in event:
        raise NoOperationError(
            [Problem("op", f'is missing: send {{"op": "queue.list"}}, for example; {_OPERATIONS_HINT}')]
        )
    op = event["op"]
    if not isinstance(op, str) or op not in OPERATION_MODELS:
        suggestion = did_you_mean(op, OPERATIONS) if isinstance(op, str) else ""
        raise InvalidRequestError([Problem("op", f"is unknown{suggestion or ';'} {_OPERATIONS_HINT}")])
    return parse_request(OPERATION_MODELS[op], event)


def operate(request: Operation, context: AdminContext) -> Response:
    """Carry *request* out. Return its response, with the name of the database and the time.

    Raises:
        InvalidRequestError: The request is not allowed, or its subject does not exist. Nothing was changed.
        TaskNotFoundError: There is no such task, or no such dead letter.
        NotDelayedError: The task to make due now is not delayed.
        UnavailableError: MongoDB did not answer; every operation can be repeated.
    """
    source = {"database": context.db.name, "now": context.clock.now()}
    return _ANSWERS[type(request)](request, context).model_copy(update=source)


MAX_ANSWER_BYTES: Final = 5_000_000
_TEXT_LIMITS: Final = (2000, 500, 100, 40)
"""Limits to try, in this order: maximum characters of a text, and maximum elements of a list.

The lowest keeps times and usual ids whole.
"""

_UNCUT_FIELDS: Final = frozenset({"next"})
"""Fields that are never cut: a part of a cursor is useless."""


def bound_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer*; if it is too large, cut its texts and lists and set ``truncated``."""
    if _measure(answer) <= MAX_ANSWER_BYTES:
        return answer
    shorter = answer
    for limit in _TEXT_LIMITS:
        cut = {name: _cut(value, limit) for name, value in answer.items() if name not in _UNCUT_FIELDS}
        shorter = answer | cut | {"truncated": True}
        if _measure(shorter) <= MAX_ANSWER_BYTES:
            break
    return shorter


def _measure(document: object) -> int:
    return len(json.dumps(document))


def _cut(value: Any, limit: int) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            return truncate_text(value, limit)
        case list():
            # Keep the first element, which tells the start, and the newest ones.
            kept = value if len(value) <= limit else [value[0], *value[1 - limit :]]
            return [_cut(element, limit) for element in kept]
        case dict():
            return {name: _cut(field, limit) for name, field in value.items()}
        case _:
            return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Refusal of a request: a code for programs, a message for the operator, and problems by field."""

    code: str
    message: str
    problems: tuple[Problem, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the answer that replaces the requested one."""
        details = [{"field": problem.field, "message": problem.message} for problem in self.problems]
        return {"error": {"code": self.code, "message": self.message, "details": details}}


def build_refusal(error: TidemillError) -> Refusal:
    """Return the refusal for *error*. Its text has neither addresses nor values."""
    match error:
        case NoOperationError(problems=problems):
            return Refusal(code="invalid_event", message="this is no operation", problems=problems)
        case InvalidRequestError(problems=problems):
            return Refusal(code="not_allowed", message="the operation is not allowed as it is", problems=problems)
        case TaskNotFoundError():
            return Refusal(code="not_found", message=str(error))
        case NotDelayedError():
            return Refusal(code="not_delayed", message=str(error))
        case UnavailableError():
            return Refusal(code="unavailable", message=str(error))
        case _:
            return Refusal(code="misconfigured", message=str(error))
