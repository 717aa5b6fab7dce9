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
        self._owed: list[Task] = []

    @property
    def is_owing(self) -> bool:
        """Whether something could not be given back yet."""
        return bool(self._owed)

    def release(self, tasks: Sequence[Task]) -> None:
        """Give back *tasks*, none of which has started, and those that could not be given back before."""
        self._owed += tasks
        if not self._owed:
            return
        now = self._clock.now()
        try:
            self._report["released"] += settles.release(self._tasks, self._owed, now=now)
        except TidemillError:
            self._report["errors"] += 1
            return
        self._caps.ended(self._owed, now=now)
        self._owed.clear()

    def release_unseen(self, tokens: Sequence[str], *, started: Sequence[TaskId]) -> bool:
        """Give back what carries one of *tokens* but for what was *started*, and what could not be given back before.

        True where nothing is left that carries them unknown to this execution.
        """
        self.release([])
        if not tokens:
            return not self._owed
        try:
            self._report["released"] += settles.release_unseen(
                self._tasks, owner=self._owner, tokens=tokens, started=started, now=self._clock.now()
            )
        except TidemillError:  # their leases end
            self._report["errors"] += 1
            return False
        return not self._owed
