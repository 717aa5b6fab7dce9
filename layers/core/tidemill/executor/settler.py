"""Outcomes on their way to MongoDB: gathered, written in bulk, repeated until confirmed or out of time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.settlement import Settlement
from tidemill.store import Tasks, settles
from tidemill.store.settles import Verdict

FLUSH_SEC: Final = 0.2
FLUSH_SIZE: Final = 100
FIRST_PAUSE_SEC: Final = 0.1
LAST_PAUSE_SEC: Final = 2.0


class Settler:
    """Writes settlements at the latest 200 ms after they were added, from the thread that calls it.

    A flush that fails keeps what it holds and is repeated with growing pauses: an outcome that took effect
    unseen is recognised by its token.
    """

    def __init__(self, tasks: Tasks, *, report: Report, monotonic: Callable[[], float]) -> None:
        self._tasks = tasks
        self._report = report
        self._monotonic = monotonic
        self._held: list[Settlement] = []
        self._due = 0.0
        self._pause = 0.0
        self.trouble: TidemillError | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, settlement: Settlement) -> None:
        """Keep *settlement* for the next flush."""
        if not self._held:
            self._due = self._monotonic() + max(FLUSH_SEC, self._pause)
        self._held.append(settlement)

    def next_flush(self) -> float | None:
        """Return when the next flush is due on the monotonic clock, or ``None`` with nothing to write."""
        return self._due if self._held else None

    def is_due(self) -> bool:
        """Tell whether it is time to write."""
        full = len(self._held) >= FLUSH_SIZE and not self._pause
        return bool(self._held) and (full or self._monotonic() >= self._due)

    def flush(self, *, now: datetime) -> Verdict:
        """Try to write all that is held; return what is known now of what was. A failure is left in `trouble`."""
        if not self._held:
            return Verdict()
        try:
            verdict = settles.settle(self._tasks, self._held, now=now)
        except TidemillError as error:
            self._report["errors"] += 1
            self.trouble = error
            self._pause = min(max(self._pause * 2, FIRST_PAUSE_SEC), LAST_PAUSE_SEC)
            self._due = self._monotonic() + self._pause
            return Verdict()
        self._pause = 0.0
        self.trouble = None
        self._held.clear()
        for settlement in verdict.settled:
            self._report.settled(settlement.outcome)
        self._report["lost"] += len(verdict.lost)
        self._report["stuck"] += len(verdict.stuck)
        return verdict

    def give_up(self) -> None:
        """Count what could not be confirmed; its leases will tell."""
        self._report["unknown"] += len(self._held)
        self._held.clear()
