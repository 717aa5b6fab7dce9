"""The turns of phrase of reasons."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tidemill.classify import bounded
from tidemill.control import Held
from tidemill.explaining.values import Facts
from tidemill.model import Task
from tidemill.wording import moment_from

MAX_NAMED: Final = 5
"""So many of those who hold something are named."""

MAX_WORD: Final = 200


def when(at: datetime, facts: Facts) -> str:
    """Return a time, and how far from the time of *facts* it is."""
    return moment_from(at, now=facts.now)


def short(word: str) -> str:
    """Return *word*, which anybody may have written, in a bounded length."""
    return bounded(word, MAX_WORD)


def holders(holds: Sequence[Held], facts: Facts) -> str:
    """Return who holds how many, and until when."""
    named = [f"{one.n} by {short(one.owner)} until {when(one.until, facts)}" for one in holds[:MAX_NAMED]]
    others = [f"{len(holds) - MAX_NAMED} more"] if len(holds) > MAX_NAMED else []
    return ", ".join(named + others)


def last_error(task: Task) -> str:
    """Return the code of the last failure in brackets, or nothing. Not its message: that may say anything."""
    return "" if task.error is None else f" ({short(task.error.code)})"
