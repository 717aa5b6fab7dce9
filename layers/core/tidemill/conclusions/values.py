"""What became of one run of a function, as values that may cross threads and processes: nothing of the function's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tidemill.model import Failure


@dataclass(frozen=True, slots=True)
class Returned:
    """It returned; *result* is plain, a copy, and can be stored."""

    result: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """It raised what *failure* describes."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Snoozing:
    """It asked to be run later: at a moment in UTC, or a span from now; both within the calendar."""

    until: datetime | timedelta


@dataclass(frozen=True, slots=True)
class Crashed:
    """Its process died, as *description* tells: "its process was killed by SIGSEGV"."""

    description: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Its process was ended together with others, as *description* tells: nobody knows which of them did it."""

    description: str


@dataclass(frozen=True, slots=True)
class Overran:
    """Its process was killed at its timeout."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """It has not been called and will not be, as *description* tells: there was nowhere to run it."""

    description: str


Conclusion: TypeAlias = Returned | Raised | Snoozing | Crashed | Lost | Overran | NotStarted
