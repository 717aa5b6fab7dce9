"""Base of all requests, Pydantic's errors as ``Problem`` values, and the check of payloads and results."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any, Final, TypeVar
from uuid import UUID

import bson
from bson.errors import BSONError
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from tidemill.errors import InvalidRequestError, Problem
from tidemill.policy.failures import truncate_text, type_name
from tidemill.text import add_article, did_you_mean

MAX_PROBLEMS: Final = 20
MAX_FIELD_CHARS: Final = 100
REQUEST: Final = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
"""Options of all requests: types are not converted, unknown fields are refused, messages repeat no value."""

MAX_UNKNOWN_FIELDS: Final = 10
"""Upper limit of unknown fields that are listed one by one: Pydantic takes a kilobyte for each."""

_M = TypeVar("_M", bound=BaseModel)


class Request(BaseModel):
    """Base of all requests."""

    model_config = REQUEST

    @model_validator(mode="before")
    @classmethod
    def _refuse_surplus(cls, value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
        # The cheap comparison is first: counting the model's fields takes longer than reading most tasks.
        if (
            isinstance(value, dict)
            and len(value) > MAX_UNKNOWN_FIELDS
            and len(value) > MAX_UNKNOWN_FIELDS + len(cls.model_fields)
        ):
            raise ValueError("has far too many fields")
        return value


def parse_request(model: type[_M], event: object, *, names: Collection[str] = ()) -> _M:
    """Return *event* as *model*; ``null`` counts as ``{}``.

    An unknown field may be a misspelt field of *model* or a misspelt one of *names*: the problem suggests it.

    Raises:
        InvalidRequestError: With every problem found.
    """
    try:
        return model.model_validate({} if event is None else event)
    except ValidationError as error:
        raise InvalidRequestError(problems(error, below="event", names={*model.model_fields, *names})) from None


def problems(error: ValidationError, *, below: str = "", names: Collection[str] = ()) -> list[Problem]:
    """Return the first `MAX_PROBLEMS` errors of Pydantic as problems; no value of the input is repeated.

    *below* is the field of errors without a field. The problem of an unknown field suggests the closest of *names*.
    """
    found = error.errors(include_url=False)
    return list_problems(found, below=below, names=names)


def list_problems(found: Sequence[Any], *, below: str = "", names: Collection[str] = ()) -> list[Problem]:
    """Return errors as `problems` does; each has ``loc``, ``msg`` and ``type`` as Pydantic lists them."""
    first = [
        Problem(_join_path((*error["loc"], *_find_path(error))) or below or "task", _write_message(error, names))
        for error in found[:MAX_PROBLEMS]
    ]
    left = len(found) - len(first)
    return [*first, Problem(below or "task", f"and {left} more problems")] if left else first


def below_payload(field: str) -> str:
    """Return the path of a *field* of a payload in its request."""
    return field if field == "payload" else f"payload.{field}"


def limit_problems(problems: Iterable[Problem], *, path: str = "") -> list[Problem]:
    """Return the first `MAX_PROBLEMS` of *problems*, and a last problem, below *path*, that says that there are more.

    No further problem is looked for: a guess at each of a thousand names would take seconds.
    """
    first = list(islice(problems, MAX_PROBLEMS + 1))
    return [*first[:MAX_PROBLEMS], *[Problem(f"{path}task", "and more problems")][: len(first) > MAX_PROBLEMS]]


def _find_path(error: Any) -> tuple[int | str, ...]:  # noqa: ANN401 - Pydantic's TypedDict, or a plain dict
    """Return the path of an unfit element in the field of *error*."""
    cause = error.get("ctx", {}).get("error")
    return cause.path if isinstance(cause, UnfitError) else ()


def _join_path(location: tuple[int | str, ...]) -> str:
    path = truncate_text(".".join(map(str, location)), MAX_FIELD_CHARS)
    return "".join(char if char.isprintable() else "?" for char in path)


def _write_message(error: Any, names: Collection[str]) -> str:  # noqa: ANN401 - Pydantic's TypedDict, or a plain dict
    match error["type"]:
        case "union_tag_invalid":  # Pydantic's own message repeats the value
            return "Input should be tagged as one of the known kinds"
        case "extra_forbidden":
            return f"there is no such field{did_you_mean(str(error['loc'][-1]), names)}"
        case "missing":
            return "is missing"
        case "dict_type" | "string_type" if not isinstance(error.get("input"), JSON_TYPES):
            value = error["input"]
            return f"{error['msg']}, not {add_article(type_name(value))}{_hint_at_conversion(value)}"
        case "value_error" if isinstance(cause := error.get("ctx", {}).get("error"), UnfitError):
            return cause.reason
    return str(error["msg"]).removeprefix("Value error, ")


MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_DEPTH: Final = 64
MIN_ELEMENT_BYTES: Final = 2
"""Smallest element of BSON: its type, and the NUL behind an empty name."""

JSON_TYPES: Final = (str, int, float, bool, NoneType, list, dict)
_INSTEAD: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (BaseModel, 'value.model_dump(mode="json")'),
    (Enum, "value.value"),
    (date, "value.isoformat(), or a datetime"),
    ((Decimal, UUID, PurePath), "str(value)"),
    ((set, frozenset, range), "list(value)"),
    ((bytearray, memoryview), "bytes(value)"),
    ((FunctionType, BuiltinFunctionType, MethodType, partial), "the name it is registered as"),
)
"""What a caller can pass instead of a value that cannot be stored."""

_LEAVES: Final = frozenset({str, int, bool, NoneType})
"""Types of most elements; they need no further check, and comparing exact types is cheap."""


def require_storable(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Return *value* if it can be stored, and append its BSON to the validation context, if that is a list.

    Raises:
        UnfitError: *value* cannot be stored.
    """
    stored = encode_payload(value, max_bytes=MAX_PAYLOAD_BYTES)
    if info.context is not None:
        info.context.append(stored)
    return value


class UnfitError(ValueError):
    """A value cannot be stored: *reason* says why, and *path* where in it, by names and indexes."""

    def __init__(self, reason: str, path: tuple[int | str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(map(str, path))}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class UnfitTypeError(UnfitError):
    """A value contains one of a type that cannot be stored. Its size and its depth are within the limits."""


def encode_payload(value: dict[str, Any], *, max_bytes: int) -> bytes:
    """Return *value* as MongoDB stores it.

    Raises:
        UnfitError: *value* cannot be stored, or cannot be written as strict JSON.
    """
    try:
        if not _has_more_elements(value, max_bytes // MIN_ELEMENT_BYTES):
            stored = bson.encode(value)
            if len(stored) <= max_bytes:
                return stored
    except UnfitError:
        raise
    except (BSONError, ValueError, TypeError, OverflowError, RecursionError):
        raise _locate_unfit(value) from None
    raise UnfitError(f"must not be larger than {max_bytes // 1024} KiB")


def _locate_unfit(value: Mapping[str, Any]) -> UnfitError:
    with suppress(BSONError, ValueError, TypeError, LookupError):  # a mapping may raise them when it is read
        for found in _find_unfit(value):
            return found
    return UnfitError("must contain only what MongoDB can store")


def _find_unfit(value: Mapping[str, Any]) -> Iterator[UnfitError]:
    """Yield the reason of each element of *value* that cannot be stored, level by level."""
    elements: deque[tuple[tuple[int | str, ...], Any]] = deque([((), value)])
    while elements:
        path, element = elements.popleft()
        if isinstance(element, (list, tuple)):
            elements.extend(((*path, index), inner) for index, inner in enumerate(element))
        elif isinstance(element, Mapping):
            elements.extend(((*path, str(key)), inner) for key, inner in element.items())
            yield from (UnfitError(reason, path) for reason in map(_explain_unfit_key, element) if reason)
        else:
            yield from _check_leaf(element, path)


def _explain_unfit_key(key: object) -> str | None:
    if not isinstance(key, str):
        return f"a key must be text, not {add_article(type_name(key))}"
    is_unfit = "\x00" in key or any("\ud800" <= char <= "\udfff" for char in key)
    return "a key must not contain NUL or half a surrogate pair" if is_unfit else None


def _check_leaf(leaf: Any, path: tuple[int | str, ...]) -> Iterator[UnfitError]:  # noqa: ANN401 - any value
    try:
        bson.encode({"": leaf})
    except OverflowError:
        yield UnfitError("must not be a whole number beyond 64 bits", path)
    except UnicodeEncodeError:
        yield UnfitError("must not contain half a surrogate pair", path)
    except (BSONError, ValueError, TypeError, RecursionError):
        name = add_article(type_name(leaf))
        yield UnfitTypeError(f"{name} cannot be stored{_hint_at_conversion(leaf)}", path)
    if isinstance(leaf, float) and not math.isfinite(leaf):
        yield UnfitError("must not be NaN or Infinity", path)


def _hint_at_conversion(value: object) -> str:
    """Return what a caller can pass instead of *value*, for the end of a message."""
    hint = next((hint for kind, hint in _INSTEAD if issubclass(type(value), kind)), None)
    if hint is None and hasattr(type(value), "__dataclass_fields__"):
        hint = "dataclasses.asdict(value)"
    return f"; pass {hint}" if hint else ""


def _has_more_elements(value: dict[str, Any], limit: int) -> bool:
    """Return True if *value* has more than *limit* elements.

    The count goes level by level and stops at the limit: a value that contains itself many times stays cheap.

    Raises:
        UnfitError: *value* nests too deep, or contains NaN or Infinity.
    """
    containers: list[Any] = [value]
    for _ in range(MAX_PAYLOAD_DEPTH):
        inner: list[Any] = []
        for container in containers:
            limit -= len(container)
            if limit < 0:
                return True
            for element in container if isinstance(container, (list, tuple)) else container.values():
                if type(element) in _LEAVES:
                    continue
                if isinstance(element, (dict, list, tuple, Mapping)):
                    inner.append(element)
                elif isinstance(element, float) and not math.isfinite(element):
                    raise _locate_unfit(value)
        if not inner:
            return False
        containers = inner
    raise UnfitError(f"must not nest deeper than {MAX_PAYLOAD_DEPTH} levels")
