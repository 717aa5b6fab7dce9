"""Claims that are given back: what could not start, and what was stamped and never seen."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.model import Task, TaskId
from tidemill.store import Tasks, settles


class GivingBack:
    """Gives claims of *owner* back, their attempts refunded; what fails is left to the leases."""

    def __init__(self, tasks: Tasks, *, owner: str, clock: Clock, caps: RetryCaps, report: Report) -> None:
        self._tasks = tasks
        self._owner = owner
        self._clock = clock
        self._caps = caps
        self._report = report
        self._tokens: list[str] = []

    def release(self, tasks: Sequence[Task]) -> None:
        """Give back *tasks*, none of which has started."""
        if not tasks:
            return
        now = self._clock.now()
        try:
            self._report["released"] += settles.release(self._tasks, tasks, now=now)
        except TidemillError:
            self._report["errors"] += 1
            self._tokens += [task.lease.token for task in tasks if task.lease is not None]
        else:
            self._caps.ended(tasks, now=now)

    def release_unseen(self, tokens: Sequence[str], *, started: Sequence[TaskId]) -> bool:
        """Give back what carries one of *tokens*, or could not be released before, but for what was *started*.

        True where nothing is left that carries them unknown to this execution.
        """
        all_tokens = [*self._tokens, *tokens]
        if not all_tokens:
            return True
        try:
            self._report["released"] += settles.release_unseen(
                self._tasks, owner=self._owner, tokens=all_tokens, started=started, now=self._clock.now()
            )
        except TidemillError:  # their leases end with this invocation
            self._report["errors"] += 1
            return False
        return True
