"""What the bench measures: figures, each beside the target that it is held against, in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Scale: TypeAlias = Literal["toy", "quick", "full"]
"""How much is measured: a few tasks for the tests, all in 90 seconds, or all in ten minutes."""

Series: TypeAlias = Sequence[Mapping[str, float]]
"""Points of a plot, by the names of their coordinates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Between what a figure is to be; ``None`` is no bound."""

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        """Tell whether *value* lies within."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        bounds = [("≥", self.at_least), ("≤", self.at_most)]
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    Attributes:
        name: What was measured, such as "enqueue_many of 1,000".
        value: What counts: a ratio within one run wherever it is a matter of time, else a count.
        unit: Of *value*: "of the floor", "times", "keys a task", "%", "ms".
        absolute: The absolute numbers beside it, such as "31 ms; bare 24 ms".
        least, most: The extremes of *value* over the rounds; ``None`` where it was counted once.
        target: What the value is to be; ``None`` is a figure that is only reported.
    """

    name: str
    value: float
    unit: str
    absolute: str = ""
    least: float | None = None
    most: float | None = None
    target: Target | None = None

    @property
    def is_met(self) -> bool:
        """Whether the target, if there is one, is met."""
        return self.target is None or self.target.is_met(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one part of the bench found. ``series`` are the points of its plots, by the name of the plot."""

    title: str
    figures: Sequence[Figure]
    series: Mapping[str, Series] = field(default_factory=dict)


def as_json(section: Section) -> dict[str, Any]:
    """Return *section* as it is written to ``bench.json``."""
    return {
        "title": section.title,
        "figures": [_figure(one) for one in section.figures],
        "series": {name: [dict(point) for point in points] for name, points in section.series.items()},
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "absolute": figure.absolute,
        "least": figure.least,
        "most": figure.most,
        "target": None if figure.target is None else str(figure.target),
        "is_met": figure.is_met,
    }
