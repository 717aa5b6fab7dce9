"""Task functions by name: registered by a decorator, loaded from one package, called with a checked payload."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from threading import Event
from types import ModuleType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from tidemill import policies, registration
from tidemill.classify import COMMON, Kind, Rules, classify, located
from tidemill.errors import Fail, RegistrationError, TidemillError
from tidemill.model import TaskId
from tidemill.policies import RetryPolicy
from tidemill.registration import place
from tidemill.requests import problems

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a running task function may know of itself.

    ``attempt`` is 1 for the first run. ``deadline`` is a reading of ``time.monotonic``. ``correlation_id`` and
    ``traceparent`` (W3C Trace Context) are those of the request that enqueued it, to be passed on.
    """

    task_id: TaskId
    attempt: int
    is_last_attempt: bool
    deadline: float
    correlation_id: str | None = None
    traceparent: str | None = None
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
    rules: Rules = COMMON
    http: bool = False
    isolate: bool = False
    payload_model: type[BaseModel] | None = None
    takes_context: bool = True

    def call(self, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401 - the function decides
        """Call the function; of an ``async def`` what is returned is still to be awaited.

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
        retry: RetryPolicy | str | None = None,
        fail_on: Kind | Iterable[Kind] = (),
        retry_on: Kind | Iterable[Kind] = (),
        http: bool = False,
        isolate: bool = False,
    ) -> Callable[[_F], _F]:
        """Register the decorated function, which stays as it is, under *name*.

        It is called as ``function(payload, ctx)``, or ``function(payload)`` where it takes one argument. A
        payload annotated with a Pydantic model is validated first. An ``async def`` runs on an event loop of its
        thread's; what it leaves running there is cancelled when it returns.

        Args:
            name: How tasks name it: letters, digits, ``_``, ``.`` and ``-``, up to 100.
            timeout: Seconds one attempt may take; ``None`` leaves it to the deployment.
            retry: How its tasks are retried where they say nothing themselves: a policy, or the name of a preset.
            fail_on: Exceptions that end a task at once, by class or by the name of the class; with all that inherit
                from them. ``TaskTimeoutError`` stands for running too long.
            retry_on: Exceptions that are tried again, though by their name, or for one of their bases, they would not
                be. Of several classes that apply to an exception, the one nearest to it decides.
            http: Whether tasks of this name may be enqueued over HTTP.
            isolate: Whether each run gets a process of its own, where executors can give it one: it may then crash,
                hang or eat memory as it likes, and is killed at its timeout.

        Raises:
            RegistrationError: The function or an option cannot work; the message says what to do.
        """
        registration.require_name(name)

        def register(function: _F) -> _F:
            parameters = registration.positional(function, name)
            self._add(
                TaskType(
                    name=name,
                    function=function,
                    timeout=registration.kept_timeout(timeout, name),
                    retry=registration.retry_policy(retry, name),
                    rules=registration.rules(fail_on, retry_on, name),
                    http=registration.switch(http, "http", name),
                    isolate=registration.switch(isolate, "isolate", name),
                    payload_model=registration.payload_model(function, parameters[0].name),
                    takes_context=len(parameters) > 1,
                )
            )
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
        if old is not None and not registration.is_the_same(old.function, new.function):
            raise RegistrationError(
                f"two functions are registered as {new.name!r}: {place(old.function)} and {place(new.function)}; "
                "rename one"
            )
        self._types[new.name] = new


_NO_SUCH_ARGUMENT: Final = r"[\w.]+\(\) got an unexpected keyword argument '\w+'"

REGISTRY: Final = Registry()
task = REGISTRY.task


def load(package: str, registry: Registry = REGISTRY) -> Registry:
    """Import every module of *package* and of the packages in it, and return the registry.

    Those whose name has a leading underscore are left out, with all that is in them.

    Raises:
        RegistrationError: A module cannot be imported; the message names it.
    """
    path = getattr(_imported(package), "__path__", None)
    if path is None:
        raise RegistrationError(f"{package} is a single module: task modules are the files of a package")
    _import_all(path, package)
    return registry


def _import_all(path: Iterable[str], package: str) -> None:
    for one in sorted(pkgutil.iter_modules(path, f"{package}."), key=attrgetter("name")):
        if one.name.rpartition(".")[2].startswith("_"):
            continue
        module = _imported(one.name)
        if one.ispkg:
            _import_all(module.__path__, one.name)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{name}.".startswith(f"{error.name}.")
        ):
            raise RegistrationError(
                f"there is no package {name} where Python looks: `tidemill work` looks in the current folder, too; "
                "name another with TASK_PACKAGE or --tasks"
            ) from error
        raise RegistrationError(f"the task module {name} cannot be imported: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """Return what is told of an import that failed: of others' words only those that Python itself chooses, as a rule.

    A module may connect to something as it is imported, and say with what.
    """
    is_harmless = issubclass(type(error), (ImportError, SyntaxError, TidemillError)) or _is_about_an_argument(error)
    return classify(error).message if is_harmless else located(error)


def _is_about_an_argument(error: BaseException) -> bool:
    if type(error) is TypeError:
        return re.fullmatch(_NO_SUCH_ARGUMENT, str(error)) is not None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return type(error) is ValueError and frame.f_globals.get("__name__") == policies.__name__


def _validated(model: type[BaseModel], payload: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        found = "; ".join(f"{one.field}: {one.message}" for one in problems(error, below="payload"))
        raise Fail(f"the payload does not fit {model.__name__}: {found}", code="ValidationError") from None
