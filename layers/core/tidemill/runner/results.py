"""Results of one run of a function: values that cross threads and processes and refer to no object of the function."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tidemill.model import Failure


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned. *result* is a plain copy that can be stored."""

    result: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised the error that *failure* describes."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class SnoozeRequested:
    """The function asked to run again later: at a time in UTC or after a duration, both within the calendar."""

    until: datetime | timedelta


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process of the run died; *description* says how, for example "its process was killed by SIGSEGV"."""

    description: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The process of the run ended together with others, so the cause is unknown; *description* says how."""

    description: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The process of the run was killed at its timeout."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The function was not called and will not be; *description* says why no thread or process could run it."""

    description: str


RunResult: TypeAlias = Returned | Raised | SnoozeRequested | Crashed | Lost | TimedOut | NotStarted
