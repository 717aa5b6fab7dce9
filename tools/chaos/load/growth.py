"""Whether something grows: its first third against its last. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Values: TypeAlias = Sequence[tuple[float, float]]
"""Moments, in seconds of the load, and what was found then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How something has changed from the *first* third of the load to the *last*.

    Attributes:
        unit: Of the numbers.
        allowed: How much more the last may be.
    """

    name: str
    first: float
    last: float
    allowed: float
    unit: str = ""

    @property
    def is_none(self) -> bool:
        """Whether it did not grow, but for what was allowed."""
        return self.last - self.first <= self.allowed

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.first)} -> {_short(self.last)} {self.unit}".rstrip()

    def told(self) -> str:
        """Return the sentence where it grew."""
        return f"{self} (allowed is {_short(self.allowed)} more)"


def growth(
    name: str,
    values: Values,
    *,
    whole: float,
    allowed: float,
    unit: str = "",
    by: Callable[[Sequence[float]], float] = statistics.median,
) -> Growth | None:
    """Return the growth of *values* over a load of *whole* seconds; ``None`` where a third of it has none.

    *by* makes one number of a third: its median, or its maximum where the exception is what counts.
    """
    first = [value for at, value in values if at <= whole / 3]
    last = [value for at, value in values if at > whole * 2 / 3]
    if not first or not last:
        return None
    return Growth(name=name, first=by(first), last=by(last), allowed=allowed, unit=unit)


def _short(number: float) -> str:
    return f"{number:,.2f}".rstrip("0").rstrip(".")
