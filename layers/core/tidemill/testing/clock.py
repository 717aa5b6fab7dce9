"""A clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidemill.clock import truncated


class ManualClock:
    """Tells the same time until the test moves it.

    Given to a queue, it is the clock of all that the queue enqueues, and of every `drain` of that queue.

    ::

        clock = ManualClock()
        queue = Queue(db, clock=clock)
        queue.enqueue("remind", {"order": 7}, delay=timedelta(days=3))
        clock.move(timedelta(days=3))
        assert drain(queue).done == 1

    Not to be set far back: MongoDB removes what was done before the retention, and that by its own clock.

    Args:
        at: The time it tells at first; without it, that of this machine.
    """

    def __init__(self, at: datetime | None = None) -> None:
        self._at = moment(datetime.now(UTC) if at is None else at)

    def now(self) -> datetime:
        """Return the time, as aware UTC in whole milliseconds."""
        return self._at

    def move(self, span: timedelta) -> datetime:
        """Let *span* pass at once, and return the time it is then."""
        self._at = truncated(self._at + span)
        return self._at


def moment(at: datetime) -> datetime:
    """Return *at* as the database would have it.

    Raises:
        ValueError: It has no time zone.
    """
    if at.utcoffset() is None:
        raise ValueError("a time must carry a time zone, as in datetime.now(UTC)")
    return truncated(at.astimezone(UTC))
