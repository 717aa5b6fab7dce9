"""Settlements gathered and written to MongoDB in bulk, repeated until they are confirmed or time is up."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tidemill.errors import TidemillError
from tidemill.executor.context import ExecutionContext
from tidemill.store import settle
from tidemill.store.outcomes import Settlement
from tidemill.store.settle import SettleResult

FLUSH_SIZE: Final = 100
"""Number of settlements that are written at once, without waiting."""


class Settler:
    """Writes settlements within a fraction of a second of their addition, on the thread that calls it.

    After a failure the settlements are kept and written again, with growing pauses. A settlement that took effect
    without an answer is recognised by its token.
    """

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._pending: list[Settlement] = []
        self._due_at = 0.0
        self._pause = 0.0
        self._error: TidemillError | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def error(self) -> TidemillError | None:
        """The error of the last flush, or ``None`` if it succeeded."""
        return self._error

    def add(self, settlement: Settlement) -> None:
        """Add *settlement* to the next flush."""
        if not self._pending:
            self._due_at = self._context.monotonic() + self._context.timing.flush_sec
        self._pending.append(settlement)

    def next_flush(self) -> float | None:
        """Return the time of the next flush on the monotonic clock, or ``None`` if nothing is pending."""
        return self._due_at if self._pending else None

    def is_due(self) -> bool:
        """Return whether a flush is due now."""
        is_full = len(self._pending) >= FLUSH_SIZE and not self._pause
        return bool(self._pending) and (is_full or self._context.monotonic() >= self._due_at)

    def flush(self, *, now: datetime) -> SettleResult:
        """Try to write all pending settlements, and return the verdict. After a failure `error` has the cause."""
        if not self._pending:
            return SettleResult()
        timing, report = self._context.timing, self._context.report
        try:
            verdict = settle.settle(self._context.tasks, self._pending, now=now)
        except TidemillError as error:
            report["errors"] += 1
            self._error = error
            self._pause = min(max(self._pause * 2, timing.first_flush_pause_sec), timing.longest_flush_pause_sec)
            self._due_at = self._context.monotonic() + self._pause
            return SettleResult()
        self._pause = 0.0
        self._error = None
        self._pending.clear()
        for settlement in verdict.settled:
            report.count_outcome(settlement.outcome)
        report["lost"] += len(verdict.lost)
        report["write_rejected"] += len(verdict.stuck)
        return verdict

    def give_up(self) -> None:
        """Count the pending settlements as unknown; their leases expire or they took effect."""
        self._context.report["unknown"] += len(self._pending)
        self._pending.clear()
