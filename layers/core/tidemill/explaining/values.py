"""What an explanation is made from, and of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidemill.control import Standing
from tidemill.model import Lane, Malformed, Task, TaskId
from tidemill.policies import QueueOptions
from tidemill.store.ids import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that keeps a task from running, or says what it does instead.

    Attributes:
        code: A word for programs, such as ``not_due`` or ``paused``.
        message: A sentence for a person; times are in UTC. It says what to do where there is something to do.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a task is not running.

    Attributes:
        status: The task's own, or ``malformed``.
        reasons: Everything that holds, the decisive one first; never empty.
    """

    task_id: TaskId
    status: str
    is_dead_letter: bool
    reasons: tuple[Reason, ...]

    def document(self) -> dict[str, Any]:
        """Return the explanation in plain JSON types."""
        return {
            "task_id": shown(self.task_id),
            "status": self.status,
            "is_dead_letter": self.is_dead_letter,
            "reasons": [{"code": one.code, "message": one.message} for one in self.reasons],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a task, and of what is around it; the latter only where it is pending.

    Attributes:
        ahead: Due tasks of its queue that its turn puts before it, by lane, up to ``gauges.MANY`` + 1 together.
        is_known: Whether an executor has registered its function.
        is_any_known: Whether an executor has registered any.
    """

    task: Task | Malformed
    now: datetime
    is_dead_letter: bool = False
    options: QueueOptions = field(default_factory=QueueOptions)
    standing: Standing = field(default_factory=Standing)
    ahead: Mapping[Lane, int] = field(default_factory=dict)
    is_known: bool = True
    is_any_known: bool = True
