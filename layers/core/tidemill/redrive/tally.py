"""Counts what becomes of dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.redrive.values import EXAMPLES, Code, Redriven, Refused


@dataclass(slots=True, kw_only=True)
class Tally:
    """What has become of letters so far."""

    looked_at: int = 0
    redriven: int = 0
    refused: Counter[Code] = field(default_factory=Counter)
    unregistered: Counter[str] = field(default_factory=Counter)
    examples: list[Refused] = field(default_factory=list)

    def refuse(self, those: Iterable[Refused]) -> None:
        """Count letters that stay as they are."""
        for one in those:
            self.refused[one.code] += 1
            if one.name is not None:
                self.unregistered[one.name] += 1
            if len(self.examples) < EXAMPLES:
                self.examples.append(one)

    def result(self, *, cursor: str | None) -> Redriven:
        """Return all of it, to be gone on with at *cursor*."""
        return Redriven(
            looked_at=self.looked_at,
            redriven=self.redriven,
            refused=dict(self.refused),
            unregistered=dict(self.unregistered),
            examples=tuple(self.examples),
            next=cursor,
        )
