"""Claims that are given back: what could not start, and what was stamped and never seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.model import Task, TaskId
from tidemill.store import Tasks, settles

LOOK_AGAIN_SEC: Final = 10.0
"""After what time it is looked once more for what was stamped unseen, or could not be given back."""


class GivingBack:
    """Gives claims of *owner* back, their attempts refunded; what fails in the end is left to the leases."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        owner: str,
        clock: Clock,
        caps: RetryCaps,
        report: Report,
        monotonic: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._owner = owner
        self._clock = clock
        self._caps = caps
        self._report = report
        self._monotonic = monotonic
        self._owed: list[Task] = []
        self._unseen: list[str] = []
        self._looked_for = 0
        self._next_look = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to `recover`, though others are in hand."""
        return bool(self._owed or self._unseen) and self._monotonic() >= self._next_look

    def look_for(self, tokens: Sequence[str]) -> None:
        """Note claims that may have stamped tasks unseen."""
        if tokens:
            self._unseen += tokens
            self._next_look = 0.0

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

    def recover(self, *, started: Sequence[TaskId]) -> bool:
        """Give back what was stamped unseen, but for what was *started*, and what could not be given back before.

        A stamp may take effect late, so each is looked for twice. True where nothing is known to be left.
        """
        self._next_look = self._monotonic() + LOOK_AGAIN_SEC
        self.release([])
        if not self._unseen:
            return not self._owed
        try:
            self._report["released"] += settles.release_unseen(
                self._tasks, owner=self._owner, tokens=self._unseen, started=started, now=self._clock.now()
            )
        except TidemillError:
            self._report["errors"] += 1
            return False
        self._unseen = self._unseen[self._looked_for :]
        self._looked_for = len(self._unseen)
        return not self._owed
