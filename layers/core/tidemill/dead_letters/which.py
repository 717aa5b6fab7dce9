"""Which dead letters are meant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemill import indexes
from tidemill.dead_letters.values import LetterId


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The dead letters for which all holds that is given; where nothing is, all of them.

    Attributes:
        ids: One of these.
        since: Moved at this time or later.
        until: Moved before this time.
    """

    ids: tuple[LetterId, ...] = ()
    fingerprint: str | None = None
    name: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def where(self) -> dict[str, Any]:
        """Return the filter that matches them."""
        asked = {"fingerprint": self.fingerprint, "name": self.name, "queue": self.queue}
        where: dict[str, Any] = {field: {"$eq": value} for field, value in asked.items() if value is not None}
        moved = {"$gte": self.since, "$lt": self.until}
        if times := {operator: value for operator, value in moved.items() if value is not None}:
            where["dead_lettered_at"] = times
        if self.ids:
            where["_id"] = {"$in": [one.document() for one in self.ids]}
        return where

    def hint(self) -> str:
        """Return the index that leads to them."""
        if self.ids:
            return indexes.BY_ID
        return indexes.RECENT if self.fingerprint is None else indexes.GROUPS
