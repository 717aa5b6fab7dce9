"""A started function, and an ended one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tidemill.conclusions import Conclusion
from tidemill.model import Task
from tidemill.registry import TaskContext

ISOLATION_ALLOWANCE: Final = timedelta(seconds=8)
"""What an isolated function may take beyond its timeout, which is kept where it runs: for the process to be had, and
once for the helper of all such processes to start. Below the margin that an execution keeps for its end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Running:
    """One started function. ``started`` and the context's ``deadline`` are readings of the monotonic clock."""

    task: Task
    ctx: TaskContext
    started_at: datetime
    started: float
    cancel: threading.Event = field(repr=False)
    is_isolated: bool = False

    @property
    def given_up_at(self) -> float:
        """When it is not waited for any longer, on the monotonic clock."""
        return self.ctx.deadline + (ISOLATION_ALLOWANCE.total_seconds() if self.is_isolated else 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ended:
    """What became of a function. Where this is `NotStarted`, its task is to be given back."""

    running: Running
    duration: timedelta
    conclusion: Conclusion
