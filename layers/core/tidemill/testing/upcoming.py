"""The times at which tasks are due, for a test that has time at its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidemill.clock import Clock
from tidemill.documents import decode
from tidemill.store import Tasks, translated

SKEW: Final = timedelta(seconds=1)
"""What the clocks of two queues of one database may differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """The due times of the pending *tasks* of *queues*; none are all. It reads them all, so not for production.

    With *until* they are all those up to there. Else with a *clock*, those up to its time of tasks that were enqueued
    without a delay and have not been put off since. Else there are none.
    """

    tasks: Tasks
    queues: Sequence[str] = ()
    until: datetime | None = None
    clock: Clock | None = None

    def after(self, at: datetime) -> datetime | None:
        """Return the time to go on at, after *at*, or ``None`` where that was the last."""
        if self.until is not None:
            return self._first(after=at, until=self.until)
        if self.clock is not None:
            return self._last_at_once(after=at, until=self.clock.now() + SKEW)
        return None

    def _first(self, *, after: datetime, until: datetime) -> datetime | None:
        return self._due({"$gt": after, "$lte": until}, order=1)

    def _last_at_once(self, *, after: datetime, until: datetime) -> datetime | None:
        return self._due({"$gt": after, "$lte": until}, order=-1, next_retry_at=None)

    def _due(self, due_at: Mapping[str, datetime], *, order: int, **fields: Any) -> datetime | None:  # noqa: ANN401
        where: dict[str, Any] = {"status": "pending", "due_at": due_at} | fields
        if self.queues:
            where["queue"] = {"$in": list(self.queues)}
        with translated():
            found = self.tasks.find_one(where, {"due_at": 1}, sort=[("due_at", order)])
        return None if found is None else decode(found)["due_at"]
