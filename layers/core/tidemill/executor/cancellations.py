"""Who asked a running task to stop: looked up for all at once, at most once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.model import TaskId
from tidemill.slots import Running
from tidemill.store import Tasks, lookups

LOOK_SEC: Final = 1.0


class Cancellations:
    """Tells the functions of *owner* that somebody asked them to stop."""

    def __init__(self, tasks: Tasks, *, owner: str, report: Report, monotonic: Callable[[], float]) -> None:
        self._tasks = tasks
        self._owner = owner
        self._report = report
        self._monotonic = monotonic
        self.next_look = monotonic() + LOOK_SEC

    def look(self, running: Iterable[Running]) -> Sequence[TaskId]:
        """Set the mark that ``ctx.cancelled()`` reads, if it is time to look; return what was asked to stop."""
        if self._monotonic() < self.next_look:
            return ()
        self.next_look = self._monotonic() + LOOK_SEC
        try:
            asked = lookups.asked_to_stop(self._tasks, self._owner)
        except TidemillError:
            self._report["errors"] += 1
            return ()
        for one in running:
            if one.task.id in asked:
                one.cancel.set()
        return asked
