"""What may be asked for: one new task, validated alike from Python, HTTP and direct invocation."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import bson
from bson.errors import BSONError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from tidemill.classify import bounded
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Lane
from tidemill.policies import (
    MAX_BACKOFF_SEC,
    MAX_FACTOR,
    MAX_RETRIES_LIMIT,
    Backoff,
    Jitter,
    RetryPolicy,
    Selection,
    Strategy,
)
from tidemill.retry import DEFAULT, PRESET_EXPECTED, PRESETS

NAME_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,99}$"
QUEUE_PATTERN: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}$"
MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_DEPTH: Final = 64
MAX_DELAY_SEC: Final = 366 * 86400.0
MAX_TIMEOUT_SEC: Final = 880.0
MAX_KEY_CHARS: Final = 200
MAX_CONCURRENCY: Final = 256
"""Slots are threads, of which Lambda gives a function a thousand."""

MIN_ELEMENT_BYTES: Final = 2
"""What BSON needs at least for an element: its type, and the end of its name."""

_INT32: Final = 2**31 - 1
MAX_PROBLEMS: Final = 20
MAX_FIELD_CHARS: Final = 100
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_REQUEST: Final = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)


def _moment(value: Any) -> datetime:  # noqa: ANN401 - a validator sees anything
    with suppress(ValueError, OverflowError):  # no such day, or beyond the calendar once it is UTC
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            value = datetime.fromisoformat(value.upper())
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return value.astimezone(UTC).replace(microsecond=value.microsecond // 1000 * 1000)
    raise ValueError("must be a date and time with an offset, as in 2026-07-01T09:00:00Z")


def _payload(value: dict[str, Any]) -> dict[str, Any]:
    problem = storage_problem(value, max_bytes=MAX_PAYLOAD_BYTES)
    if problem is not None:
        raise ValueError(problem)
    return value


def _key(value: str) -> str:
    if value.strip() != value or not value.isprintable():
        raise ValueError("must be printable and not start or end with white space")
    return value


Source: TypeAlias = Literal["tick", "wake", "backlog"]
"""Why an executor was started: by a schedule, by an enqueue, by another executor or the death of one."""

Moment = Annotated[datetime, BeforeValidator(_moment)]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS), AfterValidator(_key)]


class RetryOptions(BaseModel):
    """How this task is retried, in seconds.

    Where it says anything of the wait, what is left out of that is as in the preset ``default``.
    """

    model_config = _REQUEST

    max_retries: int | None = Field(default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run.")
    strategy: Strategy = DEFAULT.backoff.strategy
    base_sec: float = Field(default=DEFAULT.backoff.base_sec, gt=0, le=MAX_BACKOFF_SEC)
    factor: float = Field(default=DEFAULT.backoff.factor, ge=1, le=MAX_FACTOR)
    max_sec: float = Field(default=DEFAULT.backoff.max_sec, gt=0, le=MAX_BACKOFF_SEC, validate_default=True)
    jitter: Jitter = DEFAULT.backoff.jitter
    jitter_factor: float = Field(default=DEFAULT.backoff.jitter_factor, gt=0, le=1)

    @field_validator("max_sec")
    @classmethod
    def _cap_holds(cls, max_sec: float, earlier: ValidationInfo) -> float:
        if max_sec < earlier.data.get("base_sec", 0):
            usual = DEFAULT.backoff
            raise ValueError(f"must not be below base_sec; left out, they are {usual.max_sec:g} and {usual.base_sec:g}")
        return max_sec

    def backoff(self) -> Backoff | None:
        """Return the back-off of these options, or ``None`` where they say nothing of it."""
        if self.model_fields_set <= {"max_retries"}:
            return None
        return Backoff(**self.model_dump(exclude={"max_retries"}))


def retry_options(policy: RetryPolicy) -> RetryOptions:
    """Return the options that say what *policy* says."""
    return RetryOptions(max_retries=policy.max_retries, **asdict(policy.backoff))


def _retry(value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
    policy = PRESETS.get(value) if isinstance(value, str) else value
    if isinstance(policy, RetryPolicy):
        return retry_options(policy)
    if isinstance(value, Mapping | RetryOptions):
        return value
    raise ValueError(f"{PRESET_EXPECTED}, or an object with its numbers")


class NewTask(BaseModel):
    """A task to be enqueued."""

    model_config = _REQUEST

    name: str = Field(pattern=NAME_PATTERN, description="The registered task function.")
    payload: Annotated[dict[str, Any], AfterValidator(_payload)] = Field(description="An object, at most 256 KiB.")
    queue: str = Field(default="default", pattern=QUEUE_PATTERN)
    priority: int = Field(default=0, ge=-_INT32, le=_INT32, description="Higher first.")
    delay_sec: float | None = Field(default=None, ge=0, le=MAX_DELAY_SEC)
    not_before: Moment | None = Field(default=None, description="Due then; instead of delay_sec.")
    expires_at: Moment | None = Field(default=None, description="Not started any more from then on.")
    retry: Annotated[RetryOptions, BeforeValidator(_retry)] | None = Field(
        default=None, description="The name of a preset, or its numbers."
    )
    max_retries: int | None = Field(default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run.")
    timeout_sec: float | None = Field(default=None, ge=0.1, le=MAX_TIMEOUT_SEC)
    idempotency_key: Key | None = None

    @model_validator(mode="after")
    def _one_start(self) -> NewTask:
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


class ExecuteRequest(BaseModel):
    """What starts an executor; ``{}`` is a tick with the deployment's choices."""

    model_config = _REQUEST

    source: Source = "tick"
    queues: list[Annotated[str, Field(pattern=QUEUE_PATTERN)]] = Field(default=[], max_length=100)
    lane: Lane | None = None
    selection: Selection | None = None
    batch_size: int | None = Field(default=None, ge=1, le=1000)
    concurrency: int | None = Field(default=None, ge=1, le=MAX_CONCURRENCY)


class SweepRequest(BaseModel):
    """What starts reclaim by schedule, or archive: nothing to choose."""

    model_config = _REQUEST


def dead_owner(event: object) -> str | None:
    """Return the owner whose death AWS reports in *event*, or ``None`` where it is no such report.

    Lambda sends it to the destination for failures; the request id is what the executor's leases are held under.
    """
    context = event.get("requestContext") if isinstance(event, dict) else None
    if not isinstance(context, dict) or not {"requestId", "functionArn", "condition"} <= context.keys():
        return None
    owner = context["requestId"]
    return owner if isinstance(owner, str) and owner else None


_M = TypeVar("_M", bound=BaseModel)


def parsed(model: type[_M], event: object) -> _M:
    """Return *event* as *model*; ``null`` is as good as ``{}``.

    Raises:
        InvalidRequestError: With every problem found.
    """
    try:
        return model.model_validate({} if event is None else event)
    except ValidationError as error:
        raise InvalidRequestError(problems(error, below="event")) from None


def new_task(**fields: Any) -> NewTask:  # noqa: ANN401 - that is what it validates
    """Return the validated task.

    Raises:
        InvalidRequestError: With every problem found.
    """
    try:
        return NewTask(**fields)
    except ValidationError as error:
        raise InvalidRequestError(problems(error)) from None


def problems(error: ValidationError, *, below: str = "") -> list[Problem]:
    """Return Pydantic's findings as ours, the first `MAX_PROBLEMS`; no value of the input is repeated."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [Problem(_path(one["loc"]) or below or "task", _message(one)) for one in found[:MAX_PROBLEMS]]
    left = len(found) - len(shown)
    return [*shown, Problem(below or "task", f"and {left} more problems")] if left else shown


def storage_problem(value: dict[str, Any], *, max_bytes: int) -> str | None:
    """Return why *value* cannot be stored and told in strict JSON, or ``None`` where it can."""
    too_large = f"must not be larger than {max_bytes // 1024} KiB"
    try:
        if _holds_more(value, max_bytes // MIN_ELEMENT_BYTES):
            return too_large
        return too_large if len(bson.encode(value)) > max_bytes else None
    except _UnfitError as error:
        return str(error)
    except OverflowError:
        return "must not contain a whole number beyond 64 bits"
    except UnicodeEncodeError:
        return "must not contain half a surrogate pair"
    except (BSONError, ValueError, TypeError, RecursionError):
        return "must contain only what MongoDB can store, under keys that are text without NUL"


class _UnfitError(Exception):
    """A structure that cannot be stored. Private: `storage_problem` makes a sentence of it."""


def _holds_more(value: dict[str, Any], limit: int) -> bool:
    """Tell whether *value* has more than *limit* elements, without unfolding it any further."""
    containers: list[tuple[Any, int]] = [(value, 1)]
    while containers:
        container, level = containers.pop()
        if level > MAX_PAYLOAD_DEPTH:
            raise _UnfitError(f"must not nest deeper than {MAX_PAYLOAD_DEPTH} levels")
        for element in container.values() if isinstance(container, Mapping) else container:
            limit -= 1
            if limit < 0:
                return True
            if isinstance(element, Mapping | list | tuple):
                containers.append((element, level + 1))
            elif isinstance(element, float) and not math.isfinite(element):
                raise _UnfitError("must not contain NaN or Infinity")
    return False


def _in_order(value: Any) -> Any:  # noqa: ANN401 - any value BSON takes
    if isinstance(value, Mapping):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return [_in_order(element) for element in value] if isinstance(value, list | tuple) else value


def _path(location: tuple[int | str, ...]) -> str:
    path = bounded(".".join(map(str, location)), MAX_FIELD_CHARS)
    return "".join(char if char.isprintable() else "?" for char in path)


def _message(one: ErrorDetails) -> str:
    if one["type"] == "union_tag_invalid":  # the one message of Pydantic's that repeats a value
        return "Input should be tagged as one of the known kinds"
    return one["msg"].removeprefix("Value error, ")
