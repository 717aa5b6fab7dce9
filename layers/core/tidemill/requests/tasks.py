"""One new task, validated alike from Python, HTTP and direct invocation."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple, Self

import bson
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from tidemill.errors import InvalidRequestError, Problem
from tidemill.policies import MAX_RETRIES_LIMIT
from tidemill.requests.payloads import fitting
from tidemill.requests.problems import Request, foremost, problems
from tidemill.requests.retries import Retry, RetryOptions
from tidemill.retry import DEFAULT

NAME_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,99}$"
QUEUE_PATTERN: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}$"
MAX_DELAY_SEC: Final = 366 * 86400.0
MAX_TIMEOUT_SEC: Final = 880.0
MAX_KEY_CHARS: Final = 200
MAX_TASKS: Final = 1000
"""So many tasks are enqueued in one transaction."""

_INT32: Final = 2**31 - 1
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _moment(value: Any) -> datetime:  # noqa: ANN401 - a validator sees anything
    with suppress(ValueError, OverflowError):  # no such day, or beyond the calendar once it is UTC
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            value = datetime.fromisoformat(value.upper())
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return value.astimezone(UTC).replace(microsecond=value.microsecond // 1000 * 1000)
    raise ValueError("must be a date and time with an offset, as in 2026-07-01T09:00:00Z")


def _key(value: str) -> str:
    if value.strip() != value or not value.isprintable():
        raise ValueError("must be printable and not start or end with white space")
    return value


Moment = Annotated[datetime, BeforeValidator(_moment)]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS), AfterValidator(_key)]


class TaskFields(Request):
    """A task to be enqueued, all but its key."""

    name: str = Field(pattern=NAME_PATTERN, description="The registered task function.", examples=["deliver_webhook"])
    payload: Annotated[dict[str, Any], AfterValidator(fitting)] = Field(
        description="What the function gets: an object of at most 256 KiB, at most 64 levels deep.",
        examples=[{"url": "https://example.com/hook", "body": {"order": "order-7"}}],
    )
    queue: str = Field(default="default", pattern=QUEUE_PATTERN, description="A declared queue.")
    priority: int = Field(default=0, ge=-_INT32, le=_INT32, description="Higher first, within its queue.")
    delay_sec: float | None = Field(
        default=None, ge=0, le=MAX_DELAY_SEC, description="Not due before so long from now."
    )
    not_before: Moment | None = Field(
        default=None,
        description="Not due before this time, with an offset (RFC 3339); instead of delay_sec.",
        examples=["2026-12-24T18:00:00+01:00"],
    )
    expires_at: Moment | None = Field(
        default=None,
        description="Not started any more from this time on, but failed; later than the start, with an offset.",
        examples=["2026-12-24T20:00:00Z"],
    )
    retry: Retry | None = Field(
        default=None, description="The name of a preset, or its numbers.", examples=["conservative"]
    )
    max_retries: int | None = Field(
        default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run. Beats that of retry."
    )
    timeout_sec: float | None = Field(
        default=None, ge=0.1, le=MAX_TIMEOUT_SEC, description="How long one attempt may take."
    )

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.delay_sec is not None and self.not_before is not None:
            raise ValueError("delay_sec and not_before exclude each other")
        return self

    def starts_at(self, now: datetime) -> datetime | None:
        """Return the end of the delay, or ``None`` where the task is due at once."""
        if self.delay_sec:
            return now + timedelta(milliseconds=math.ceil(self.delay_sec * 1000))
        return self.not_before if self.not_before is not None and self.not_before > now else None

    def retries(self) -> int | None:
        """Return the task's own ``max_retries``, wherever it was given."""
        return self.max_retries if self.max_retries is not None or self.retry is None else self.retry.max_retries

    def hash(self) -> str:
        """Return what tells this request from another under the same key: what it means, however it is put.

        What has its default does not count, so that an option more in a later release changes no hash. The order of
        object keys does not matter, that of lists does; ``1`` and ``1.0`` differ, and so do the composed and the
        decomposed form of a character.
        """
        wanted = self.model_dump(exclude={"idempotency_key", "payload", "retry", "max_retries"}, exclude_defaults=True)
        wanted |= {"payload": self.payload} | self._retrying()
        if not self.delay_sec:
            wanted.pop("delay_sec", None)
        return hashlib.sha256(bson.encode(_in_order(wanted))).hexdigest()

    def _retrying(self) -> dict[str, Any]:
        said: dict[str, Any] = {} if self.retries() is None else {"max_retries": self.retries()}
        backoff = self.retry.backoff() if self.retry is not None else None
        if backoff is not None:
            usual = asdict(DEFAULT.backoff)
            said["backoff"] = {name: value for name, value in asdict(backoff).items() if value != usual[name]}
        return said


class NewTask(TaskFields):
    """A task to be enqueued."""

    idempotency_key: Key | None = Field(
        default=None,
        description=(
            "The same key with the same task is the same task. It must be printable and not start or end with white "
            "space."
        ),
        examples=["order-7"],
    )


_ALL: Final = TypeAdapter(list[NewTask])


def new_task(**fields: Any) -> NewTask:  # noqa: ANN401 - that is what it validates
    """Return the validated task.

    Raises:
        InvalidRequestError: With every problem found.
    """
    try:
        return NewTask(**fields)
    except ValidationError as error:
        names = {*NewTask.model_fields, *RetryOptions.model_fields}
        raise InvalidRequestError(problems(error, names=names)) from None


class Checked(NamedTuple):
    """Validated tasks, and of each what MongoDB stores of its payload: validation finds that out, and it takes time."""

    tasks: list[NewTask]
    payloads: list[bytes]


def new_tasks(requests: Iterable[NewTask | Mapping[str, Any]]) -> list[NewTask]:
    """Return the validated tasks, in order; each is a `NewTask` already, or a mapping of its fields.

    Raises:
        InvalidRequestError: With the problems of all of them, behind the index of each.
    """
    return checked(requests).tasks


def checked(requests: Iterable[NewTask | Mapping[str, Any]]) -> Checked:
    """Return what `new_tasks` does, and their payloads as they are stored.

    Raises:
        InvalidRequestError: As of `new_tasks`.
    """
    wanted, payloads = list(requests), list[bytes]()
    try:
        fields = [one if isinstance(one, (NewTask, dict)) else dict(**one) for one in wanted]
        tasks = _ALL.validate_python(fields, context=payloads)
    except (ValidationError, TypeError):
        tasks = _each(wanted)
    if len(payloads) != len(tasks):  # some were validated before
        payloads = [bson.encode(one.payload) for one in tasks]
    return Checked(tasks, payloads)


def _each(requests: Sequence[NewTask | Mapping[str, Any]]) -> list[NewTask]:
    """Validate one after the other, which takes longer and says of each what is wrong."""
    wanted: list[NewTask] = []
    found: list[Problem] = []
    for index, request in enumerate(requests):
        try:
            wanted.append(request if isinstance(request, NewTask) else new_task(**request))
        except InvalidRequestError as error:
            found += [Problem(f"{index}.{one.field}", one.message) for one in error.problems]
        except TypeError:
            found.append(Problem(str(index), "must be a NewTask or a mapping of its fields"))
    if found:
        raise InvalidRequestError(foremost(found))
    return wanted


def _in_order(value: Any) -> Any:  # noqa: ANN401 - any value BSON takes
    if isinstance(value, str):  # what most are, and quicker to tell than a mapping
        return value
    if isinstance(value, (dict, Mapping)):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return [_in_order(element) for element in value] if isinstance(value, (list, tuple)) else value
