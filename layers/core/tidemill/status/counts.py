"""Numbers that end somewhere."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.store import gauges


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number that may have been counted only so far: then its text ends in a plus sign.

    That is so above ``gauges.MANY``, and where there *may_be_more* than were looked at.
    """

    counted: int
    may_be_more: bool = False

    def __str__(self) -> str:
        has_end = self.counted <= gauges.MANY and not self.may_be_more
        return str(self.counted) if has_end else f"{min(self.counted, gauges.MANY)}+"

    def plain(self) -> int | str:
        """Return the number, or its text where it was not counted to the end."""
        return self.counted if str(self) == str(self.counted) else str(self)
