"""When redriven tasks are due: all at once, or so many a second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidemill.clock import truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """When the next task is to be due: so many a second since *start*, of which so many are *placed*."""

    per_sec: float | None
    start: datetime
    placed: int = 0

    def due_at(self, *, now: datetime) -> datetime | None:
        """Return when the next task is due; ``None`` is at once."""
        return at if (at := self._at()) > now else None

    def further(self, *, now: datetime) -> Spread:
        """Return it with one more task placed; what was late begins anew at *now*, so that nothing comes in a rush."""
        return replace(self, placed=self.placed + 1) if self._at() >= now else replace(self, start=now, placed=1)

    def _at(self) -> datetime:
        after = timedelta(0) if self.per_sec is None else timedelta(seconds=self.placed / self.per_sec)
        return truncated(self.start + after)
