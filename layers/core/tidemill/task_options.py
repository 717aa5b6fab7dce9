"""Options of a registration: each is checked and turned into the value that a task type has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from tidemill.errors import Fail, RegistrationError, Retry, Snooze
from tidemill.model import RetryPolicy
from tidemill.policy.failures import Kind, Rules
from tidemill.policy.retry import PRESET_EXPECTED, PRESETS
from tidemill.requests.tasks import MAX_TIMEOUT_SEC, NAME_PATTERN

_MIN_TIMEOUT_SEC: Final = 0.1
"""Shortest timeout, as in the request for a task."""


def require_name(name: object) -> None:
    """Refuse an invalid name of a task; a function as the name means that the decorator lacks its brackets."""
    if callable(name):
        raise RegistrationError('a task function needs a name: write @task("name") above it, with brackets')
    if not isinstance(name, str) or re.fullmatch(NAME_PATTERN, name) is None:
        raise RegistrationError(f"{name!r} is no name for a task: use up to 100 letters, digits, _ . and -")


def read_timeout(timeout: object, name: str) -> timedelta | None:
    """Return the *timeout* of the task *name*, given in seconds; ``None`` means the deployment's."""
    if timeout is None:
        return None
    if (
        isinstance(timeout, int | float)
        and not isinstance(timeout, bool)
        and _MIN_TIMEOUT_SEC <= timeout <= MAX_TIMEOUT_SEC
    ):
        return timedelta(seconds=timeout)
    raise RegistrationError(f"the timeout of {name!r} must be {_MIN_TIMEOUT_SEC:g} to {MAX_TIMEOUT_SEC:g} seconds")


def read_policy(retry: object, name: str) -> RetryPolicy | None:
    """Return the policy of the task *name*, given as a policy or as the name of a preset."""
    if isinstance(retry, str) and retry in PRESETS:
        return PRESETS[retry]
    if retry is None or isinstance(retry, RetryPolicy):
        return retry
    raise RegistrationError(f"the retry of {name!r} {PRESET_EXPECTED}, or a RetryPolicy")


def require_bool(value: object, option: str, name: str) -> bool:
    """Return the boolean *option* of the task *name*; text is refused, because even ``"false"`` counts as true."""
    if isinstance(value, bool):
        return value
    raise RegistrationError(f"the {option} of {name!r} must be True or False")


def make_rules(fail_on: Kind | Iterable[Kind], retry_on: Kind | Iterable[Kind], name: str) -> Rules:
    """Return the exception rules of the task *name*; an option is one kind or several."""
    failing = _require_kinds(fail_on, f"fail_on of {name!r}")
    retrying = _require_kinds(retry_on, f"retry_on of {name!r}")
    both = _find_overlap(failing, retrying) | _find_overlap(retrying, failing)
    if both:
        raise RegistrationError(f"{', '.join(sorted(both))} cannot be in both fail_on and retry_on of {name!r}")
    return Rules(fail_on=failing, retry_on=retrying)


def _require_kinds(given: Kind | Iterable[Kind], where: str) -> frozenset[Kind]:
    kinds = list(given) if isinstance(given, Iterable) and not isinstance(given, str | type) else [given]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Retry | Fail | Snooze):
            raise RegistrationError(f"the {where} cannot hold Retry, Fail or Snooze, which decide for themselves")
        is_class = isinstance(kind, type) and issubclass(kind, BaseException)
        if not is_class and not (isinstance(kind, str) and kind.isidentifier()):
            raise RegistrationError(f"the {where} must hold exception classes, or their names without the module")
    return frozenset(kinds)


def _find_overlap(first: frozenset[Kind], second: frozenset[Kind]) -> set[str]:
    """Return the names of the kinds of *first* that *second* contains, as a class or by name."""
    return {_get_name(kind) for kind in first if kind in second or _get_name(kind) in second}


def _get_name(kind: Kind) -> str:
    return kind if isinstance(kind, str) else kind.__name__
