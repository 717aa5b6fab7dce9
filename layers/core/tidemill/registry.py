"""Registry of task functions: task types by name, the decorator, and the modules of a package with their faults."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar
from weakref import WeakSet

from tidemill.errors import RegistrationError
from tidemill.hooks import Hook, call_inside, make_hook
from tidemill.model import RetryPolicy
from tidemill.module_faults import Fault, Place, describe_failed_import, find_failed_place, find_place
from tidemill.policy.failures import COMMON, Kind, Rules
from tidemill.task_functions import Signature, TaskContext, describe_place, find_routine, read_signature
from tidemill.task_options import make_rules, read_policy, read_timeout, require_bool, require_name

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
    hooks: Sequence[Hook] = field(default=(), repr=False, compare=False)

    def call(self, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401 - the function decides
        """Call the function inside of the hooks and return its result; that of an ``async def`` has to be awaited.

        Raises:
            Fail: The payload does not fit its model; the message repeats no value of it.
        """
        if self.hooks:
            return call_inside(self.hooks, lambda: self._call(payload, ctx), ctx)
        return self._call(payload, ctx)

    def _call(self, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401 - the function decides
        payload_type = self.signature.payload_type
        argument = payload if payload_type is None else payload_type.validate(payload)
        return self.function(argument, ctx) if self.signature.takes_context else self.function(argument)


_REGISTRIES: Final[WeakSet[Registry]] = WeakSet()
"""All registries of this process: that of `task`, and those of tests."""


class Registry:
    """Task types by name; each name belongs to one function."""

    def __init__(self) -> None:
        self._types: dict[str, TaskType] = {}
        self._places: dict[str, Place] = {}
        self._refusals: dict[tuple[str, Place, str | None], str] = {}
        self._package: str | None = None
        self._hooks: list[Hook] = []
        self._hook_places: list[Place] = []
        _REGISTRIES.add(self)

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
            RegistrationError: The function or an option cannot work; the message says what to change. While
                `load_package` imports the module, the refusal becomes a fault instead, and the module goes on.
        """
        place = find_place()
        try:
            require_name(name)
        except RegistrationError as error:
            self._refuse(None, place, error)
            return name if callable(name) else _leave_unchanged

        def register(function: _F) -> _F:
            try:
                task_type = TaskType(
                    name=name,
                    function=function,
                    timeout=read_timeout(timeout, name),
                    retry=read_policy(retry, name),
                    rules=make_rules(fail_on, retry_on, name),
                    http=require_bool(http, "http", name),
                    isolate=require_bool(isolate, "isolate", name),
                    signature=read_signature(function, name),
                    hooks=self._hooks,
                )
                self._add(task_type, place)
            except RegistrationError as error:
                self._refuse(name, place, error)
            return function

        return register

    def task_hook(self, function: _F) -> _F:
        """Register the decorated generator function as a hook around each run; the function itself is not changed.

        ::

            @task_hook
            def log_runs(ctx):
                logger.info("%s begins", ctx.name)

        Yield:
                logger.info("%s has ended well", ctx.name)

        What stands before the ``yield`` runs before the task function, on the same thread and in the same
        ``contextvars`` context; the rest runs after it. The error of the function is raised at the ``yield``, also
        `Retry`, `Fail` and `Snooze`. A hook may raise another error in its place. A hook that suppresses it changes
        nothing. An error of a hook fails the attempt, as an error of the function does. The first registered hook is
        the outermost one. An ``async def`` is a hook around async functions only, inside of all other hooks.

        Raises:
            RegistrationError: The function does not yield, or cannot be called as ``hook(ctx)``.
        """
        hook, place = make_hook(function), find_place()
        for index, old in enumerate(self._hooks):
            # A function may make several hooks, which share one place in the source.
            is_made = "<locals>" in getattr(find_routine(function), "__qualname__", "")
            if old.function is function or (not is_made and _may_replace(old.function, function)):
                self._hooks[index], self._hook_places[index] = hook, place
                return function
        self._hooks.append(hook)
        self._hook_places.append(place)
        return function

    def get(self, name: str) -> TaskType | None:
        """Return the type registered as *name*, or ``None``."""
        return self._types.get(name)

    def __iter__(self) -> Iterator[TaskType]:
        return iter(self._types.values())

    def __len__(self) -> int:
        return len(self._types)

    @contextmanager
    def collecting(self, package: str) -> Iterator[None]:
        """Keep each refusal as a fault of *package* in this context, instead of raising it."""
        before, self._package = self._package, package
        try:
            yield
        finally:
            self._package = before

    def forget_unimported(self) -> None:
        """Forget what modules registered whose import has failed since, or that Python has unloaded."""
        for name, place in list(self._places.items()):
            if place.is_gone():
                self._types.pop(name, None)
                del self._places[name]
        kept = [n for n, place in enumerate(self._hook_places) if not place.is_gone()]
        self._hooks[:] = [self._hooks[n] for n in kept]
        self._hook_places = [self._hook_places[n] for n in kept]
        self._refusals = {key: problem for key, problem in self._refusals.items() if not key[1].is_gone()}

    def find_faults(self, package: str, *, max_timeout: timedelta | None) -> Iterator[Fault]:
        """Yield the refused registrations of *package*, and its functions whose timeout is above *max_timeout*."""
        for (owner, place, name), problem in self._refusals.items():
            if owner == package:
                yield place.make_fault(problem, package, name=name)
        for name, task_type in self._types.items():
            if max_timeout is not None and task_type.timeout is not None and task_type.timeout > max_timeout:
                seconds, limit = task_type.timeout.total_seconds(), max_timeout.total_seconds()
                problem = (
                    f"the timeout of {name!r} is {seconds:g} s, above MAX_TASK_TIMEOUT_SEC, which is {limit:g}; "
                    "lower it, or raise that setting"
                )
                yield self._places[name].make_fault(problem, package, name=name)

    def without(self, names: Collection[str | None]) -> Registry:
        """Return a registry without *names*; this one if it has none of them."""
        if self._types.keys().isdisjoint(names):
            return self
        rest = Registry()
        rest._types = {name: task_type for name, task_type in self._types.items() if name not in names}
        return rest

    def _add(self, new: TaskType, place: Place) -> None:
        old = self._types.get(new.name)
        if old is not None and not _may_replace(old.function, new.function):
            raise RegistrationError(_explain_conflict(new.name, old.function, new.function))
        self._types[new.name] = new
        self._places[new.name] = place

    def _refuse(self, name: str | None, place: Place, error: RegistrationError) -> None:
        if self._package is None:
            raise error
        self._refusals[self._package, place, name] = str(error)


REGISTRY: Final = Registry()
task = REGISTRY.task
task_hook = REGISTRY.task_hook


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPackage:
    """Task types of a package that can be used, and its faults. A task with a fault is in no registry."""

    registry: Registry
    faults: tuple[Fault, ...] = ()


def find_task_types(function: object) -> dict[str, TaskType]:
    """Return the types that *function* is registered as, by name. A method of an equal object counts, too."""
    types = [task_type for registry in list(_REGISTRIES) for task_type in registry]
    found = [task_type for task_type in types if task_type.function is function]
    found = found or [task_type for task_type in types if task_type.function == function]
    return {task_type.name: task_type for task_type in found}


def load(package: str, registry: Registry = REGISTRY) -> Registry:
    """Import every module of *package* and of the packages in it, and return the registry.

    Modules and packages whose name begins with an underscore are left out.

    Raises:
        RegistrationError: There is a fault, as in `load_package`; the message has the first one.
    """
    loaded = load_package(package, registry)
    for fault in loaded.faults:
        raise RegistrationError(str(fault))
    return loaded.registry


def load_package(package: str, registry: Registry = REGISTRY, *, max_timeout: timedelta | None = None) -> LoadedPackage:
    """Import the modules of *package* as `load` does, and return its task types and all of its faults.

    A fault of one module or of one registration leaves the others as they are. If two functions have one name,
    neither can be used. A failed module is imported again by the next call; what it registered before it failed is
    forgotten.

    Args:
        package: The package of the task modules.
        registry: The registry that these modules use.
        max_timeout: Longest timeout of a function; ``None`` without a limit.

    Raises:
        RegistrationError: There is no such package, or it is a single module.
    """
    registry.forget_unimported()
    with registry.collecting(package):
        try:
            faults = list(_import_package(package))
        finally:
            registry.forget_unimported()
    faults += registry.find_faults(package, max_timeout=max_timeout)
    return LoadedPackage(registry=registry.without({fault.name for fault in faults}), faults=tuple(faults))


def _import_package(package: str) -> Iterator[Fault]:
    module = _import(package, package=package)
    if isinstance(module, Fault):
        yield module
        return
    path = getattr(module, "__path__", None)
    if path is None:
        raise RegistrationError(f"{package} is a single module: task modules are the files of a package")
    yield from _import_all(path, package, package=package)


def _import_all(path: Iterable[str], parent: str, *, package: str) -> Iterator[Fault]:
    for folder in path:
        yield from _find_skipped(Path(folder), parent, package=package)
    for entry in sorted(pkgutil.iter_modules(path, f"{parent}."), key=attrgetter("name")):
        if entry.name.rpartition(".")[2].startswith("_"):
            continue
        module = _import(entry.name, package=package)
        if isinstance(module, Fault):
            yield module
        elif entry.ispkg:
            yield from _import_all(module.__path__, entry.name, package=package)


def _find_skipped(folder: Path, parent: str, *, package: str) -> Iterator[Fault]:
    """Yield faults for files with Python code in *folder* that Python does not count among the modules of *parent*."""
    for entry in sorted(folder.glob("[!._]*")):
        reason = ""
        if entry.suffix == ".py" and "." in entry.stem:
            reason = "its name has a dot; rename it, or begin its name with _"
        elif entry.suffix == ".py" and (folder / entry.stem / "__init__.py").exists():
            reason = f"the folder {entry.stem} has the same name; rename one of them"
        elif entry.is_dir() and not (entry / "__init__.py").exists() and any(entry.glob("*.py")):
            reason = "it has no __init__.py; add one, or begin its name with _"
        if reason:
            place = Place(module=f"{parent}.{entry.stem}", file=str(entry))
            yield place.make_fault(f"Python would skip {entry.name} in the package {parent}: {reason}", package)


def _import(name: str, *, package: str) -> ModuleType | Fault:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if name == package and isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise RegistrationError(
                f"there is no package {name} where Python looks: `tidemill work` looks in the current folder, too; "
                "name another with TASK_PACKAGE or --tasks"
            ) from error
        problem = f"the task module {name} cannot be imported: {describe_failed_import(error)}"
        return find_failed_place(name, error, package).make_fault(problem, package)


def _leave_unchanged(function: _F) -> _F:
    return function


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
