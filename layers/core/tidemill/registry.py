"""Registry of task functions: task types by name, the decorator, and loading of a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from tidemill import model
from tidemill.errors import RegistrationError, TidemillError
from tidemill.model import RetryPolicy
from tidemill.policy.failures import COMMON, Kind, Rules, classify, describe_without_message
from tidemill.task_functions import Signature, TaskContext, describe_place, find_routine, read_signature
from tidemill.task_options import make_rules, read_policy, read_timeout, require_bool, require_name

_NO_SUCH_ARGUMENT: Final = r"[\w.]+\(\) got an unexpected keyword argument '\w+'"

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """A registered function, its options, and the defaults of its tasks."""

    name: str
    function: Callable[..., Any]
    timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    rules: Rules = COMMON
    http: bool = False
    isolate: bool = False
    signature: Signature = field(default_factory=Signature)

    def call(self, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401 - the function decides
        """Call the function and return its result; the result of an ``async def`` has to be awaited.

        Raises:
            Fail: The payload does not fit its model; the message repeats no value of it.
        """
        payload_type = self.signature.payload_type
        argument = payload if payload_type is None else payload_type.validate(payload)
        return self.function(argument, ctx) if self.signature.takes_context else self.function(argument)


class Registry:
    """Task types by name; each name belongs to one function."""

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
        """Register the decorated function under *name*; the function itself is not changed.

        It is called as ``function(payload, ctx)``, or as ``function(payload)`` if it takes one argument. A payload
        annotated with a Pydantic model is validated first. An ``async def`` runs on the event loop of its thread.
        Its unfinished asyncio tasks are cancelled when it returns.

        Args:
            name: Name in tasks: up to 100 letters, digits, ``_``, ``.`` and ``-``.
            timeout: Upper limit of one attempt, in seconds; ``None`` means the deployment's.
            retry: Policy of tasks without their own: a policy, or the name of a preset.
            fail_on: Exceptions that end a task at once: classes or class names; subclasses count.
                ``TaskTimeoutError`` stands for a timeout.
            retry_on: Exceptions that are retried although their name or a base class is not. If several classes apply
                to an exception, the nearest one decides.
            http: True allows tasks of this name over HTTP.
            isolate: True gives each run a process of its own, if executors can. The run may then crash, hang or use
                too much memory without harm to other tasks, and is killed at its timeout.

        Raises:
            RegistrationError: The function or an option cannot work; the message says what to change.
        """
        require_name(name)

        def register(function: _F) -> _F:
            self._add(
                TaskType(
                    name=name,
                    function=function,
                    timeout=read_timeout(timeout, name),
                    retry=read_policy(retry, name),
                    rules=make_rules(fail_on, retry_on, name),
                    http=require_bool(http, "http", name),
                    isolate=require_bool(isolate, "isolate", name),
                    signature=read_signature(function, name),
                )
            )
            return function

        return register

    def get(self, name: str) -> TaskType | None:
        """Return the type registered as *name*, or ``None``."""
        return self._types.get(name)

    def __iter__(self) -> Iterator[TaskType]:
        return iter(self._types.values())

    def __len__(self) -> int:
        return len(self._types)

    def _add(self, new: TaskType) -> None:
        old = self._types.get(new.name)
        if old is not None and not _may_replace(old.function, new.function):
            raise RegistrationError(_explain_conflict(new.name, old.function, new.function))
        self._types[new.name] = new


REGISTRY: Final = Registry()
task = REGISTRY.task


def load(package: str, registry: Registry = REGISTRY) -> Registry:
    """Import every module of *package* and of the packages in it, and return the registry.

    Modules and packages whose name begins with an underscore are left out.

    Raises:
        RegistrationError: A module cannot be imported, or Python would skip a file; the message names it.
    """
    path = getattr(_import(package), "__path__", None)
    if path is None:
        raise RegistrationError(f"{package} is a single module: task modules are the files of a package")
    _import_all(path, package)
    return registry


def _import_all(path: Iterable[str], package: str) -> None:
    for folder in path:
        _refuse_skipped(Path(folder), package)
    for entry in sorted(pkgutil.iter_modules(path, f"{package}."), key=attrgetter("name")):
        if entry.name.rpartition(".")[2].startswith("_"):
            continue
        module = _import(entry.name)
        if entry.ispkg:
            _import_all(module.__path__, entry.name)


def _refuse_skipped(folder: Path, package: str) -> None:
    """Refuse files with Python code in *folder* that Python does not count among the modules of *package*."""
    for entry in sorted(folder.glob("[!._]*")):
        skipped = f"Python would skip {entry.name} in the package {package}:"
        if entry.suffix == ".py" and "." in entry.stem:
            raise RegistrationError(f"{skipped} its name has a dot; rename it, or begin its name with _")
        if entry.suffix == ".py" and (folder / entry.stem / "__init__.py").exists():
            raise RegistrationError(f"{skipped} the folder {entry.stem} has the same name; rename one of them")
        if entry.is_dir() and not (entry / "__init__.py").exists() and any(entry.glob("*.py")):
            raise RegistrationError(f"{skipped} it has no __init__.py; add one, or begin its name with _")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise RegistrationError(
                f"there is no package {name} where Python looks: `tidemill work` looks in the current folder, too; "
                "name another with TASK_PACKAGE or --tasks"
            ) from error
        raise RegistrationError(
            f"the task module {name} cannot be imported: {_describe_failed_import(error)}"
        ) from error


def _describe_failed_import(error: BaseException) -> str:
    """Return the description of *error*, with its message only if Python or Tidemill wrote it.

    A module may connect to a server while it is imported, and its message may contain the credentials.
    """
    is_harmless = issubclass(type(error), (ImportError, SyntaxError, TidemillError)) or _is_about_an_argument(error)
    return classify(error).message if is_harmless else describe_without_message(error)


def _is_about_an_argument(error: BaseException) -> bool:
    if type(error) is TypeError:
        return re.fullmatch(_NO_SUCH_ARGUMENT, str(error)) is not None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return type(error) is ValueError and frame.f_globals.get("__name__") == model.__name__


def _may_replace(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Return True if *new* is *old* once more: its module was imported again, or its cell of a notebook edited."""
    if old is new:
        return True
    # Several partials and objects may share one place in the source, so only plain routines are compared by place.
    if find_routine(old) is not old or find_routine(new) is not new:
        return False
    if describe_place(old) == describe_place(new):
        return True
    are_interactive = old.__module__ == new.__module__ == "__main__" and old.__qualname__ == new.__qualname__
    return are_interactive and _get_source(old)[0] != _get_source(new)[0]


def _explain_conflict(name: str, old: Callable[..., Any], new: Callable[..., Any]) -> str:
    if _get_source(old) == _get_source(new) != (None, None) and old.__module__ != new.__module__:
        return (
            f"the module of {name!r} is imported twice, as {old.__module__} and as {new.__module__}: "
            "import it under one name only"
        )
    return f"two functions are registered as {name!r}: {describe_place(old)} and {describe_place(new)}; rename one"


def _get_source(function: Callable[..., Any]) -> tuple[str | None, int | None]:
    """Return the file and the first line of *function*."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None)
