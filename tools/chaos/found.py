"""What one section of the chaos found, in numbers that can be added up over sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(kw_only=True)
class Found:
    """What was done to Tidemill, and what became of the tasks that it had accepted meanwhile.

    Attributes:
        faults: How many were injected, by kind.
        accepted: Tasks whose enqueue was acknowledged (or committed, in the caller's transaction).
        done, cancelled, dead: Where they ended; *dead* counts tasks, each once.
        alive: Those that had no reason to end yet, and are well.
        lost: Those that are in no place, in two, or in one that they cannot leave.
        repeated: Tasks whose function ran again though no outcome of its own asked for it, by why.
        notes: Numbers worth telling, a short line each.
        broken: Promises that did not hold, a sentence each; empty says that it survived.
    """

    faults: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    done: int = 0
    cancelled: int = 0
    dead: int = 0
    alive: int = 0
    lost: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Add what another run found."""
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, mine + theirs)

    def as_json(self) -> dict[str, Any]:
        """Return the same in dicts, lists and numbers."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def total(found: Iterable[Found]) -> Found:
    """Return the sum of all."""
    whole = Found()
    for one in found:
        whole.add(one)
    return whole


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Counter) else value
