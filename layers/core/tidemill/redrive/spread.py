"""When redriven tasks are due: all at once, or so many a second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from tidemill.clock import truncated
from tidemill.requests import MAX_DELAY_SEC

FARTHEST_SEC: Final = MAX_DELAY_SEC
"""No task is due so long after the start of a redrive: as little as one is that is enqueued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """When the next task is to be due: so many a second since *start*, of which so many are *placed*."""

    per_sec: float | None
    start: datetime
    placed: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the next task would be due more than `FARTHEST_SEC` after the start: it has no time then."""
        return self.per_sec is not None and self.placed > self.per_sec * FARTHEST_SEC

    def is_sane(self, *, now: datetime) -> bool:
        """Tell whether it can have come about by *now*."""
        return self.placed >= 0 and abs(now - self.start) <= timedelta(seconds=MAX_DELAY_SEC)

    def due_at(self, *, now: datetime) -> datetime | None:
        """Return when the next task is due; ``None`` is at once."""
        return at if (at := self._at()) > now else None

    def further(self, *, now: datetime) -> Spread:
        """Return it with one more task placed; what was late begins anew at *now*, so that nothing comes in a rush."""
        return replace(self, placed=self.placed + 1) if self._at() >= now else replace(self, start=now, placed=1)

    def _at(self) -> datetime:
        after = timedelta(0) if self.per_sec is None else timedelta(seconds=self.placed / self.per_sec)
        return truncated(self.start + after)
