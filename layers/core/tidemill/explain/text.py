"""Values of an explanation, and the phrases of its messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemill.control.fleet import FleetStatus, Permit
from tidemill.model import Lane, Malformed, QueueOptions, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.store import tasks
from tidemill.text import format_time_and_distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason why a task is not running, or description of its state.

    Attributes:
        code: A word for programs, such as ``not_due`` or ``paused``.
        message: A sentence for the operator, with times in UTC and the remedy, if there is any.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reasons why a task is not running.

    Attributes:
        status: Status of the task, or ``malformed``.
        reasons: All reasons that apply, the decisive one first; never empty.
    """

    task_id: TaskId
    status: str
    is_dead_letter: bool
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a task, and about its queue and executors; the latter only if it is pending.

    Attributes:
        ahead: Number of due tasks of its queue that go before it, by lane, up to `COUNT_LIMIT` + 1 in all.
        is_known: An executor has registered its function.
        is_any_known: An executor has registered some function.
    """

    task: Task | Malformed
    now: datetime
    is_dead_letter: bool = False
    options: QueueOptions = field(default_factory=QueueOptions)
    standing: FleetStatus = field(default_factory=FleetStatus)
    ahead: Mapping[Lane, int] = field(default_factory=dict)
    is_known: bool = True
    is_any_known: bool = True


MAX_NAMED_OWNERS: Final = 5
"""Maximum number of permit owners to name."""

MAX_WORD_LENGTH: Final = 200

RECLAIM: Final = "reclaim, which runs every minute,"
ARCHIVED: Final = "becomes a dead letter with the next archive, which runs every 5 minutes"


def format_when(at: datetime, facts: Facts) -> str:
    """Return a time, with its distance from the time of *facts*."""
    return format_time_and_distance(at, now=facts.now)


def shorten(word: str) -> str:
    """Return *word* in a bounded length: anyone may have written it."""
    return truncate_text(word, MAX_WORD_LENGTH)


def format_command(action: str, *words: str) -> str:
    """Return the operator's command for *action*."""
    return f"`tidemill ops {' '.join((action, *words))}`"


def format_dead_letter_command(action: str, *words: str) -> str:
    """Return the operator's command for *action* on a dead letter."""
    return f"`tidemill dlq {' '.join((action, *words))}`"


def format_word(text: str, stand_in: str) -> str:
    """Return *text* if a shell takes it unquoted, else *stand_in*."""
    return text if re.fullmatch(r"[A-Za-z0-9_.:@/][A-Za-z0-9_.:@/-]{0,199}", text) else stand_in


def format_id_argument(task_id: TaskId) -> str:
    """Return the id as a command takes it."""
    return format_word(tasks.format_id(task_id), "ID")


def format_permits(holds: Sequence[Permit], facts: Facts) -> str:
    """Return owners, numbers and end times of permits."""
    owners = [
        f"{permit.n} by {shorten(permit.owner)} until {format_when(permit.until, facts)}"
        for permit in holds[:MAX_NAMED_OWNERS]
    ]
    rest = [f"{len(holds) - MAX_NAMED_OWNERS} more"] if len(holds) > MAX_NAMED_OWNERS else []
    return ", ".join(owners + rest)


def format_last_error(task: Task) -> str:
    """Return the code of the last failure in brackets, or nothing. Its message is left out: it may contain anything."""
    return "" if task.error is None else f" ({shorten(task.error.code)})"
