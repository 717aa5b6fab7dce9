"""What Pydantic finds wrong with a request, as problems of ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tidemill.classify import bounded
from tidemill.errors import InvalidRequestError, Problem
from tidemill.wording import guess

MAX_PROBLEMS: Final = 20
MAX_FIELD_CHARS: Final = 100
REQUEST: Final = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
"""How every request is read: no type is guessed, no name unknown, no value repeated."""

SURPLUS: Final = 10
"""So many unknown names are listed one by one: Pydantic takes a kilobyte for each."""

_M = TypeVar("_M", bound=BaseModel)


class Request(BaseModel):
    """What somebody asks for."""

    model_config = REQUEST

    @model_validator(mode="before")
    @classmethod
    def _not_countless(cls, value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
        # What has no more than the surplus is let through first: the fields cost more to count than most tasks to read.
        if isinstance(value, dict) and len(value) > SURPLUS and len(value) > SURPLUS + len(cls.model_fields):
            raise ValueError("has more fields than there are")
        return value


def parsed(model: type[_M], event: object, *, names: Collection[str] = ()) -> _M:
    """Return *event* as *model*; ``null`` is as good as ``{}``.

    *names* are those that an unknown field may stand for, beside the model's own.

    Raises:
        InvalidRequestError: With every problem found.
    """
    try:
        return model.model_validate({} if event is None else event)
    except ValidationError as error:
        raise InvalidRequestError(problems(error, below="event", names={*model.model_fields, *names})) from None


def problems(error: ValidationError, *, below: str = "", names: Collection[str] = ()) -> list[Problem]:
    """Return Pydantic's findings as ours, the first `MAX_PROBLEMS`; no value of the input is repeated.

    Of *names*, one that an unknown field may stand for is told with it.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return listed(found, below=below, names=names)


def listed(found: Sequence[Any], *, below: str = "", names: Collection[str] = ()) -> list[Problem]:
    """Return findings, each with ``loc``, ``msg`` and ``type`` as Pydantic lists them, as `problems` does."""
    said = [Problem(_path(one["loc"]) or below or "task", _message(one, names)) for one in found[:MAX_PROBLEMS]]
    left = len(found) - len(said)
    return [*said, Problem(below or "task", f"and {left} more problems")] if left else said


def foremost(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first `MAX_PROBLEMS` of *problems*, and that there are more."""
    return [*problems[:MAX_PROBLEMS], *[Problem("task", "and more problems")][: len(problems) > MAX_PROBLEMS]]


def below(field: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return *problems* as those of what is in *field*."""
    return [Problem(f"{field}.{one.field}", one.message) for one in problems]


def _path(location: tuple[int | str, ...]) -> str:
    path = bounded(".".join(map(str, location)), MAX_FIELD_CHARS)
    return "".join(char if char.isprintable() else "?" for char in path)


def _message(one: Any, names: Collection[str]) -> str:  # noqa: ANN401 - a TypedDict here, a dict there
    match one["type"]:
        case "union_tag_invalid":  # the one message of Pydantic's that repeats a value
            return "Input should be tagged as one of the known kinds"
        case "extra_forbidden":
            return f"there is no such field{guess(str(one['loc'][-1]), names)}"
        case "missing":
            return "is missing"
    return str(one["msg"]).removeprefix("Value error, ")
