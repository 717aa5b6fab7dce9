"""What a registration says, checked where it is written: names, timeouts, policies, rules and signatures.

Each function raises ``RegistrationError`` where something cannot work; the message says what to do.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from tidemill.classify import Kind, Rules
from tidemill.errors import Fail, RegistrationError, Retry, Snooze
from tidemill.policies import RetryPolicy
from tidemill.requests import MAX_TIMEOUT_SEC, NAME_PATTERN
from tidemill.retry import PRESET_EXPECTED, PRESETS

_MIN_SEC: Final = 0.1
"""The shortest timeout, as for a task."""


def require_name(name: object) -> None:
    """Refuse what no task can be called; also a function, which comes of a decorator without its brackets."""
    if callable(name):
        raise RegistrationError('a task function needs a name: write @task("name") above it, with brackets')
    if not isinstance(name, str) or re.fullmatch(NAME_PATTERN, name) is None:
        raise RegistrationError(f"{name!r} is no name for a task: use up to 100 letters, digits, _ . and -")


def kept_timeout(timeout: object, name: str) -> timedelta | None:
    """Return the *timeout* of the task *name*, given in seconds; ``None`` is left to the deployment."""
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and _MIN_SEC <= timeout <= MAX_TIMEOUT_SEC:
        return timedelta(seconds=timeout)
    raise RegistrationError(f"the timeout of {name!r} must be {_MIN_SEC:g} to {MAX_TIMEOUT_SEC:g} seconds")


def retry_policy(retry: object, name: str) -> RetryPolicy | None:
    """Return the policy of the task *name*, given as such or by the name of a preset."""
    if isinstance(retry, str) and retry in PRESETS:
        return PRESETS[retry]
    if retry is None or isinstance(retry, RetryPolicy):
        return retry
    raise RegistrationError(f"the retry of {name!r} {PRESET_EXPECTED}, or a RetryPolicy")


def switch(value: object, option: str, name: str) -> bool:
    """Return the *option* of the task *name* that is on or off; a text would be on whatever it says."""
    if isinstance(value, bool):
        return value
    raise RegistrationError(f"the {option} of {name!r} must be True or False")


def rules(fail_on: Kind | Iterable[Kind], retry_on: Kind | Iterable[Kind], name: str) -> Rules:
    """Return what the task *name* says of exceptions; an option is one kind or several."""
    final, tried = _kinds(fail_on, f"fail_on of {name!r}"), _kinds(retry_on, f"retry_on of {name!r}")
    both = _overlap(final, tried) | _overlap(tried, final)
    if both:
        raise RegistrationError(f"{', '.join(sorted(both))} cannot be in both fail_on and retry_on of {name!r}")
    return Rules(fail_on=final, retry_on=tried)


def positional(function: object, name: str) -> list[inspect.Parameter]:
    """Return the parameters that take the payload and, where there are two, the context."""
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise RegistrationError(
            f"the task function {name!r} yields, so that calling it does nothing: use a def or async def that returns"
        )
    parameters = list(inspect.signature(function).parameters.values()) if callable(function) else []
    usable = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not usable or any(p not in usable[:2] for p in needed):
        raise RegistrationError(
            f"the task function {name!r} must be callable as function(payload) or function(payload, ctx)"
        )
    return usable[:2]


def payload_model(function: Callable[..., Any], parameter: str) -> type[BaseModel] | None:
    """Return the Pydantic model that *parameter* is annotated with, or ``None`` where it is no model."""
    try:
        annotation = typing.get_type_hints(_called(function)).get(parameter)
    except Exception as error:  # resolving it runs whatever it says
        raise RegistrationError(f"an annotation of {place(function)} cannot be resolved: {error}") from error
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def place(function: Callable[..., Any]) -> str:
    """Return where *function* was written, as a person looks for it."""
    called: Any = _called(function)
    code = getattr(inspect.unwrap(called), "__code__", None)
    name = getattr(called, "__qualname__", type(called).__qualname__)
    return f"{called.__module__}.{name}" + (f" (line {code.co_firstlineno})" if code else "")


def is_the_same(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Tell whether both are one function, be it of a module that was imported twice."""
    are_written = _called(function) is function and _called(other) is other  # partials and objects are made
    return function is other or (are_written and place(function) == place(other))


def _called(function: object) -> object:
    """Return what runs when *function* is called: what a partial wraps; of an object its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    is_itself = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_itself else inspect.getattr_static(type(function), "__call__", function)


def _kinds(given: Kind | Iterable[Kind], where: str) -> frozenset[Kind]:
    kinds = list(given) if isinstance(given, Iterable) and not isinstance(given, str | type) else [given]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Retry | Fail | Snooze):
            raise RegistrationError(f"the {where} cannot hold Retry, Fail or Snooze, which decide for themselves")
        is_class = isinstance(kind, type) and issubclass(kind, BaseException)
        if not is_class and not (isinstance(kind, str) and kind.isidentifier()):
            raise RegistrationError(f"the {where} must hold exception classes, or their names without the module")
    return frozenset(kinds)


def _overlap(some: frozenset[Kind], others: frozenset[Kind]) -> set[str]:
    """Return the names of those of *some* that *others* hold too, as they are or by name."""
    return {_kind_name(kind) for kind in some if kind in others or _kind_name(kind) in others}


def _kind_name(kind: Kind) -> str:
    return kind if isinstance(kind, str) else kind.__name__
