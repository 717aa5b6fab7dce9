"""What is asked of an isolation, and what it promises."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from tidemill.conclusions import Conclusion
from tidemill.model import TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedRun:
    """One run of the function registered as *name*. ``timeout`` counts from when the function is called."""

    name: str
    payload: dict[str, Any]
    task_id: TaskId
    attempt: int
    is_last_attempt: bool
    timeout: timedelta
    correlation_id: str | None = None
    traceparent: str | None = None


class Isolation(Protocol):
    """Runs functions where they can harm nobody else."""

    def run(self, order: IsolatedRun, *, cancelled: threading.Event) -> Conclusion:
        """Run the function and return what became of it; called from many threads at once.

        Once *cancelled* is set, the function is told by its context.

        Raises:
            IsolationError: There is nowhere to run it; it has not started and will not.
        """

    def close(self) -> None:
        """End whatever still runs, and leave nothing behind."""
