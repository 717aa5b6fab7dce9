"""Task functions by name: registered by a decorator, loaded from one package, called with a checked payload."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from types import ModuleType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from tidemill.classify import classify
from tidemill.errors import Fail, RegistrationError
from tidemill.model import RetryPolicy, TaskId
from tidemill.requests import MAX_TIMEOUT_SEC, NAME_PATTERN, problems

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a running task function may know of itself.

    ``attempt`` is 1 for the first run. ``deadline`` is a reading of ``time.monotonic``.
    """

    task_id: TaskId
    attempt: int
    is_last_attempt: bool
    deadline: float
    _cancelled: Event = field(default_factory=Event, repr=False)

    def remaining(self) -> timedelta:
        """Return the time left until this attempt counts as timed out; never negative."""
        return timedelta(seconds=max(self.deadline - time.monotonic(), 0.0))

    def cancelled(self) -> bool:
        """Tell whether somebody asked this task to stop. Looked up once a second."""
        return self._cancelled.is_set()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """A registered function: how it is called, and what holds where a task says nothing of its own."""

    name: str
    function: Callable[..., Any]
    timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    http: bool = False
    payload_model: type[BaseModel] | None = None
    takes_context: bool = True

    def call(self, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401 - the function decides
        """Run the function.

        Raises:
            Fail: The payload does not fit its model; the text repeats no value of it.
        """
        argument: Any = payload
        if self.payload_model is not None:
            argument = _validated(self.payload_model, payload)
        return self.function(argument, ctx) if self.takes_context else self.function(argument)


class Registry:
    """Task types by name; a name is given once."""

    def __init__(self) -> None:
        self._types: dict[str, TaskType] = {}

    def task(
        self,
        name: str,
        *,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        http: bool = False,
    ) -> Callable[[_F], _F]:
        """Register the decorated function, which stays as it is, under *name*.

        It is called as ``function(payload, ctx)``, or ``function(payload)`` where it takes one argument. A
        payload annotated with a Pydantic model is validated first.

        Args:
            name: How tasks name it: letters, digits, ``_``, ``.`` and ``-``, up to 100.
            timeout: Seconds one attempt may take; ``None`` leaves it to the deployment.
            retry: How its tasks are retried where they say nothing themselves.
            http: Whether tasks of this name may be enqueued over HTTP.

        Raises:
            RegistrationError: The function or an option cannot work; the message says what to do.
        """
        if not _is_name(name):  # also where the decorator was written without its brackets
            raise RegistrationError(f"{name!r} is no name for a task: use up to 100 letters, digits, _ . and -")

        def register(function: _F) -> _F:
            self._add(_task_type(function, name=name, timeout=timeout, retry=retry, http=http))
            return function

        return register

    def get(self, name: str) -> TaskType | None:
        """Return the type registered as *name*."""
        return self._types.get(name)

    def __iter__(self) -> Iterator[TaskType]:
        return iter(self._types.values())

    def __len__(self) -> int:
        return len(self._types)

    def _add(self, new: TaskType) -> None:
        old = self._types.get(new.name)
        if old is not None and _place(old.function) != _place(new.function):
            raise RegistrationError(
                f"two functions are registered as {new.name!r}: {_place(old.function)} and {_place(new.function)}; "
                "rename one"
            )
        self._types[new.name] = new


REGISTRY: Final = Registry()
task = REGISTRY.task


def load(package: str, registry: Registry = REGISTRY) -> Registry:
    """Import every module of *package* whose name has no leading underscore, and return the registry.

    Raises:
        RegistrationError: A module cannot be imported; the message names it.
    """
    for module in _modules(package):
        _imported(module)
    return registry


def _modules(package: str) -> list[str]:
    path = getattr(_imported(package), "__path__", None)
    if path is None:
        raise RegistrationError(f"{package} is a single module: task modules are the files of a package")
    found = pkgutil.iter_modules(path, f"{package}.")
    return sorted(one.name for one in found if not one.name.rpartition(".")[2].startswith("_"))


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise RegistrationError(f"the task module {name} cannot be imported: {classify(error).message}") from error


def _task_type(
    function: Callable[..., Any], *, name: str, timeout: float | None, retry: RetryPolicy | None, http: bool
) -> TaskType:
    if any(is_of_kind(function) for is_of_kind in _RUN_NOTHING):
        raise RegistrationError(
            f"the task function {name!r} is async or a generator, which no executor runs yet: use a plain def"
        )
    if timeout is not None and not _can_be_kept(timeout):
        raise RegistrationError(f"the timeout of {name!r} must be 0.1 to {MAX_TIMEOUT_SEC:g} seconds")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"the retry of {name!r} must be a RetryPolicy")
    parameters = _positional(function, name)
    return TaskType(
        name=name,
        function=function,
        timeout=None if timeout is None else timedelta(seconds=timeout),
        retry=retry,
        http=http,
        payload_model=_payload_model(function, parameters[0].name),
        takes_context=len(parameters) > 1,
    )


_RUN_NOTHING: Final = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
"""What tells functions whose mere call runs nothing."""


def _is_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(NAME_PATTERN, name) is not None


def _can_be_kept(timeout: object) -> bool:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        return False
    return 0.1 <= timeout <= MAX_TIMEOUT_SEC  # noqa: PLR2004 - as for a task


def _positional(function: object, name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values()) if callable(function) else []
    usable = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not usable or any(p not in usable[:2] for p in needed):
        raise RegistrationError(
            f"the task function {name!r} must be callable as function(payload) or function(payload, ctx)"
        )
    return usable[:2]


def _payload_model(function: Callable[..., Any], parameter: str) -> type[BaseModel] | None:
    try:
        annotation = typing.get_type_hints(function).get(parameter)
    except Exception as error:  # resolving it runs whatever it says
        raise RegistrationError(f"an annotation of {_place(function)} cannot be resolved: {error}") from error
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _validated(model: type[BaseModel], payload: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        found = "; ".join(f"{one.field}: {one.message}" for one in problems(error, below="payload"))
        raise Fail(f"the payload does not fit {model.__name__}: {found}", code="ValidationError") from None


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}.{name}" + (f" (line {code.co_firstlineno})" if code else "")
