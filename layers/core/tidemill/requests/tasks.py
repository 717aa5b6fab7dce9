"""Requests for new tasks: retry options, fields, validation of one or many, and the hash of a request."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import bson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import (
    MAX_BACKOFF_SEC,
    MAX_DELAY,
    MAX_FACTOR,
    MAX_RETRIES_LIMIT,
    Backoff,
    Jitter,
    RetryPolicy,
    Strategy,
)
from tidemill.policy.retry import DEFAULT, PRESET_EXPECTED, PRESETS
from tidemill.requests.validation import Request, limit_problems, problems, require_storable

NAME_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,99}$"
QUEUE_PATTERN: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}$"
MAX_DELAY_SEC: Final = MAX_DELAY.total_seconds()
MAX_TIMEOUT_SEC: Final = 880.0
MAX_KEY_CHARS: Final = 200
MAX_TASKS: Final = 1000
"""Upper limit of tasks that are enqueued in one transaction."""

_INT32: Final = 2**31 - 1
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

Preset: TypeAlias = Literal["default", "standard", "conservative", "aggressive", "one_shot", "quadrupling", "patient"]


class RetryOptions(Request):
    """Retries of this task, in seconds.

    If any option of the wait is given, the options left out are those of the preset ``default``.
    """

    max_retries: int | None = Field(default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run.")
    strategy: Strategy = Field(
        default=DEFAULT.backoff.strategy,
        description=(
            "Wait after the nth failure: exponential base_sec * factor ** (n - 1), linear base_sec * n, "
            "fixed base_sec, fibonacci base_sec * (1, 1, 2, 3, 5, ...)."
        ),
    )
    base_sec: float = Field(
        default=DEFAULT.backoff.base_sec, gt=0, le=MAX_BACKOFF_SEC, description="Over HTTP at least 0.1."
    )
    factor: float = Field(
        default=DEFAULT.backoff.factor, ge=1, le=MAX_FACTOR, description="For the strategy exponential."
    )
    max_sec: float = Field(
        default=DEFAULT.backoff.max_sec,
        gt=0,
        le=MAX_BACKOFF_SEC,
        validate_default=True,
        description="Upper limit of each wait; not below base_sec.",
    )
    jitter: Jitter = Field(
        default=DEFAULT.backoff.jitter,
        description=(
            "Randomness of the wait: none keeps it, full draws from 0 to it, decorrelated draws from base_sec to it, "
            "proportional changes it by up to jitter_factor of itself."
        ),
    )
    jitter_factor: float = Field(
        default=DEFAULT.backoff.jitter_factor, gt=0, le=1, description="For the jitter proportional."
    )

    @field_validator("max_sec")
    @classmethod
    def _require_cap(cls, max_sec: float, earlier: ValidationInfo) -> float:
        if max_sec < earlier.data.get("base_sec", 0):
            default = DEFAULT.backoff
            raise ValueError(
                f"must not be below base_sec; left out, they are {default.max_sec:g} and {default.base_sec:g}"
            )
        return max_sec

    def backoff(self) -> Backoff | None:
        """Return the back-off of these options, or ``None`` if no option of the wait is given."""
        if self.model_fields_set <= {"max_retries"}:
            return None
        return Backoff(**self.model_dump(exclude={"max_retries"}))


def _read_retry(value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
    policy = PRESETS.get(value) if isinstance(value, str) else value
    if isinstance(policy, RetryPolicy):
        return RetryOptions(max_retries=policy.max_retries, **asdict(policy.backoff))
    if isinstance(value, Mapping | RetryOptions):
        return value
    raise ValueError(f"{PRESET_EXPECTED}, or an object with its numbers")


class _PresetOrOptions:
    """JSON Schema of retry options that may be the name of a preset. Pydantic before 2.10 cannot say so itself."""

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": list(get_args(Preset)), "type": "string"}, handler(schema)]}


Retry = Annotated[RetryOptions, BeforeValidator(_read_retry), _PresetOrOptions]


def _read_moment(value: Any) -> datetime:  # noqa: ANN401 - a validator sees anything
    given = value
    with suppress(ValueError, OverflowError):  # the day does not exist, or its UTC is beyond the calendar
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            value = datetime.fromisoformat(value.upper())
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return value.astimezone(UTC).replace(microsecond=value.microsecond // 1000 * 1000)
    raise ValueError(f"must be a date and time with an offset, as in 2026-07-01T09:00:00Z{_explain_no_moment(given)}")


def _explain_no_moment(value: object) -> str:
    match value:
        case datetime() if value.utcoffset() is None:
            return "; this datetime has no time zone, give it one: datetime(..., tzinfo=UTC)"
        case date() if not isinstance(value, datetime):
            return "; this is a date without a time"
        case timedelta():
            return "; this is a duration, for which there is the delay"
        case str() if _RFC3339.fullmatch(value):
            return "; there is no such time"
        case str() if _RFC3339.fullmatch(f"{value}Z"):
            return "; this one has no offset, end it with Z or an offset like +02:00"
        case str() if _RFC3339.fullmatch(f"{value}T00:00:00Z"):
            return "; this is a date without a time"
        case datetime():
            return "; this one is beyond the calendar in UTC"
    return ""


def _require_key(value: str) -> str:
    if value.strip() != value or not value.isprintable():
        raise ValueError("must be printable and not start or end with white space")
    return value


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Timeout = Annotated[float, Field(ge=0.1, le=MAX_TIMEOUT_SEC)]
Moment = Annotated[datetime, BeforeValidator(_read_moment)]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS), AfterValidator(_require_key)]


class TaskFields(Request):
    """A task to enqueue, without its idempotency key."""

    name: Name = Field(description="The registered task function.", examples=["deliver_webhook"])
    payload: Annotated[dict[str, Any], AfterValidator(require_storable)] = Field(
        description="Argument of the function: an object of at most 256 KiB, at most 64 levels deep.",
        examples=[{"url": "https://example.com/hook", "body": {"order": "order-7"}}],
    )
    queue: str = Field(default="default", pattern=QUEUE_PATTERN, description="A declared queue.")
    priority: int = Field(default=0, ge=-_INT32, le=_INT32, description="Higher first, within its queue.")
    delay_sec: float | None = Field(
        default=None, ge=0, le=MAX_DELAY_SEC, description="Delay from now until the task is due."
    )
    not_before: Moment | None = Field(
        default=None,
        description="Time at which the task is due, with an offset (RFC 3339); instead of delay_sec.",
        examples=["2026-12-24T18:00:00+01:00"],
    )
    expires_at: Moment | None = Field(
        default=None,
        description=("Time from which on the task fails instead of starting, with an offset; later than its due time."),
        examples=["2026-12-24T20:00:00Z"],
    )
    retry: Retry | None = Field(
        default=None, description="The name of a preset, or its options.", examples=["conservative"]
    )
    max_retries: int | None = Field(
        default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run. Overrides max_retries of retry."
    )
    timeout_sec: Timeout | None = Field(default=None, description="Upper limit of the duration of one attempt.")

    @model_validator(mode="after")
    def _require_single_start(self) -> Self:
        if self.delay_sec is not None and self.not_before is not None:
            raise ValueError("delay_sec and not_before exclude each other")
        return self

    def starts_at(self, now: datetime) -> datetime | None:
        """Return the end of the delay, or ``None`` if the task is due at once."""
        if self.delay_sec:
            return now + timedelta(milliseconds=math.ceil(self.delay_sec * 1000))
        return self.not_before if self.not_before is not None and self.not_before > now else None

    def retries(self) -> int | None:
        """Return the task's own ``max_retries``, given directly or in ``retry``."""
        return self.max_retries if self.max_retries is not None or self.retry is None else self.retry.max_retries

    def hash(self) -> str:
        """Return the hash of the meaning of this request; it differs from another request under the same key.

        Fields with their default do not count, so that a new option of a later release changes no hash. The order of
        object keys does not count, the order of lists does. ``1`` and ``1.0`` differ, and so do the composed and the
        decomposed form of a character.
        """
        fields = self.model_dump(exclude={"idempotency_key", "payload", "retry", "max_retries"}, exclude_defaults=True)
        fields |= {"payload": self.payload} | self._dump_retry()
        if not self.delay_sec:
            fields.pop("delay_sec", None)
        return hashlib.sha256(bson.encode(_sort_keys(fields))).hexdigest()

    def _dump_retry(self) -> dict[str, Any]:
        fields: dict[str, Any] = {} if self.retries() is None else {"max_retries": self.retries()}
        backoff = self.retry.backoff() if self.retry is not None else None
        if backoff is not None:
            default = asdict(DEFAULT.backoff)
            fields["backoff"] = {name: value for name, value in asdict(backoff).items() if value != default[name]}
        return fields


class NewTask(TaskFields):
    """A task to enqueue."""

    idempotency_key: Key | None = Field(
        default=None,
        description=(
            "A repeat with the same key and the same task creates no second task. It must be printable and not start "
            "or end with white space."
        ),
        examples=["order-7"],
    )


_NEW_TASKS: Final = TypeAdapter(list[NewTask])


def new_task(**fields: Any) -> NewTask:  # noqa: ANN401 - it validates any value
    """Return the validated task.

    Raises:
        InvalidRequestError: With every problem found.
    """
    try:
        return NewTask(**fields)
    except ValidationError as error:
        names = {*NewTask.model_fields, *RetryOptions.model_fields}
        raise InvalidRequestError(problems(error, names=names)) from None


class CheckedTasks(NamedTuple):
    """Validated tasks, and the BSON of each payload: validation encodes it anyway, and encoding takes time."""

    tasks: list[NewTask]
    payloads: list[bytes]


def check_tasks(requests: Iterable[NewTask | Mapping[str, Any]]) -> CheckedTasks:
    """Return the validated tasks, in order. A request is a `NewTask` or a mapping of its fields.

    Raises:
        InvalidRequestError: With the problems of all requests; each field begins with the index of its request.
    """
    given, payloads = list(requests), list[bytes]()
    try:
        fields = [request if isinstance(request, (NewTask, dict)) else dict(**request) for request in given]
        tasks = _NEW_TASKS.validate_python(fields, context=payloads)
    except (ValidationError, TypeError):
        tasks = _validate_each(given)
    if len(payloads) != len(tasks):  # a `NewTask` is not validated again
        payloads = [bson.encode(task.payload) for task in tasks]
    return CheckedTasks(tasks, payloads)


def _validate_each(requests: Sequence[NewTask | Mapping[str, Any]]) -> list[NewTask]:
    """Validate the requests one by one: slower, but it finds the problems of each."""
    tasks: list[NewTask] = []
    found: list[Problem] = []
    for index, request in enumerate(requests):
        try:
            tasks.append(request if isinstance(request, NewTask) else new_task(**request))
        except InvalidRequestError as error:
            found += [Problem(f"{index}.{problem.field}", problem.message) for problem in error.problems]
        except TypeError:
            found.append(Problem(str(index), "must be a NewTask or a mapping of its fields"))
    if found:
        raise InvalidRequestError(limit_problems(found))
    return tasks


def _sort_keys(value: Any) -> Any:  # noqa: ANN401 - any value BSON takes
    if isinstance(value, str):  # most values are text, and this check is quicker than the next
        return value
    if isinstance(value, (dict, Mapping)):
        return {name: _sort_keys(value[name]) for name in sorted(value)}
    return [_sort_keys(element) for element in value] if isinstance(value, (list, tuple)) else value
