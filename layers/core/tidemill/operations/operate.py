"""Which operations there are; one of them, read and carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar, Union, get_args

from pydantic import Field, TypeAdapter, ValidationError

from tidemill.errors import InvalidRequestError, Problem
from tidemill.operations import dead_letters, letter_changes, letter_requests, queues, requests, stats, tasks
from tidemill.operations.desk import Desk
from tidemill.operations.requests import Operation
from tidemill.operations.sizes import bounded_answer
from tidemill.requests import listed
from tidemill.wording import guess, stamp

_O = TypeVar("_O", bound=Operation)
_Answer: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kind(Generic[_O]):
    """How one operation is asked for, and what carries it out."""

    model: type[_O]
    answer: Callable[[_O, Desk], _Answer]


_KINDS: Final[tuple[_Kind[Any], ...]] = (
    _Kind(requests.QueueList, queues.listing),
    _Kind(requests.QueueDeclare, queues.declare),
    _Kind(requests.QueueStatusOf, queues.status),
    _Kind(requests.QueuePause, queues.pause),
    _Kind(requests.QueueResume, queues.resume),
    _Kind(requests.QueueSet, queues.change),
    _Kind(requests.TaskList, tasks.listing),
    _Kind(requests.TaskShow, tasks.show),
    _Kind(requests.TaskExplain, tasks.explain),
    _Kind(requests.TaskRetry, tasks.retry),
    _Kind(requests.TaskCancel, tasks.cancel),
    _Kind(letter_requests.DeadLetterGroups, dead_letters.largest_groups),
    _Kind(letter_requests.DeadLetterList, dead_letters.listing),
    _Kind(letter_requests.DeadLetterShow, dead_letters.show),
    _Kind(letter_requests.DeadLetterRedrive, letter_changes.redrive),
    _Kind(letter_requests.DeadLetterPurge, letter_changes.purge),
    _Kind(letter_requests.DeadLetterExport, letter_changes.export),
    _Kind(requests.Stats, stats.statistics),
)
_BY_OP: Final[Mapping[str, _Kind[Any]]] = {
    get_args(kind.model.model_fields["op"].annotation)[0]: kind for kind in _KINDS
}

UNION: Final[TypeAdapter[Operation]] = TypeAdapter(
    Annotated[Union[tuple(kind.model for kind in _KINDS)], Field(discriminator="op")]  # noqa: UP007 - of a table
)
"""All of them, told apart by ``op``; its JSON schema is what the function takes."""

OPERATIONS: Final = tuple(_BY_OP)
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
    op = event["op"]
    if not isinstance(op, str) or op not in _BY_OP:
        raise InvalidRequestError([Problem("op", _unknown(op))])
    try:
        return UNION.validate_python(event)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        inside = [{**one, "loc": one["loc"][1:]} for one in found]  # the first part is the operation
        names = _BY_OP[op].model.model_fields
        raise InvalidRequestError(listed(inside, below="event", names=names)) from None


def operate(request: Operation, desk: Desk) -> _Answer:
    """Carry *request* out; return the answer in plain JSON types, with the database it is of and its time.

    Neither payloads nor results are in it. ``warnings`` say what an operator should know beside it, ``truncated``
    that some of it was too large.

    Raises:
        InvalidRequestError: What it is about is not there, or not allowed; nothing was changed.
        TaskNotFoundError: There is no such task, or no such dead letter.
        NotDelayedError: A task that is to be hurried does not wait for a time.
        UnavailableError: MongoDB did not answer; every operation can be repeated.
    """
    about = {"database": desk.db.name, "now": stamp(desk.clock.now())}
    return bounded_answer(_BY_OP[request.op].answer(request, desk) | about)


def _unknown(op: object) -> str:
    meant = guess(op, OPERATIONS) if isinstance(op, str) else ""
    return f"is unknown{meant or ';'} {_ALL}"
