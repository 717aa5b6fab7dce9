"""The turns of phrase of reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tidemill.classify import bounded
from tidemill.control import Held
from tidemill.explaining.values import Facts
from tidemill.model import Task, TaskId
from tidemill.store import ids
from tidemill.wording import moment_from

MAX_NAMED: Final = 5
"""So many of those who hold something are named."""

MAX_WORD: Final = 200

RECLAIM: Final = "reclaim, which runs every minute,"
ARCHIVED: Final = "becomes a dead letter with the next archive, which runs every 5 minutes"


def when(at: datetime, facts: Facts) -> str:
    """Return a time, and how far from the time of *facts* it is."""
    return moment_from(at, now=facts.now)


def short(word: str) -> str:
    """Return *word*, which anybody may have written, in a bounded length."""
    return bounded(word, MAX_WORD)


def command(action: str, *words: str) -> str:
    """Return the command by which an operator does something."""
    return f"`tidemill ops {' '.join((action, *words))}`"


def letter_command(action: str, *words: str) -> str:
    """Return the command by which an operator does something with a dead letter."""
    return f"`tidemill dlq {' '.join((action, *words))}`"


def word(text: str, stand_in: str) -> str:
    """Return *text* where a shell takes it as it is, else a *stand_in* for it."""
    return text if re.fullmatch(r"[A-Za-z0-9_.:@/][A-Za-z0-9_.:@/-]{0,199}", text) else stand_in


def id_of(task_id: TaskId) -> str:
    """Return the id as a command takes it."""
    return word(ids.shown(task_id), "ID")


def holders(holds: Sequence[Held], facts: Facts) -> str:
    """Return who holds how many, and until when."""
    named = [f"{one.n} by {short(one.owner)} until {when(one.until, facts)}" for one in holds[:MAX_NAMED]]
    others = [f"{len(holds) - MAX_NAMED} more"] if len(holds) > MAX_NAMED else []
    return ", ".join(named + others)


def last_error(task: Task) -> str:
    """Return the code of the last failure in brackets, or nothing. Not its message: that may say anything."""
    return "" if task.error is None else f" ({short(task.error.code)})"
