"""What Pydantic finds wrong with a request, as problems of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tidemill.classify import bounded
from tidemill.errors import InvalidRequestError, Problem

MAX_PROBLEMS: Final = 20
MAX_FIELD_CHARS: Final = 100
REQUEST: Final = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
"""How every request is read: no type is guessed, no name unknown, no value repeated."""

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


def problems(error: ValidationError, *, below: str = "") -> list[Problem]:
    """Return Pydantic's findings as ours, the first `MAX_PROBLEMS`; no value of the input is repeated."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return listed(found, below=below)


def listed(found: Sequence[Any], *, below: str = "") -> list[Problem]:
    """Return findings, each with ``loc``, ``msg`` and ``type`` as Pydantic lists them, as `problems` does."""
    shown = [Problem(_path(one["loc"]) or below or "task", _message(one)) for one in found[:MAX_PROBLEMS]]
    left = len(found) - len(shown)
    return [*shown, Problem(below or "task", f"and {left} more problems")] if left else shown


def below(field: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return *problems* as those of what is in *field*."""
    return [Problem(f"{field}.{one.field}", one.message) for one in problems]


def _path(location: tuple[int | str, ...]) -> str:
    path = bounded(".".join(map(str, location)), MAX_FIELD_CHARS)
    return "".join(char if char.isprintable() else "?" for char in path)


def _message(one: Any) -> str:  # noqa: ANN401 - a TypedDict here, a dict there
    if one["type"] == "union_tag_invalid":  # the one message of Pydantic's that repeats a value
        return "Input should be tagged as one of the known kinds"
    return str(one["msg"]).removeprefix("Value error, ")
