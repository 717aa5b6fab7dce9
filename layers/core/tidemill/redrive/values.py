"""What a redrive is asked for, works with, and tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tidemill.clock import Clock
from tidemill.dead_letters.values import LetterId
from tidemill.dead_letters.which import Which
from tidemill.store import Tasks

EXAMPLES: Final = 20

Code: TypeAlias = Literal["unregistered", "malformed", "expired", "under_way", "conflict", "far_off", "unwritable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where redrives take place."""

    tasks: Tasks
    dead: Tasks
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriver(Ground):
    """What a redrive works with; ``registered`` returns the names of the functions that there are."""

    registered: Callable[[], frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be redriven, and how.

    Attributes:
        per_sec: So many tasks are due a second; ``None``, all of them at once.
        drop_expiry: Tasks that had to start by a time need not any more.
    """

    which: Which
    per_sec: float | None = None
    drop_expiry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A dead letter that stays as it is, and why. *name* is its task's, bounded, where that is the reason."""

    id: LetterId
    code: Code
    message: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What became of the dead letters that were looked at, or would have become of them.

    Attributes:
        refused: How many were, by the code of the reason.
        unregistered: How many of the refused there are of each name that is not registered.
        examples: Of the refused, `EXAMPLES` at most.
        next: The cursor to go on with; ``None`` where nothing is left.
    """

    looked_at: int
    redriven: int
    refused: dict[Code, int]
    unregistered: dict[str, int]
    examples: tuple[Refused, ...]
    next: str | None


def under_way(letter_id: LetterId) -> Refused:
    """Return that somebody else may be about to redrive a letter."""
    message = "its redrive is under way, or was cut short a moment ago: then the archive completes it"
    return Refused(id=letter_id, code="under_way", message=message)
