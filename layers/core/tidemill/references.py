"""References to task functions: the name of a task, the types of its payload and result, and values of these types."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, Generic, Literal, TypeVar

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from tidemill.documents import decode
from tidemill.errors import InvalidRequestError, Problem, RegistrationError, ResultError
from tidemill.model import TaskId
from tidemill.registry import TaskType, find_task_types
from tidemill.requests.tasks import NAME_PATTERN
from tidemill.requests.validation import MAX_PAYLOAD_BYTES, UnfitError, below_payload, encode_payload, problems
from tidemill.task_functions import (
    PayloadType,
    describe_place,
    describe_type,
    make_payload_type,
    read_result_annotation,
)
from tidemill.text import add_article

P = TypeVar("P")
R = TypeVar("R")

_Mode = Literal["json", "python"]
_FORMS: Final[tuple[tuple[_Mode, bool], ...]] = (("json", True), ("json", False), ("python", True), ("python", False))
"""Forms of a payload, the best first: JSON or values of BSON, with the aliases of fields or without."""

_LOSS: Final = "would not be read back as it was written"
_REMEDY: Final = ": give the field a type that JSON has, or a serializer"


class TaskRef(Generic[P, R]):
    """Name of a task with the types of its payload and its result, for an application without the task's function.

    ::

        send_invoice = TaskRef[Invoice, Receipt]("send_invoice")
        handle = queue.enqueue(send_invoice, Invoice(order="order-7"))

    Without types, ``TaskRef("send_invoice")``, a payload is a dictionary, a Pydantic model or a dataclass.

    Args:
        name: Name of the registered task function.

    Raises:
        ValueError: No task can have the name.
    """

    def __init__(self, name: str) -> None:
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise ValueError(f"{name!r} is no name for a task: use up to 100 letters, digits, _ . and -")
        self.name = name

    def __repr__(self) -> str:
        return f"TaskRef({self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A task function as its callers see it.

    Attributes:
        name: Name of the task.
        payload_type: Type of the payload; ``None`` if every object fits.
        is_open: True if a payload that is a model or a dataclass has its own type.
        annotation: Returns the type of the result; it is called when a result is read.
    """

    name: str
    payload_type: PayloadType | None
    is_open: bool
    annotation: Callable[[], Any]

    def dump(self, payload: object) -> Any:  # noqa: ANN401 - what is no object is refused with the request
        """Return *payload* as an object that can be stored, and that the function reads as an equal value.

        A dictionary that can be stored is returned as it is. Other values are checked and written as JSON. Where the
        type reads no JSON, they are written as values of BSON.

        Raises:
            InvalidRequestError: The payload does not fit its type, or cannot be stored; no value of it is repeated.
        """
        kind = type(payload)
        payload_type = self.payload_type
        if payload_type is None and self.is_open and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
            payload_type = _make_type(kind)
        return payload if payload_type is None else _dump(payload_type, payload)

    def read_result(self, stored: Any, task_id: TaskId) -> Any:  # noqa: ANN401 - the annotation decides
        """Return a *stored* result as a value of the function's type.

        Raises:
            ResultError: The result does not fit; the message repeats no value of it.
        """
        annotation = self.annotation()
        if annotation is None or annotation is NoneType or annotation is Any:
            return stored
        try:
            return _make_adapter(annotation).validate_python(stored)
        except ValidationError as error:
            found = "; ".join(f"{problem.field}: {problem.message}" for problem in problems(error, below="result"))
            raise ResultError(task_id, f"does not fit {describe_type(annotation)}: {found}") from None


def find_reference(task: object) -> Reference:
    """Return the reference for *task*: a `TaskRef`, or a registered task function.

    Raises:
        InvalidRequestError: *task* is neither, is registered under several names, or has an unusable type.
    """
    try:
        return _read_task_ref(task) if isinstance(task, TaskRef) else _read_task_type(_find_task_type(task))
    except RegistrationError as error:
        raise InvalidRequestError([Problem("name", str(error))]) from None


def _read_task_ref(task: TaskRef[Any, Any]) -> Reference:
    # Set by `typing` once the object is made, so it cannot be read in the constructor.
    payload, result = typing.get_args(getattr(task, "__orig_class__", None)) or (Any, Any)
    payload_type = make_payload_type(payload, f"TaskRef({task.name!r})")
    return Reference(name=task.name, payload_type=payload_type, is_open=payload_type is None, annotation=lambda: result)


def _read_task_type(task_type: TaskType) -> Reference:
    return Reference(
        name=task_type.name,
        payload_type=task_type.signature.payload_type,
        is_open=False,
        annotation=lambda: read_result_annotation(task_type.function),
    )


def _find_task_type(function: object) -> TaskType:
    if not callable(function):
        kind = add_article(type(function).__name__)
        raise RegistrationError(f"must be a name, a TaskRef or a registered task function, not {kind}")
    found = find_task_types(function)
    if not found:
        raise RegistrationError(
            f'{describe_place(function)} is not registered: write @task("name") above it, as the first decorator, '
            "or use TaskRef(name)"
        )
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise RegistrationError(f"{describe_place(function)} is registered as {names}: use TaskRef(name)")
    [task_type] = found.values()
    return task_type


@cache
def _make_type(kind: type) -> PayloadType | None:
    return make_payload_type(kind, describe_type(kind))


def _make_adapter(annotation: object) -> TypeAdapter[Any]:
    try:
        return _make_cached_adapter(annotation)
    except TypeError:  # it has no hash
        return TypeAdapter(annotation)


_make_cached_adapter = cache(TypeAdapter[Any])


def _dump(payload_type: PayloadType, payload: object) -> Any:  # noqa: ANN401 - as `Reference.dump`
    try:
        value = payload_type.adapter.validate_python(payload)
    except ValidationError as error:
        raise InvalidRequestError(_list_problems(error)) from None
    if type(payload) is dict and _is_storable(payload):
        return payload
    refusals = []
    for mode, by_alias in _FORMS:
        form, refusal = _try_form(payload_type, value, mode, by_alias=by_alias)
        if not refusal:
            return form
        refusals.append(refusal)
    # A lost field says more than the refusal of a form that the type does not read at all.
    raise InvalidRequestError(min(refusals, key=lambda found: not found[0].message.startswith(_LOSS)))


def _try_form(payload_type: PayloadType, value: object, mode: _Mode, *, by_alias: bool) -> tuple[Any, list[Problem]]:
    """Return *value* in one form, and the reasons why the function would not read an equal value back."""
    adapter = payload_type.adapter
    try:
        form = adapter.dump_python(value, mode=mode, by_alias=by_alias, round_trip=True, warnings=False)
        again = adapter.validate_python(form if mode == "json" else _store(form))
    except ValidationError as error:
        return None, _list_problems(error)
    except (PydanticSerializationError, BSONError, TypeError, ValueError, OverflowError) as error:
        name = describe_type(payload_type.annotation)
        return None, [Problem("payload", f"{name} cannot be written as JSON ({type(error).__name__}){_REMEDY}")]
    lost = next(_find_differences(value, again), None)
    if lost is None:
        return form, []
    return None, [Problem(".".join(("payload", *lost)), f"{_LOSS}{_REMEDY}")]


def _list_problems(error: ValidationError) -> list[Problem]:
    found = problems(error, below="payload")
    return [Problem(below_payload(problem.field), problem.message) for problem in found]


def _is_storable(payload: dict[str, Any]) -> bool:
    try:
        encode_payload(payload, max_bytes=MAX_PAYLOAD_BYTES)
    except UnfitError:
        return False
    return True


def _store(form: Any) -> dict[str, Any]:  # noqa: ANN401 - a serializer may return anything
    return decode(RawBSONDocument(bson.encode(form)))


def _find_differences(value: object, again: object) -> Iterator[tuple[str, ...]]:
    """Yield the path of each part in which the two values differ; private attributes do not count."""
    value, again = _open(value), _open(again)
    if isinstance(value, Mapping) and isinstance(again, Mapping) and value.keys() == again.keys():
        for key, part in value.items():
            yield from ((str(key), *path) for path in _find_differences(part, again[key]))
    elif isinstance(value, list | tuple) and isinstance(again, list | tuple) and len(value) == len(again):
        for index, (part, read) in enumerate(zip(value, again, strict=True)):
            yield from ((str(index), *path) for path in _find_differences(part, read))
    elif value != again:
        yield ()


def _open(value: object) -> object:
    """Return the fields of a model or a dataclass by name, and any other value as it is."""
    if isinstance(value, BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    return value
