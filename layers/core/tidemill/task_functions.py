"""Task functions: their context, the arguments of their call, and the type that validates their payload."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from inspect import Parameter
from threading import Event
from types import NoneType
from typing import Any, Final
from uuid import UUID

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from tidemill.clock import read_monotonic
from tidemill.errors import Fail, RegistrationError
from tidemill.model import TaskId
from tidemill.policy.failures import MAX_NOTE_CHARS, truncate_text
from tidemill.requests.validation import problems

_CALLS: Final = "must be callable as function(payload) or function(payload, ctx)"
_CONTEXT_NAMES: Final = frozenset({"ctx", "context"})
"""Names that mean the context where neither an annotation nor a missing default does."""

_METHOD_PARAMETERS: Final = (("self",), ("cls",))
_CATCH_ALL: Final = (Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD))
_POSITIONAL: Final = frozenset({Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD})
_VARIABLE: Final = frozenset({Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD})
_PLAIN_OBJECTS: Final = (dict, Mapping, MutableMapping, object)
"""Annotations of a payload that every payload fits as it is; any other one is a type that validates."""

_UNIONS: Final = (typing.Union, types.UnionType)
_NO_OBJECTS: Final = (str, int, float, complex, bytes, list, tuple, set, frozenset, date, Decimal, UUID, Enum, NoneType)


def _ignore_note(_: str) -> None:
    """Do nothing: nothing logs the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Context of a running task function.

    ``name`` is the name of the task. ``attempt`` is 1 for the first run. ``deadline`` is a reading of the real
    ``time.monotonic``. ``correlation_id`` and ``traceparent`` (W3C Trace Context) come from the request that enqueued
    the task; pass them on.
    """

    task_id: TaskId
    attempt: int
    is_last_attempt: bool
    deadline: float
    name: str = ""
    correlation_id: str | None = None
    traceparent: str | None = None
    _cancelled: Event = field(default_factory=Event, repr=False)
    _take_note: Callable[[str], object] = field(default=_ignore_note, repr=False)

    def remaining(self) -> timedelta:
        """Return the time until this attempt times out; never negative. Tests cannot freeze it."""
        return timedelta(seconds=max(self.deadline - read_monotonic(), 0.0))

    def cancelled(self) -> bool:
        """Return True if a cancellation of this task was requested. The executor checks once a second."""
        return self._cancelled.is_set()

    def note(self, text: object) -> None:
        """Set the note of this attempt in the execution log, instead of an earlier one; at most 200 characters.

        It is stored however the attempt ends. It is lost with its executor, and with an attempt that does not count.
        """
        self._take_note(truncate_text(str(text), MAX_NOTE_CHARS))


@dataclass(frozen=True, slots=True)
class PayloadType:
    """Type that a payload is validated as: a Pydantic model, a dataclass, a TypedDict, a union of them, and so on."""

    annotation: Any
    adapter: TypeAdapter[Any] = field(compare=False, repr=False)

    def validate(self, payload: dict[str, Any]) -> Any:  # noqa: ANN401 - the annotation decides
        """Return *payload* as a value of this type.

        Raises:
            Fail: The payload does not fit; the message repeats no value of it.
        """
        try:
            return self.adapter.validate_python(payload)
        except ValidationError as error:
            found = "; ".join(f"{problem.field}: {problem.message}" for problem in problems(error, below="payload"))
            name = describe_type(self.annotation)
            raise Fail(f"the payload does not fit {name}: {found}", code="ValidationError") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Arguments that a task function is called with."""

    payload_type: PayloadType | None = None
    takes_context: bool = True


def read_signature(function: object, name: str) -> Signature:
    """Return the arguments of the task function *name*.

    The outermost callable decides, since it is what is called. A decorator's ``*args`` stand for parameters of the
    function below it, which ``functools.wraps`` names.

    Raises:
        RegistrationError: The function cannot be called with a payload, or it would not run when it is called.
    """
    _require_routine(function, name)
    parameters, own = _list_parameters(function)
    usable = [p for p in parameters if p.kind in _POSITIONAL]
    needed = [p for p in own if p.default is p.empty and p.kind not in _VARIABLE]
    if not usable or any(p not in usable[:2] for p in needed):
        is_catch_all = not usable and any(p.kind is Parameter.VAR_POSITIONAL for p in own)
        hint = ": *args do not say so; the decorator's wrapper needs @functools.wraps(function)" if is_catch_all else ""
        raise RegistrationError(f"the task function {name!r} {_CALLS}{hint}")
    payload, *second = usable[:2]
    takes_context = bool(second) and _is_context(second[0], function, name, is_own=second[0] in own)
    return Signature(payload_type=_make_payload_type(payload, function), takes_context=takes_context)


def make_payload_type(annotation: object, place: str) -> PayloadType | None:
    """Return the type of payloads that are validated as *annotation*, or ``None`` if each payload fits as it is.

    Raises:
        RegistrationError: No payload fits, or Pydantic does not know the type; the message names the *place*.
    """
    if _is_plain(annotation):
        return None
    if _never_fits(annotation):
        raise RegistrationError(
            f"a payload is an object (a dict), which never fits {describe_type(annotation)}, the annotation of {place}"
        )
    try:
        adapter = TypeAdapter[Any](annotation)
        adapter.validator.title  # noqa: B018 - raises for a type whose fields are not resolved
        return PayloadType(annotation, adapter)
    except (PydanticUserError, TypeError, NameError) as error:
        reason = str(error).partition("\n")[0]
        raise RegistrationError(
            f"Pydantic cannot validate a payload as {describe_type(annotation)}, the annotation of {place}: {reason}"
        ) from error


def read_result_annotation(function: object) -> Any:  # noqa: ANN401 - an annotation can be anything
    """Return the annotation of the result of a task function, or ``None`` without one.

    Raises:
        RegistrationError: The annotation cannot be resolved.
    """
    try:
        annotation = inspect.signature(function).return_annotation  # type: ignore[arg-type]
        return None if annotation is Parameter.empty else _resolve(annotation, function)
    except Exception as error:  # resolving an annotation runs its code, which may raise anything
        place = describe_place(function)  # type: ignore[arg-type]
        raise RegistrationError(f"the annotation of the result of {place} cannot be resolved: {error}") from error


def describe_type(annotation: object) -> str:
    """Return *annotation* as its author wrote it, more or less: without the names of modules."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(annotation))


def describe_place(function: Callable[..., Any]) -> str:
    """Return the module, name and line of *function*, for messages."""
    routine: Any = find_routine(function)
    code = getattr(inspect.unwrap(routine), "__code__", None)
    name = getattr(routine, "__qualname__", type(routine).__qualname__)
    return f"{routine.__module__}.{name}" + (f" (line {code.co_firstlineno})" if code else "")


def find_routine(function: object) -> object:
    """Return the routine that runs when *function* is called: a partial's function, or an object's ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    is_itself = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_itself else inspect.getattr_static(type(function), "__call__", function)


def _require_routine(function: object, name: str) -> None:
    routine = find_routine(function)
    if inspect.isgeneratorfunction(routine) or inspect.isasyncgenfunction(routine):
        raise RegistrationError(
            f"the task function {name!r} yields, so that calling it does nothing: use a def or async def that returns"
        )
    if inspect.isclass(function):
        raise RegistrationError(
            f"the task function {name!r} is a class, so that calling it only makes an object: "
            "register a function, or an object with __call__"
        )
    if not callable(function):
        raise RegistrationError(f"the task function {name!r} {_CALLS}")
    innermost = inspect.unwrap(function, stop=inspect.ismethod)
    if inspect.isfunction(innermost) and innermost.__code__.co_varnames[:1] in _METHOD_PARAMETERS:
        raise RegistrationError(
            f"the task function {name!r} is a method without an object: register a function, or an object's method"
        )


def _list_parameters(function: object) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters of a call of *function*, and those of them that its outermost callable has itself."""
    try:
        own = list(inspect.signature(function, follow_wrapped=False).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it is written in C
        own = list(_CATCH_ALL)
    inner = getattr(function, "__wrapped__", None)
    if inner is None or not any(p.kind is Parameter.VAR_POSITIONAL for p in own):
        return own, own
    first = [p for p in own if p.kind in _POSITIONAL]
    below = [p for p in _list_parameters(inner)[0] if p.kind in _POSITIONAL]
    return [*first, *below[len(first) + inspect.ismethod(function) :]], own


def _is_context(parameter: Parameter, function: object, name: str, *, is_own: bool) -> bool:
    """Return True if the second parameter of a task function is the context, False if it is left to its default."""
    has_default = parameter.default is not parameter.empty
    match _find_context_in(parameter.annotation, function):
        case None if parameter.name in _CONTEXT_NAMES or (is_own and not has_default):
            return True
        case None if has_default:
            return False
        case None:
            raise RegistrationError(
                f"the task function {name!r} has a decorator that hides whether {parameter.name!r} is the context: "
                f"annotate {parameter.name!r}, with TaskContext or with its type"
            )
        case False if is_own and not has_default:
            raise RegistrationError(
                f"the second argument of the task function {name!r} is its TaskContext, and {parameter.name!r} is "
                f"annotated as {describe_type(parameter.annotation)}: give it a default, or remove it"
            )
        case is_meant:
            return is_meant


def _find_context_in(annotation: object, function: object) -> bool | None:
    """Return whether *annotation* stands for the context; ``None`` if it says nothing."""
    if annotation is Parameter.empty:
        return None
    try:
        resolved = _resolve(annotation, function)
    except Exception:  # noqa: BLE001 - it may exist for type checkers only, and the text of its name is enough
        return True if re.search(r"\bTaskContext\b", str(annotation)) else None
    if resolved is Any or resolved is object or getattr(resolved, "_is_protocol", False):
        return None
    return any(kind is TaskContext for kind in (resolved, *typing.get_args(resolved)))


def _make_payload_type(payload: Parameter, function: object) -> PayloadType | None:
    """Return the type of the parameter *payload*, or ``None`` if each payload fits as it is."""
    if payload.annotation is payload.empty:
        return None
    place = describe_place(function)  # type: ignore[arg-type]
    try:
        annotation = _resolve(payload.annotation, function)
    except Exception as error:  # resolving an annotation runs its code, which may raise anything
        raise RegistrationError(
            f"the annotation of {payload.name!r} of {place} cannot be resolved: {error}; "
            "a type that is imported for type checkers only cannot validate a payload"
        ) from error
    return make_payload_type(annotation, place)


def _is_plain(annotation: object) -> bool:
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return True
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    return (
        origin in _PLAIN_OBJECTS
        and all(argument in {str, Any, object} for argument in arguments[:1])
        and all(argument in {Any, object} for argument in arguments[1:])
    )


def _never_fits(annotation: object) -> bool:
    """Return True if no object can be valid as *annotation*, like ``str``, ``list[Invoice]`` or ``str | None``."""
    origin = typing.get_origin(annotation) or annotation
    if origin in _UNIONS:
        return all(map(_never_fits, typing.get_args(annotation)))
    return isinstance(origin, type) and issubclass(origin, _NO_OBJECTS) and not hasattr(origin, "_fields")


def _resolve(annotation: object, function: object) -> Any:  # noqa: ANN401 - an annotation can be anything
    """Return *annotation* with names in it resolved, by itself: other annotations of *function* may not exist."""
    holder = types.FunctionType(_resolve.__code__, _find_globals(function))
    holder.__annotations__ = {"payload": annotation}
    return typing.get_type_hints(holder, include_extras=True)["payload"]


def _find_globals(function: object) -> dict[str, Any]:
    """Return the global names of the function that has the annotations: ``functools.wraps`` copies them as they are."""
    routine: Any = find_routine(function)
    inner = getattr(function, "__wrapped__", None)
    own: dict[str, Any] = getattr(routine, "__annotations__", {})
    if inner is not None and (not own or own == getattr(find_routine(inner), "__annotations__", {})):
        return _find_globals(inner)
    return getattr(routine, "__globals__", {})
